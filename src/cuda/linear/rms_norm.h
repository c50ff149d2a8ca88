// RMS norm of a row by a block or a warp (kernels/reference/vector_ops.h).
#pragma once

#include "cuda/numerics.h"
#include "cuda/streams/collapse.h"

namespace onelane::cuda {

// What a row with this sum of squares is multiplied with.
__device__ __forceinline__ float rms_scale(double squares, int width, float eps) {
  return static_cast<float>(1.0 / sqrt(squares / width + eps));
}
// One value of a normed row, before it is rounded.
__device__ __forceinline__ float normed(float x, float scale, uint16_t weight) {
  return __fmul_rn(bf16_to_float(weight), __fmul_rn(x, scale));
}

// out = rmsnorm(x, weight), by all threads of a block; `out` may be `x`. `partial` as in block_sum().
__device__ __forceinline__ void rms_norm_row(const bf16* x, const bf16* weight, int width, float eps, bf16* out,
                                             float* partial) {
  float squares = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const float value = bf16_to_float(x[i]);
    squares = fmaf(value, value, squares);
  }
  const float scale = rms_scale(block_sum(squares, partial), width, eps);
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    out[i] = float_to_bf16(normed(bf16_to_float(x[i]), scale, weight[i]));
  }
}

}  // namespace onelane::cuda
