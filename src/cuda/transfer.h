// What goes between host and device: memory of either side, and the upload of a step's arrays. Every call that
// allocates or waits is counted (HostCalls).
#pragma once

#include <array>
#include <cstring>
#include <vector>

#include <cuda_runtime_api.h>

#include "cuda/stage.h"
#include "device/memory.h"

namespace onelane::cuda {

class DeviceMemory final : public Memory {
 public:
  DeviceMemory(cudaStream_t stream, HostCalls& calls) : stream_(stream), calls_(calls) {}
  std::byte* allocate(size_t bytes) override {
    ++calls_.allocations;
    void* data = nullptr;
    if (cudaMalloc(&data, bytes) == cudaSuccess) return static_cast<std::byte*>(data);
    cudaGetLastError();
    return nullptr;
  }
  void release(std::byte* data) override {
    ++calls_.allocations;
    cudaFree(data);
  }
  void copy(void* to, const void* from, size_t bytes) override {
    ++calls_.other_waits;
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  void fill(void* to, int byte, size_t bytes) override {
    check(cudaMemsetAsync(to, byte, bytes, stream_), "cudaMemsetAsync");
  }
  int64_t available() const override {
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : -1;
  }
  bool on_host() const override { return false; }

 private:
  cudaStream_t stream_;
  HostCalls& calls_;
};

// Pinned: both sides follow the same pointers.
class SharedMemory final : public HostMemory {
 public:
  explicit SharedMemory(HostCalls& calls) : calls_(calls) {}
  std::byte* allocate(size_t bytes) override {
    ++calls_.allocations;
    void* data = nullptr;
    if (cudaHostAlloc(&data, bytes, cudaHostAllocPortable) == cudaSuccess) return static_cast<std::byte*>(data);
    cudaGetLastError();
    return nullptr;
  }
  void release(std::byte* data) override {
    ++calls_.allocations;
    cudaFreeHost(data);
  }

 private:
  HostCalls& calls_;
};

// Host arrays that go to the device together, step after step, in one copy. Device memory grows and stays; what has
// been recorded with an outgrown one is void (generation()).
class Upload {
 public:
  Upload(cudaStream_t stream, HostCalls& calls) : stream_(stream), calls_(calls) {}
  ~Upload() {
    cudaFree(device_);
    for (Staging& staging : ring_) {
      cudaFreeHost(staging.data);
      if (staging.read != nullptr) cudaEventDestroy(staging.read);
    }
  }

  // First all of add(), then send(), then at().
  void begin() { used_ = 0, parts_.clear(); }
  template <class T>
  size_t add(const T* from, size_t count) {
    parts_.push_back({from, count * sizeof(T), used_});
    const size_t at = used_;
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return at;
  }
  void send() {
    if (used_ > size_) grow();
    Staging& staging = ring_[next_++ % ring_.size()];
    if (const cudaError_t status = cudaEventQuery(staging.read); status == cudaErrorNotReady) {
      ++calls_.other_waits;
      check(cudaEventSynchronize(staging.read), "cudaEventSynchronize");
    } else {
      check(status, "cudaEventQuery");
    }
    for (const Part& part : parts_) {
      if (part.bytes > 0) std::memcpy(staging.data + part.at, part.from, part.bytes);
    }
    check(cudaMemcpyAsync(device_, staging.data, used_, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
    check(cudaEventRecord(staging.read, stream_), "cudaEventRecord");
  }
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(device_ + offset);
  }
  int generation() const { return generation_; }

 private:
  struct Part {
    const void* from;
    size_t bytes, at;
  };
  struct Staging {
    std::byte* data = nullptr;
    cudaEvent_t read = nullptr;  // the device has it
  };

  void grow() {
    ++calls_.other_waits;
    ++calls_.allocations;
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    check(cudaFree(device_), "cudaFree");
    size_ = 2 * used_;
    check(cudaMalloc(reinterpret_cast<void**>(&device_), size_), "cudaMalloc");
    for (Staging& staging : ring_) {
      check(cudaFreeHost(staging.data), "cudaFreeHost");
      check(cudaHostAlloc(reinterpret_cast<void**>(&staging.data), size_, cudaHostAllocDefault), "cudaHostAlloc");
      if (staging.read == nullptr) {
        check(cudaEventCreateWithFlags(&staging.read, cudaEventDisableTiming), "cudaEventCreate");
      }
    }
    ++generation_;
  }

  cudaStream_t stream_;
  HostCalls& calls_;
  std::vector<Part> parts_;
  size_t used_ = 0, size_ = 0;
  std::byte* device_ = nullptr;
  std::array<Staging, 8> ring_;  // the host is at most so many passes ahead: two a step, and a step
  size_t next_ = 0;
  int generation_ = 0;
};

}  // namespace onelane::cuda
