// Collapsing and expanding the four copies of a row's stream, sums over a block and over a row's experts: pieces that
// several stages' kernels are made of.
#pragma once

#include "cuda/numerics.h"
#include "cuda/stages.h"

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

// round(sum_j w[j] X[j][d]) for the two dims that word x[j] of copy j holds.
__device__ __forceinline__ uint32_t collapse_words(const uint32_t (&x)[kStreams], const float (&w)[kStreams]) {
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const float2 two = unpack_bf16(x[j]);
    sum.x += w[j] * two.x;
    sum.y += w[j] * two.y;
  }
  return ptx::pack_bf16(sum.x, sum.y);
}

// Copy k of the expanded stream for the same two dims: round(post[k] y + sum_j comb[j][k] X[j]).
__device__ __forceinline__ uint32_t expand_words(const uint32_t (&x)[kStreams], uint32_t y, float post,
                                                 const float (&comb)[kStreams]) {
  const float2 of_y = unpack_bf16(y);
  float2 sum = make_float2(post * of_y.x, post * of_y.y);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const float2 two = unpack_bf16(x[j]);
    sum.x += comb[j] * two.x;
    sum.y += comb[j] * two.y;
  }
  return ptx::pack_bf16(sum.x, sum.y);
}

// The collapsed dims 2 i, 2 i + 1 of a row's stream [4, dim].
__device__ __forceinline__ float2 collapse_two(const bf16* stream, int dim, const float (&w)[kStreams], int i) {
  uint32_t x[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j)
    x[j] = reinterpret_cast<const uint32_t*>(stream + static_cast<int64_t>(j) * dim)[i];
  return unpack_bf16(collapse_words(x, w));
}

// Eight neighbouring dims of each copy: a thread's part of a stream where the copies are read as whole words.
struct EightDims {
  uint4 copy[kStreams];
};
__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ void words_of(const EightDims& dims, int i, uint32_t (&x)[kStreams]) {
#pragma unroll
  for (int j = 0; j < kStreams; ++j) x[j] = word_of(dims.copy[j], i);
}
// Past the first-level cache. Dims [8 i, 8 i + 8).
__device__ __forceinline__ EightDims load_eight(const bf16* stream, int dim, int i) {
  EightDims dims;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    dims.copy[j] = __ldcg(reinterpret_cast<const uint4*>(stream + static_cast<int64_t>(j) * dim) + i);
  }
  return dims;
}
__device__ __forceinline__ uint4 collapse_eight(const EightDims& dims, const float (&w)[kStreams]) {
  uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t x[kStreams];
    words_of(dims, i, x);
    out[i] = collapse_words(x, w);
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

// Eight dims of y. What the kernel ahead made, so not to be asked for before its end.
__device__ __forceinline__ uint4 sum_of_pairs(const PairSum& sum, int rows, int64_t row, int eight) {
  constexpr int kAtOnce = 8;
  const int eights = sum.dim / 8;
  const auto* pairs = reinterpret_cast<const uint4*>(sum.pairs) + eight;
  float total[8] = {};
  for (int first = 0; first <= sum.topk; first += kAtOnce) {
    uint4 part[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int slot = first + i;
      const int64_t pair = slot < sum.topk ? row * sum.topk + slot : static_cast<int64_t>(rows) * sum.topk + row;
      if (slot <= sum.topk) part[i] = __ldcg(pairs + pair * eights);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i > sum.topk) break;
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float2 two = unpack_bf16(word_of(part[i], word));
        total[2 * word] += two.x;
        total[2 * word + 1] += two.y;
      }
    }
  }
  return make_uint4(ptx::pack_bf16(total[0], total[1]), ptx::pack_bf16(total[2], total[3]),
                    ptx::pack_bf16(total[4], total[5]), ptx::pack_bf16(total[6], total[7]));
}

}  // namespace onelane::cuda
