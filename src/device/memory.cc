#include "device/memory.h"

#include <cstdlib>
#include <cstring>

namespace onelane {

std::byte* HostMemory::allocate(size_t bytes) {
  constexpr size_t kAlignment = 256;
  void* data = nullptr;
  return ::posix_memalign(&data, kAlignment, bytes) == 0 ? static_cast<std::byte*>(data) : nullptr;
}

void HostMemory::release(std::byte* data) { std::free(data); }
void HostMemory::copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void HostMemory::fill(void* to, int byte, size_t bytes) { std::memset(to, byte, bytes); }

Memory& host_memory() {
  // Never destroyed: buffers with static lifetime give memory back after it would be.
  static HostMemory& memory = *new HostMemory;
  return memory;
}

}  // namespace onelane
