// Times on the device for attention_bench: what one node of a CUDA graph costs when many stand in a row, as the layers
// of a decode step do.
#pragma once

#include <cstddef>
#include <functional>

#include <cuda_runtime.h>

namespace onelane::bench {

// Ends the program with a sentence unless the call went well.
void check_cuda(cudaError_t error, const char* call);
#define CHECK_CUDA(call) ::onelane::bench::check_cuda(call, #call)

class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes) { reserve(bytes); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();
  // At least so many bytes; what was there is lost if it grows.
  void reserve(size_t bytes);
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class Timer {
 public:
  Timer();
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  cudaStream_t stream() const { return stream_; }

  // Captures what `enqueue` puts on stream() (`nodes` calls), replays it for about `budget_ms` and at least five times
  // after one that does not count; the median replay divided by `nodes`. Negative when enqueue() says false.
  double node_us(const std::function<bool()>& enqueue, int nodes, double budget_ms = 20);

  // An empty kernel as a graph node: no kernel can cost less.
  double empty_node_us();

  // Bytes read plus bytes written per second by a device copy of 2 GiB, or of an eighth of the free memory.
  double copy_bytes_per_second();

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace onelane::bench
