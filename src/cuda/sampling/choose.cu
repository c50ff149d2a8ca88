// The best token of a row of logits: parts of the row first, then over the parts.
#include "cuda/stages.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kParts = 32;  // blocks a row
constexpr int kAtOnce = 8;  // logits that a thread asks for at once

// The better of two comes first in the order of values, then of ids. What is not finite is worse than nothing: it
// spoils the row.
struct Best {
  float value;
  int32_t id;  // -1: not finite, kNone: nothing yet
};
constexpr int32_t kNone = 0x7fffffff;

__device__ __forceinline__ Best better(Best a, Best b) {
  if (a.id < 0 || b.id < 0) return {0, -1};
  if (a.id == kNone || b.id == kNone) return a.id == kNone ? b : a;
  return a.value > b.value || (a.value == b.value && a.id < b.id) ? a : b;
}

__device__ __forceinline__ Best best_of_warp(Best best) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Best other = {__shfl_xor_sync(0xffffffff, best.value, distance),
                        __shfl_xor_sync(0xffffffff, best.id, distance)};
    best = better(best, other);
  }
  return best;
}

__global__ void __launch_bounds__(kThreads) choose_in_part(const float* logits, int vocab, Best* parts) {
  __shared__ Best of_warp[kThreads / 32];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const float* row = logits + static_cast<int64_t>(blockIdx.y) * vocab;
  Best best = {0, kNone};
  constexpr int kStep = kParts * kThreads;
  for (int first = blockIdx.x * kThreads + threadIdx.x; first < vocab; first += kAtOnce * kStep) {
    float values[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) values[j] = first + j * kStep < vocab ? __ldcg(row + first + j * kStep) : 0.0f;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int id = first + j * kStep;
      if (id < vocab) best = better(best, {values[j], isfinite(values[j]) ? id : -1});
    }
  }
  best = best_of_warp(best);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = best_of_warp(threadIdx.x < kThreads / 32 ? of_warp[threadIdx.x] : Best{0, kNone});
  if (threadIdx.x == 0) parts[blockIdx.y * kParts + blockIdx.x] = best;
}

__global__ void __launch_bounds__(32) choose_among_parts(const Best* parts, int32_t* ids) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const Best best = best_of_warp(threadIdx.x < kParts ? parts[blockIdx.x * kParts + threadIdx.x] : Best{0, kNone});
  if (threadIdx.x == 0) ids[blockIdx.x] = best.id;
}

}  // namespace

void choose(const Stage& stage, const ChooseArgs& args) {
  Best* parts = stage.workspace->take<Best>(static_cast<size_t>(args.count) * kParts);
  launch(stage, "choose_in_part", choose_in_part, dim3(kParts, args.count), dim3(kThreads), 0, args.logits, args.vocab,
         parts);
  launch(stage, "choose_among_parts", choose_among_parts, dim3(args.count), dim3(32), 0, parts, args.best);
}

}  // namespace onelane::cuda
