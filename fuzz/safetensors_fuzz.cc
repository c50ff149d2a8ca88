// Any bytes as a safetensors file: refused with a message, or read without leaving the file.
#include <cstdlib>

#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace onelane;
  const auto parsed = parse_safetensors(std::as_bytes(std::span(data, size)));
  if (!parsed) {
    if (parsed.error().message.empty()) std::abort();
    return 0;
  }
  size_t total = 0;
  unsigned touched = 0;
  for (const auto& [name, tensor] : parsed->tensors) {
    for (const std::byte byte : tensor.bytes) touched += static_cast<unsigned>(byte);
    if (tensor.count() * dtype_bytes(tensor.dtype) != static_cast<int64_t>(tensor.bytes.size())) std::abort();
    if (const auto floats = tensor_to_floats(tensor); floats && std::ssize(*floats) != tensor.count()) std::abort();
    total += tensor.bytes.size();
  }
  // Tensors do not overlap, so together they are no larger than the file. The sum keeps the reads alive.
  if (total > size || touched > 255u * size) std::abort();
  return 0;
}
