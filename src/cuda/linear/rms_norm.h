// RMS norm of a row by a block or a warp (kernels/reference/vector_ops.h).
#pragma once

#include "cuda/numerics.h"
#include "cuda/streams/collapse.h"

namespace onelane::cuda {

// What a row with this sum of squares is multiplied with: 1 / sqrt(squares / width + eps), rounded once. Where the
// float root is a guess at all, one step of Newton's takes it to some 43 bits: a tenth of the time of double's root and
// quotient, which all of a row's later values wait for.
__device__ __forceinline__ float rms_scale(double squares, int width, float eps) {
  const double mean = squares * (1.0 / width) + eps;
  if (!(mean > 1e-30 && mean < 1e30)) return static_cast<float>(1.0 / sqrt(mean));
  const double guess = rsqrtf(static_cast<float>(mean));
  return static_cast<float>(guess * fma(-0.5 * mean * guess, guess, 1.5));
}
// One value of a normed row, before it is rounded.
__device__ __forceinline__ float normed(float x, float scale, uint16_t weight) {
  return __fmul_rn(bf16_to_float(weight), __fmul_rn(x, scale));
}

// out = rmsnorm(x, weight), by all threads of a block; `out` may be `x`. `partial` as in block_sum().
__device__ __forceinline__ void rms_norm_row(const bf16* x, const bf16* weight, int width, float eps, bf16* out,
                                             float* partial) {
  constexpr int kHeld = 4;  // values of a thread that are read once
  float held[kHeld];
  uint16_t weights[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    held[j] = i < width ? bf16_to_float(x[i]) : 0.0f;
    weights[j] = i < width ? weight[i] : 0;
  }
  float squares = 0;
#pragma unroll
  for (const float value : held) squares = fmaf(value, value, squares);
  const int rest = threadIdx.x + kHeld * blockDim.x;
  for (int i = rest; i < width; i += blockDim.x) {
    const float value = bf16_to_float(x[i]);
    squares = fmaf(value, value, squares);
  }
  const float scale = rms_scale(block_sum(squares, partial), width, eps);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    if (i < width) out[i] = float_to_bf16(normed(held[j], scale, weights[j]));
  }
  for (int i = rest; i < width; i += blockDim.x) {
    out[i] = float_to_bf16(normed(bf16_to_float(x[i]), scale, weight[i]));
  }
}

}  // namespace onelane::cuda
