#include "checkpoint/tensor.h"

#include <array>

#include "base/format.h"
#include "numerics/formats.h"

namespace onelane {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int bytes;
};

// In the order of the enumeration.
constexpr std::array<Row, 9> kTypes = {{{DType::kF8E4M3, "F8_E4M3", 1},
                                        {DType::kF8E8M0, "F8_E8M0", 1},
                                        {DType::kI8, "I8", 1},
                                        {DType::kU8, "U8", 1},
                                        {DType::kI32, "I32", 4},
                                        {DType::kI64, "I64", 8},
                                        {DType::kF32, "F32", 4},
                                        {DType::kBF16, "BF16", 2},
                                        {DType::kF16, "F16", 2}}};

}  // namespace

std::string_view dtype_name(DType dtype) { return kTypes[static_cast<size_t>(dtype)].name; }

int dtype_bytes(DType dtype) { return kTypes[static_cast<size_t>(dtype)].bytes; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::string shape_text(std::span<const int64_t> shape) { return format("[{}]", join(shape, ", ")); }

std::optional<int64_t> element_count(std::span<const int64_t> shape) {
  int64_t count = 1;
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0) empty = true;
    // A zero anywhere makes the product 0, but the other dimensions must still be sane: they are multiplied without it.
    else if (__builtin_mul_overflow(count, dimension, &count))
      return std::nullopt;
  }
  return empty ? 0 : count;
}

Result<std::vector<float>> tensor_to_floats(const TensorView& tensor) {
  if (tensor.dtype == DType::kF32) return copy_tensor<float>(tensor);
  if (tensor.dtype == DType::kBF16) {
    const std::vector<uint16_t> codes = copy_tensor<uint16_t>(tensor);
    std::vector<float> out(codes.size());
    for (size_t i = 0; i < codes.size(); ++i) out[i] = bf16_to_float(codes[i]);
    return out;
  }
  return Error{ErrorCode::kUnsupported,
               format("{} cannot be read as floats; F32 or BF16 is needed", dtype_name(tensor.dtype))};
}

}  // namespace onelane
