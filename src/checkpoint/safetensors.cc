#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <set>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "checkpoint/strict_json.h"

namespace onelane {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensor bytes are used as they lie in the file");

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxName = 512;
constexpr size_t kMaxDims = 8;

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

// A name that can be printed in an error message without surprises.
bool printable(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName &&
         std::ranges::none_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

Result<std::vector<int64_t>> parse_shape(const json& value) {
  if (!value.is_array() || value.size() > kMaxDims) {
    return corrupt(format("shape is not an array of at most {} dimensions", kMaxDims));
  }
  std::vector<int64_t> shape;
  for (const json& dimension : value) {
    // nlohmann reads every whole number without a sign as unsigned; the rest is negative, fractional or no number.
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return corrupt(format("shape has the dimension {}; whole numbers from 0 are needed", dimension.dump()));
    }
    shape.push_back(static_cast<int64_t>(dimension.get<uint64_t>()));
  }
  return shape;
}

Result<TensorView> parse_entry(const json& entry, std::span<const std::byte> data) {
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    return corrupt("exactly the fields dtype, shape and data_offsets are needed");
  }
  TensorView tensor;
  const json& dtype = entry["dtype"];
  const auto known = dtype.is_string() ? dtype_from_name(dtype.get_ref<const std::string&>()) : std::nullopt;
  if (!known) return Error{ErrorCode::kUnsupported, format("dtype {} is not supported", dtype.dump())};
  tensor.dtype = *known;
  ONELANE_ASSIGN(tensor.shape, parse_shape(entry["shape"]));

  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return corrupt("data_offsets is not a pair of whole numbers from 0");
  }
  const auto begin = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  if (begin > end || end > data.size()) {
    return corrupt(format("data_offsets [{}, {}] do not lie within the file's {} data bytes", begin, end, data.size()));
  }
  const auto count = element_count(tensor.shape);
  int64_t size = 0;
  if (!count || __builtin_mul_overflow(*count, int64_t{dtype_bytes(tensor.dtype)}, &size)) {
    return corrupt(format("shape {} overflows", shape_text(tensor.shape)));
  }
  if (static_cast<uint64_t>(size) != end - begin) {
    return corrupt(format("{} {} takes {} bytes, but data_offsets span {}", dtype_name(tensor.dtype),
                          shape_text(tensor.shape), size, end - begin));
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

Result<void> parse_metadata(const json& value, std::map<std::string, std::string>& out) {
  if (!value.is_object()) return corrupt("__metadata__ is not an object");
  for (const auto& [key, entry] : value.items()) {
    if (!entry.is_string()) return corrupt(format("__metadata__: the value of '{}' is not a string", key));
    out.emplace(key, entry.get<std::string>());
  }
  return {};
}

Result<void> check_overlap(const std::map<std::string, TensorView>& tensors) {
  std::vector<std::pair<std::span<const std::byte>, const std::string*>> ranges;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.bytes.empty()) ranges.emplace_back(tensor.bytes, &name);
  }
  std::ranges::sort(ranges, [](const auto& a, const auto& b) { return a.first.data() < b.first.data(); });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].first.data() + ranges[i - 1].first.size() > ranges[i].first.data()) {
      return corrupt(format("tensors '{}' and '{}' overlap", *ranges[i - 1].second, *ranges[i].second));
    }
  }
  return {};
}

}  // namespace

Result<SafetensorsFile> parse_safetensors(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    return corrupt(
        format("has {} bytes; a safetensors file begins with an {}-byte header length", file.size(), kLengthBytes));
  }
  uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), kLengthBytes);
  if (header_size > kMaxSafetensorsHeader) {
    return corrupt(format("claims a header of {} bytes; at most {} are supported", header_size, kMaxSafetensorsHeader));
  }
  if (header_size > file.size() - kLengthBytes) {
    return corrupt(format("claims a header of {} bytes but holds only {} more: is it truncated?", header_size,
                          file.size() - kLengthBytes));
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + kLengthBytes, header_size);
  auto document = parse_strict_json(header);
  if (!document) return std::move(document).error().in("header");
  if (!document->is_object()) return corrupt("header: is not a JSON object");

  SafetensorsFile out;
  const auto data = file.subspan(kLengthBytes + header_size);
  for (const auto& [name, entry] : document->items()) {
    if (name == "__metadata__") {
      ONELANE_TRY(parse_metadata(entry, out.metadata));
      continue;
    }
    if (!printable(name)) {
      return corrupt(
          format("header: a tensor name is empty, longer than {} bytes or holds control characters", kMaxName));
    }
    auto tensor = parse_entry(entry, data);
    if (!tensor) return std::move(tensor).error().in(format("tensor '{}'", name));
    out.tensors.emplace(name, *std::move(tensor));
  }
  ONELANE_TRY(check_overlap(out.tensors));
  return out;
}

Result<void> write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& tensor : tensors) order.push_back(&tensor);
  std::ranges::sort(order, [](const TensorToWrite* a, const TensorToWrite* b) {
    const int size_a = dtype_bytes(a->dtype), size_b = dtype_bytes(b->dtype);
    return size_a != size_b ? size_a > size_b : a->name < b->name;
  });

  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::string data;
  for (const TensorToWrite* tensor : order) {
    const auto count = element_count(tensor->shape);
    if (!count || *count != static_cast<int64_t>(tensor->bytes.size()) / dtype_bytes(tensor->dtype) ||
        tensor->bytes.size() % dtype_bytes(tensor->dtype) != 0) {
      return Error{ErrorCode::kInvalidArgument,
                   format("{}: tensor '{}': {} {} does not take {} bytes", path, tensor->name,
                          dtype_name(tensor->dtype), shape_text(tensor->shape), tensor->bytes.size())};
    }
    if (!printable(tensor->name) || tensor->name == "__metadata__" || header.contains(tensor->name)) {
      return Error{ErrorCode::kInvalidArgument,
                   format("{}: tensor '{}': the name is given twice or cannot be used", path, tensor->name)};
    }
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size());
    header[tensor->name] = {
        {"dtype", dtype_name(tensor->dtype)}, {"shape", tensor->shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string file(kLengthBytes, '\0');
  try {
    file += header.dump();
  } catch (const json::exception& error) {
    return Error{ErrorCode::kInvalidArgument, format("{}: {}", path, error.what())};
  }
  // The format allows spaces after the header; they bring the data to a multiple of 64.
  file.resize((file.size() + 63) / 64 * 64, ' ');
  const uint64_t header_size = file.size() - kLengthBytes;
  std::memcpy(file.data(), &header_size, kLengthBytes);
  file += data;
  return write_file(path, file);
}

}  // namespace onelane
