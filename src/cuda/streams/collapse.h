// Collapsing the four copies of a row's stream, and RMS norms: pieces that several stages' kernels are made of.
#pragma once

#include "cuda/numerics.h"
#include "kernels/kernels.h"

namespace onelane::cuda {

// The sum of `x` over the threads of a block, in every thread; whole warps, at most 32. `partial` is float [32] of
// shared memory that nobody else uses until the block's next barrier. The order is that of the block's size alone.
__device__ __forceinline__ float block_sum(float x, float* partial) {
  x = warp_sum(x);
  const int warps = (blockDim.x + 31) / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += partial[i];
  return sum;
}

// round(sum_j w[j] X[j][d]) for the two dims 2 i, 2 i + 1 of a row's stream [4, dim].
__device__ __forceinline__ float2 collapse_two(const bf16* stream, int dim, const float (&w)[kStreams], int i) {
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const float2 x = unpack_bf16(reinterpret_cast<const uint32_t*>(stream + static_cast<int64_t>(j) * dim)[i]);
    sum.x += w[j] * x.x;
    sum.y += w[j] * x.y;
  }
  return make_float2(round_bf16(sum.x), round_bf16(sum.y));
}

}  // namespace onelane::cuda
