// See stage.h.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cuda/stage.h"
#include "device/buffer.h"

namespace onelane::cuda {
namespace {

// As kernels/rope.cc: the angle in float, its cosine and sine in double.
__global__ void fill_angles(const int32_t* positions, int rows, RopeFrequencies rope, float* angles) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = i / (kRopeDim / 2), pair = i % (kRopeDim / 2);
  if (row >= rows) return;
  const double angle = __fmul_rn(static_cast<float>(positions[row]), rope.frequency[pair]);
  angles[row * kRopeDim + pair] = static_cast<float>(cos(angle));
  angles[row * kRopeDim + kRopeDim / 2 + pair] = static_cast<float>(sin(angle));
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  char message[256];
  std::snprintf(message, sizeof(message), "%s: %s (%s)", what, cudaGetErrorName(status), cudaGetErrorString(status));
  check_failed("cudaSuccess", __FILE__, __LINE__, message);
}

Workspace::~Workspace() {
  for (std::byte* data : outgrown_) cudaFree(data);
  cudaFree(data_);
}

void Workspace::reset() {
  used_ = 0;
  if (outgrown_.empty()) return;
  ++calls_.other_waits;
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  ++calls_.allocations;
  for (std::byte* data : outgrown_) check(cudaFree(data), "cudaFree");
  outgrown_.clear();
}

std::byte* Workspace::take_bytes(size_t bytes) {
  constexpr size_t kAlignment = 256;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (used_ + bytes > size_) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream_, &capturing), "cudaStreamIsCapturing");
    ONELANE_CHECK(capturing == cudaStreamCaptureStatusNone, "a graph is captured after a step of its size has run");
    if (data_ != nullptr) outgrown_.push_back(data_);
    size_ = std::max(2 * size_, used_ + bytes);  // room for what came before as well: the next time it comes here
    ++generation_;
    ++calls_.allocations;
    check(cudaMalloc(reinterpret_cast<void**>(&data_), size_), "cudaMalloc of scratch");
    // As Buffer does: what a kernel reads before anyone wrote it is zero, or NaN where fences are on.
    check(cudaMemsetAsync(data_, fences_on() ? 0xff : 0, size_, stream_), "cudaMemsetAsync of scratch");
  }
  std::byte* data = data_ + used_;
  used_ += bytes;
  return data;
}

RowAngles::~RowAngles() {
  for (const Table& table : tables_) cudaFree(table.angles);
}

void RowAngles::begin() {
  for (Table& table : tables_) table.current = false;
}

const float* RowAngles::get(const Stage& stage, const RopeFrequencies& rope) {
  const auto found = std::find_if(tables_.begin(), tables_.end(), [&](const Table& table) {
    return std::memcmp(&table.rope, &rope, sizeof(rope)) == 0;
  });
  Table& table = found != tables_.end() ? *found : tables_.emplace_back(Table{.rope = rope});
  if (table.current) return table.angles;
  const int rows = stage.rows.count;
  if (rows > table.capacity) {
    ++stage.calls->other_waits;
    ++stage.calls->allocations;
    check(cudaStreamSynchronize(stage.stream), "cudaStreamSynchronize");
    check(cudaFree(table.angles), "cudaFree");
    table.capacity = std::max(rows, 2 * table.capacity);
    ++generation_;
    check(cudaMalloc(reinterpret_cast<void**>(&table.angles), sizeof(float) * kRopeDim * table.capacity), "cudaMalloc");
  }
  constexpr int kThreads = 128;
  const int count = rows * (kRopeDim / 2);
  launch(stage, "fill_angles", fill_angles, dim3((count + kThreads - 1) / kThreads), dim3(kThreads), 0,
         stage.rows.position, rows, rope, table.angles);
  table.current = true;
  return table.angles;
}

}  // namespace onelane::cuda
