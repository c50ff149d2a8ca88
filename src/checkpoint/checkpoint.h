// Checkpoint: the tensors of a model directory, memory-mapped and found by name; or of one that was made in memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "checkpoint/tensor.h"

namespace onelane {

class Checkpoint {
 public:
  // `path` is a .safetensors file or a directory with either model.safetensors.index.json and its shards or
  // model.safetensors. Tensor bytes stay on disk until they are touched.
  //
  // With an index, index and shards must agree exactly: every tensor of the index is in the shard that it names, every
  // tensor of a shard is in the index under that shard, and shard names are plain file names inside the directory. A
  // leading "model." of tensor names is dropped; some republished checkpoints have it. Errors name the file and tensor;
  // see also parse_safetensors.
  static Result<Checkpoint> open(const std::string& path);

  Checkpoint() = default;
  // Tensors that lie in memory, inside what `bytes` keeps alive.
  Checkpoint(std::map<std::string, TensorView, std::less<>> tensors, std::shared_ptr<const void> bytes)
      : tensors_(std::move(tensors)), bytes_(std::move(bytes)) {}

  // nullptr when there is no such tensor.
  const TensorView* find(std::string_view name) const;
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  // Of the first file.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  int shard_count() const { return static_cast<int>(files_.size()); }
  // Bytes of all tensors; what an index calls total_size.
  int64_t total_bytes() const;

 private:
  Result<void> add_file(const std::string& path, const std::map<std::string, std::string>* index,
                        const std::string& shard);
  Result<void> add_shards(const std::string& dir, const std::string& index_path);

  std::vector<MappedFile> files_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
  std::shared_ptr<const void> bytes_;
};

}  // namespace onelane
