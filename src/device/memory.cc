#include "device/memory.h"

#include <cstdlib>
#include <cstring>

namespace onelane {
namespace {

class HostMemory final : public Memory {
 public:
  std::byte* allocate(size_t bytes) override {
    constexpr size_t kAlignment = 256;
    void* data = nullptr;
    return ::posix_memalign(&data, kAlignment, bytes) == 0 ? static_cast<std::byte*>(data) : nullptr;
  }
  void release(std::byte* data) override { std::free(data); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void fill(void* to, int byte, size_t bytes) override { std::memset(to, byte, bytes); }
  int64_t available() const override { return -1; }
  bool on_host() const override { return true; }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace onelane
