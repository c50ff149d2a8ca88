// Probabilities as all kernels here make them: P = 2^(S - M), M the largest score so far, rounded up to an integer, so
// that moving from one M to another is a shift of exponents (docs/attention.md). For that S is rounded to 2^-19, 2^-18
// from 8 on and so on: then S - M is exact, or P less than 2^-24 beside the largest.
#pragma once

#include "cuda/numerics.h"
#include "cuda/ptx/memory.h"

namespace onelane::cuda {

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, distance));
  return x;
}

// S, given the product of query and record.
__device__ __forceinline__ float score_of(float product, float scale_log2) {
  constexpr float kGrid = 24;  // floats about it are 2^-19 apart
  return __fadd_rn(__fmaf_rn(product, scale_log2, kGrid), -kGrid);
}

// A score's part in the largest. A NaN counts as very small there, so that it stays in P.
__device__ __forceinline__ float for_largest(float score) { return fmaxf(score, -1e30f); }

// Raises M (`most`, -inf before the first entry) to what `largest` asks for. base: what to take from scores; shift: the
// factor of what was summed against the last M.
struct Raised {
  float base, shift;
};
__device__ __forceinline__ Raised raise(float& most, float largest) {
  const float now = fmaxf(most, ceilf(largest));
  const float shift = now == most ? 1.0f : ptx::exp2_approx(most - now);
  most = now;
  return {now == -INFINITY ? 0.0f : now, shift};
}

// Where the score of an entry lies in a head's row of shared memory, so that neither 8 entries by 4 pairs of heads (2
// t, + 1) nor a row's quads of entries meet in a bank.
__device__ __forceinline__ int score_place(int head, int entry) { return entry ^ (head / 2 % 4 * 8); }

}  // namespace onelane::cuda
