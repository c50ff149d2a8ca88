// Weights and quantised activations as operands of 16-bit float products, exactly: e4m3 fits f16, and e2m1 does when
// taken 2^-14 times; both fit bf16, for activations that are not quantised. Scales are powers of two and are applied to
// sums of one block, which is exact as well.
#pragma once

#include <cstdint>

#include "cuda/numerics.h"
#include "cuda/ptx/mma.h"
#include "kernels/kernels.h"

namespace onelane::cuda {

// Four e4m3 bytes -> two pairs of f16, in order.
__device__ __forceinline__ void e4m3_to_f16(uint32_t bytes, uint32_t (&out)[2]) {
#if __CUDA_ARCH__ >= 890
  ptx::e4m3_to_f16(bytes, out);
#else
  // Exponent and mantissa where those of an f16 are: the value times 2^-8.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t pair = __byte_perm(bytes, 0, i == 0 ? 0x1404 : 0x3424);  // each in the upper byte of a half
    const uint32_t small = (pair & 0x80008000u) | (pair >> 1 & 0x3f803f80u);
    out[i] = ptx::multiply_f16(small, 0x5c005c00u);
  }
#endif
}

// Eight e2m1 nibbles, the first in the lowest bits -> four pairs of f16 that are 2^-14 times the values, subnormals
// included. Pair i is nibbles i and i + 4: an order of k, which the other operand must have as well.
__device__ __forceinline__ void e2m1_to_f16(uint32_t nibbles, uint32_t (&out)[4]) {
  // A nibble at bits 12 to 15: its sign is in place, its three other bits go down to where exponent and mantissa meet.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t up = nibbles << (12 - 4 * i);
    out[i] = (up & 0x80008000u) | ((up & 0x70007000u) >> 3);
  }
}
inline constexpr float kE2m1Unit = 0x1p14f;  // what a product with one such operand is to be multiplied with

// Added to a product it changes nothing; a product alone is an instruction of Hopper and later.
inline constexpr uint32_t kMinusZero = 0x80008000u;

// Four e4m3 bytes -> two pairs of bf16, in order. (The NaN code counts as 480 here.)
__device__ __forceinline__ void e4m3_to_bf16(uint32_t bytes, uint32_t (&out)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // Each byte in the lower half of 16 bits, its sign above; then moved to where exponent and mantissa of a bf16 are:
    // the value times 2^-120.
    const uint32_t small = (ptx::permute(bytes, 0, i == 0 ? 0x9180 : 0xb3a2) << 4) & 0x87f087f0u;
    out[i] = ptx::fma_bf16(small, 0x7b807b80u, kMinusZero);
  }
}

// Eight e2m1 nibbles -> four pairs of bf16, values as they are; pair i is nibbles i and i + 4.
__device__ __forceinline__ void e2m1_to_bf16(uint32_t nibbles, uint32_t (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t up = nibbles << (12 - 4 * i);
    out[i] = ptx::fma_bf16((up & 0x80008000u) | (up >> 6 & 0x01c001c0u), 0x7e807e80u, kMinusZero);
  }
}

// total += a product [16, 8] of one block, as mma has it, times the scales of rows g and g + 8 and of columns 2 t and
// 2 t + 1.
__device__ __forceinline__ void promote(float (&total)[4], const float (&sum)[4], float low, float high,
                                        const float2& columns) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    total[i] = __fmaf_rn(sum[i], __fmul_rn(i < 2 ? low : high, i % 2 == 0 ? columns.x : columns.y), total[i]);
  }
}

// The value of element `at` of a matrix, without its scale: for what is not fast.
__device__ __forceinline__ float code_value(Matrix::Kind kind, const std::byte* data, int64_t at) {
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(data);
  if (kind == Matrix::Kind::kBf16) return bf16_to_float(reinterpret_cast<const uint16_t*>(data)[at]);
  if (kind == Matrix::Kind::kFp8) return e4m3_to_float(codes[at]);
  return e2m1_to_float(codes[at / 2] >> (at % 2 * 4) & 15);
}

}  // namespace onelane::cuda
