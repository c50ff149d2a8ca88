#include "checkpoint/checkpoint.h"

#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/strict_json.h"

namespace onelane {
namespace {

using nlohmann::json;

constexpr size_t kMaxShards = 4096;
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// A file name that cannot lead out of the directory.
bool plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

std::string bare(const std::string& name) { return name.starts_with("model.") ? name.substr(6) : name; }

// Tensor name -> shard file name.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  ONELANE_ASSIGN(const std::string text, read_file(path));
  auto document = parse_strict_json(text);
  if (!document) return std::move(document).error().in(path);
  if (!document->is_object() || !document->contains("weight_map") || !(*document)["weight_map"].is_object()) {
    return Error{ErrorCode::kCorrupt, path + ": has no object 'weight_map'"};
  }
  std::map<std::string, std::string> index;
  std::set<std::string> bare_names;
  for (const auto& [name, shard] : (*document)["weight_map"].items()) {
    if (!shard.is_string() || !plain_file_name(shard.get_ref<const std::string&>())) {
      return Error{ErrorCode::kCorrupt, format("{}: weight_map.{}: {} is not a plain file name in this directory", path,
                                               name, shard.dump())};
    }
    index.emplace(name, shard.get<std::string>());
    if (!bare_names.insert(bare(name)).second) {
      return Error{ErrorCode::kCorrupt,
                   format("{}: weight_map names '{}' with and without 'model.'", path, bare(name))};
    }
  }
  return index;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  Checkpoint checkpoint;
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    ONELANE_TRY(checkpoint.add_file(path, nullptr, ""));
    return checkpoint;
  }
  const std::string index_path = path + "/" + kIndexName;
  const std::string single_path = path + "/" + kSingleName;
  if (exists(index_path)) {
    ONELANE_TRY(checkpoint.add_shards(path, index_path));
  } else if (exists(single_path)) {
    ONELANE_TRY(checkpoint.add_file(single_path, nullptr, ""));
  } else {
    return Error{ErrorCode::kNotFound, format("{}: holds neither {} nor {}", path, kIndexName, kSingleName)};
  }
  return checkpoint;
}

Result<void> Checkpoint::add_shards(const std::string& dir, const std::string& index_path) {
  ONELANE_ASSIGN(const auto index, read_index(index_path));
  std::set<std::string> shards;
  for (const auto& [name, shard] : index) shards.insert(shard);
  if (shards.size() > kMaxShards) {
    return Error{ErrorCode::kUnsupported,
                 format("{}: names {} shards; at most {} are supported", index_path, shards.size(), kMaxShards)};
  }
  for (const std::string& shard : shards) ONELANE_TRY(add_file(dir + "/" + shard, &index, shard));
  for (const auto& [name, shard] : index) {
    if (find(bare(name)) == nullptr) {
      return Error{ErrorCode::kNotFound,
                   format("{}: tensor '{}' is not in {}, where the index puts it", index_path, name, shard)};
    }
  }
  return {};
}

Result<void> Checkpoint::add_file(const std::string& path, const std::map<std::string, std::string>* index,
                                  const std::string& shard) {
  ONELANE_ASSIGN(MappedFile file, MappedFile::open(path));
  auto parsed = parse_safetensors(file.bytes());
  if (!parsed) return std::move(parsed).error().in(path);
  for (auto& [name, tensor] : parsed->tensors) {
    if (index != nullptr) {
      const auto entry = index->find(name);
      if (entry == index->end()) {
        return Error{ErrorCode::kCorrupt, format("{}: tensor '{}' is not in the index", path, name)};
      }
      if (entry->second != shard) {
        return Error{ErrorCode::kCorrupt,
                     format("{}: tensor '{}' is here, but the index puts it in {}", path, name, entry->second)};
      }
    }
    if (!tensors_.emplace(bare(name), std::move(tensor)).second) {
      return Error{ErrorCode::kCorrupt, format("{}: tensor '{}' is given twice", path, bare(name))};
    }
  }
  if (files_.empty()) metadata_ = std::move(parsed->metadata);
  files_.push_back(std::move(file));
  return {};
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

int64_t Checkpoint::total_bytes() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += static_cast<int64_t>(tensor.bytes.size());
  return total;
}

}  // namespace onelane
