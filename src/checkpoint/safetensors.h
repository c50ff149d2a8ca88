// The safetensors format: an 8-byte little-endian header length, a JSON header, then the tensors' bytes.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/tensor.h"

namespace onelane {

// A header longer than this is refused before it is parsed; the largest real one has about 10 MB.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

struct SafetensorsFile {
  std::map<std::string, TensorView> tensors;  // views into the bytes that were parsed
  std::map<std::string, std::string> metadata;
};

// Reads a whole file image. Nothing is copied but names and shapes. Refused, naming the tensor: a file shorter than its
// header says; a header that is not JSON, nests deeply or gives a key twice; an unknown dtype; a negative or
// overflowing shape; offsets that are reversed, leave the file, do not match shape times item size, or overlap another
// tensor's; names that are empty, longer than 512 bytes or hold control characters; fields this reader does not know.
// Gaps between tensors and bytes after the last one are allowed, and data may begin at any byte.
Result<SafetensorsFile> parse_safetensors(std::span<const std::byte> file);

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // must be shape times item size
};

// Writes `path` (through a temporary file beside it). Tensors are laid out by falling item size, then name, from an
// offset that is a multiple of 64: all of them are aligned to their items and there are no gaps, which other readers
// insist on. Refuses duplicate names, names that are not UTF-8 and sizes that do not match.
Result<void> write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                               const std::map<std::string, std::string>& metadata = {});

}  // namespace onelane
