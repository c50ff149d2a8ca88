// Memory: where tensors, caches and scratch lie. The host's is always there; a GPU's comes with the CUDA plugin.
//
// Pointers into a device's memory are for its kernels alone. Whatever the host wants to see or to set goes through
// copy() and fill(), which keep their place among the kernels that were asked for before and after.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onelane {

class Memory {
 public:
  virtual ~Memory() = default;
  // At least 256-byte aligned, contents undefined; null when there is not so much left.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void release(std::byte* data) = 0;
  // Each end may lie here or on the host. When it returns, `from` may be changed and `to` be read.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  // `to` lies here.
  virtual void fill(void* to, int byte, size_t bytes) = 0;
  // Bytes that could be allocated now; -1: not known.
  virtual int64_t available() const = 0;
  // Whether the host may follow pointers into it.
  virtual bool on_host() const = 0;
};

// malloc, memcpy, memset. Who has another kind of host memory changes where it comes from.
class HostMemory : public Memory {
 public:
  std::byte* allocate(size_t bytes) override;
  void release(std::byte* data) override;
  void copy(void* to, const void* from, size_t bytes) override;
  void fill(void* to, int byte, size_t bytes) override;
  int64_t available() const override { return -1; }
  bool on_host() const override { return true; }
};
Memory& host_memory();

}  // namespace onelane
