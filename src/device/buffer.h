// Buffer: memory for tensors, caches and scratch, aligned to 64 bytes or better, on the host or on a device.
//
// With fences on (ONELANE_FENCE=1 in the environment), every buffer gets its own mapping whose last byte lies against
// an unmapped page, and starts filled with 0xff (NaN as bf16, float and e4m3, -1 as an index). A read or write one
// element past the end is then a fault on its first occurrence, and a use of scratch that nobody wrote shows. The test
// preset `fence` runs the whole suite so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/memory.h"

namespace onelane {

// From here on buffers of the host are taken from `memory`, which the host can reach as well as somebody else: pinned
// memory, for tests that give host buffers to a GPU's kernels. Not thread-safe; before the first buffer.
void set_host_buffers(Memory& memory);

// Whether the environment asks for fences; read once.
bool fences_on();

class Buffer {
 public:
  Buffer() = default;
  // `bytes` may be 0. Contents: zeros, or 0xff when fenced; call zero() where zeros are meant. Dies (ONELANE_CHECK)
  // when the system has no memory left: sizes are planned and checked before anything is allocated.
  explicit Buffer(size_t bytes, bool fenced = fences_on());
  // The same in `memory`, which must outlive it. In any but host_memory() a fence is a border: ~Buffer dies if it was
  // written.
  Buffer(size_t bytes, Memory& memory);
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept { return swap(other), *this; }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  void zero();
  // Fills with 0xff: what a fenced buffer starts with. For scratch that must not carry values from step to step.
  void poison();

  // The buffer as `size() / sizeof(T)` values. A fenced buffer's start is aligned to 64 bytes only if its size is a
  // multiple of 64: the end is what lies exactly at the fence, rounded up to the largest power of two (at most 16) that
  // divides the size.
  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_), size_ / sizeof(T)};
  }

 private:
  void fill(int byte);
  void swap(Buffer& other);
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Memory* memory_ = nullptr;      // null: fenced on the host, or empty
  std::byte* mapping_ = nullptr;  // fenced only: what data_ lies in
  size_t mapping_size_ = 0;
};

}  // namespace onelane
