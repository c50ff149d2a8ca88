#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "attention/timing.h"

namespace onelane::bench {
namespace {

__global__ void empty_kernel() {}

double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace

void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fflush(stdout);
  std::fprintf(stderr, "attention_bench: %s: %s\n", call, cudaGetErrorString(error));
  std::_Exit(1);
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) CHECK_CUDA(cudaFree(data_));
}

void DeviceMemory::reserve(size_t bytes) {
  if (bytes <= bytes_) return;
  if (data_ != nullptr) CHECK_CUDA(cudaFree(data_));
  CHECK_CUDA(cudaMalloc(&data_, bytes));
  bytes_ = bytes;
}

Timer::Timer() {
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  CHECK_CUDA(cudaEventCreate(&begin_));
  CHECK_CUDA(cudaEventCreate(&end_));
}

Timer::~Timer() {
  CHECK_CUDA(cudaEventDestroy(begin_));
  CHECK_CUDA(cudaEventDestroy(end_));
  CHECK_CUDA(cudaStreamDestroy(stream_));
}

double Timer::node_us(const std::function<bool()>& enqueue, int nodes, double budget_ms) {
  constexpr int kFewest = 5;
  constexpr int kMost = 200;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CHECK_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  const bool enqueued = enqueue();
  const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
  if (!enqueued) {
    if (graph != nullptr) CHECK_CUDA(cudaGraphDestroy(graph));
    cudaGetLastError();  // of the capture that was broken off
    return -1;
  }
  check_cuda(ended, "cudaStreamEndCapture");
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CHECK_CUDA(cudaGraphLaunch(executable, stream_));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  std::vector<double> samples;
  for (double spent_ms = 0; static_cast<int>(samples.size()) < kMost;) {
    CHECK_CUDA(cudaEventRecord(begin_, stream_));
    CHECK_CUDA(cudaGraphLaunch(executable, stream_));
    CHECK_CUDA(cudaEventRecord(end_, stream_));
    CHECK_CUDA(cudaEventSynchronize(end_));
    float ms = 0;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
    samples.push_back(1000.0 * ms / nodes);
    spent_ms += ms;
    if (spent_ms >= budget_ms && static_cast<int>(samples.size()) >= kFewest) break;
  }
  CHECK_CUDA(cudaGraphExecDestroy(executable));
  CHECK_CUDA(cudaGraphDestroy(graph));
  return median(std::move(samples));
}

double Timer::empty_node_us() {
  constexpr int kNodes = 1000;
  return node_us(
      [&] {
        for (int i = 0; i < kNodes; ++i) empty_kernel<<<1, 32, 0, stream_>>>();
        CHECK_CUDA(cudaGetLastError());
        return true;
      },
      kNodes);
}

double Timer::copy_bytes_per_second() {
  size_t free = 0, total = 0;
  CHECK_CUDA(cudaMemGetInfo(&free, &total));
  const size_t bytes = std::min(size_t{2} << 30, free / 8 / 4096 * 4096);
  const DeviceMemory from(bytes), to(bytes);
  CHECK_CUDA(cudaMemsetAsync(from.data(), 0x5a, bytes, stream_));
  std::vector<double> samples;
  for (int i = 0; i < 8; ++i) {
    CHECK_CUDA(cudaEventRecord(begin_, stream_));
    CHECK_CUDA(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream_));
    CHECK_CUDA(cudaEventRecord(end_, stream_));
    CHECK_CUDA(cudaEventSynchronize(end_));
    float ms = 0;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
    if (i > 0) samples.push_back(2.0 * static_cast<double>(bytes) / (1e-3 * ms));
  }
  return median(std::move(samples));
}

}  // namespace onelane::bench
