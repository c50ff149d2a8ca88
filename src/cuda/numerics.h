// The number formats on the device, to the bit what numerics/ says of them, and records written by a warp.
#pragma once

#include <cstdint>

#include "cuda/ptx/memory.h"
#include "numerics/records.h"

namespace onelane::cuda {

__device__ __forceinline__ float bf16_to_float(uint16_t code) { return __uint_as_float(uint32_t{code} << 16); }
// The two of a 32-bit word, lower half first.
__device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
__device__ __forceinline__ uint16_t float_to_bf16(float x) { return static_cast<uint16_t>(ptx::pack_bf16(x, 0.0f)); }
__device__ __forceinline__ float round_bf16(float x) { return bf16_to_float(float_to_bf16(x)); }

// To e4m3, to nearest even, saturating; NaN is NaN.
__device__ __forceinline__ uint32_t float_to_e4m3(float x) {
#if __CUDA_ARCH__ >= 890
  return ptx::pack_e4m3(x, 0.0f) & 0xff;
#else
  const uint32_t sign = __float_as_uint(x) >> 24 & 0x80;
  if (isnan(x)) return sign | 0x7f;
  const float magnitude = fminf(fabsf(x), 448.0f);
  if (magnitude < 0x1p-6f) return sign | static_cast<uint32_t>(__float2int_rn(magnitude * 512));  // subnormals: 2^-9
  const uint32_t bits = __float_as_uint(magnitude);
  return sign | (((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3));
#endif
}
__device__ __forceinline__ uint32_t pack_e4m3(float low, float high) {
#if __CUDA_ARCH__ >= 890
  return ptx::pack_e4m3(low, high);
#else
  return float_to_e4m3(low) | float_to_e4m3(high) << 8;
#endif
}
__device__ __forceinline__ float e4m3_to_float(uint32_t code) {
  // As a float of exponent bias 7: the value times 2^-120, subnormals included.
  const float magnitude = __uint_as_float((code & 0x7f) << 20) * 0x1p120f;
  const float value = (code & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : magnitude;
  return (code & 0x80) != 0 ? -value : value;
}

// Nearest, ties to the even code, saturating; NaN is 0.
__device__ __forceinline__ uint32_t float_to_e2m1(float x) {
  const uint32_t sign = __float_as_uint(x) >> 28 & 8;
  const float m = fabsf(x);
  // Between two codes: half way belongs to the even one.
  const uint32_t code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
  return code == 0 && isnan(x) ? 0 : sign | code;
}
__device__ __forceinline__ float e2m1_to_float(uint32_t code) {
  const float magnitude = __uint_as_float((code & 7) << 22) * 0x1p126f;
  return (code & 8) != 0 ? -magnitude : magnitude;
}

__device__ __forceinline__ float e8m0_to_float(uint32_t code) {
  if (code == 255) return __uint_as_float(0x7fc00000u);
  return __uint_as_float(code == 0 ? 0x00400000u : code << 23);
}
// Smallest power of two not below `x` > 0; what is beyond 2^127, infinite or NaN gives 255.
__device__ __forceinline__ uint32_t ceil_e8m0(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t code = (bits >> 23) + ((bits & 0x7fffff) != 0);
  // Below 2^-126 everything is subnormal: 2^-127 is code 0.
  if (bits <= 0x00400000u) return 0;
  return code < 255 ? code : 255;
}
// 1 / 2^(code - 127), exact.
__device__ __forceinline__ float inverse_e8m0(uint32_t code) {
  if (code == 255) return __uint_as_float(0x7fc00000u);
  return __uint_as_float(code == 254 ? 0x00400000u : (254 - code) << 23);
}

// Largest magnitude of a block whose values kLanes neighbouring lanes hold, in all of them; NaN if any is not finite.
template <int kLanes, int kCount>
__device__ __forceinline__ float block_amax(const float (&v)[kCount]) {
  float amax = 0;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    finite &= fabsf(v[i]) <= 3.402823466e38f;
    amax = fmaxf(amax, fabsf(v[i]));
  }
  if (!finite) amax = __uint_as_float(0x7f800000u);
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffff, amax, distance));
  }
  return amax <= 3.402823466e38f ? amax : __uint_as_float(0x7fc00000u);
}

// The scale codes of blocks of this amax (numerics/quantize.h, A.1 and A.3).
__device__ __forceinline__ uint32_t fp8_scale(float amax) {
  return isnan(amax) ? 255 : ceil_e8m0(fmaxf(amax, 1e-4f) * (1.0f / 448.0f));
}
__device__ __forceinline__ uint32_t mxfp4_scale(float amax) {
  return isnan(amax) ? 255 : ceil_e8m0(fmaxf(amax, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
}

// The e4m3 code of a value of a block; of a block with a NaN scale the NaN code.
__device__ __forceinline__ uint32_t fp8_code(float x, uint32_t scale) {
  return scale == 255 ? 0x7f : float_to_e4m3(x * inverse_e8m0(scale));
}

// Encodes a record (numerics/records.h encode_record). All 32 lanes of a warp: lane l has values [n l, n l + n), n = 16
// of the 512-wide formats, 4 of kIndexMxfp4.
template <RecordFormat kFormat, int kCount>
__device__ __forceinline__ void encode_record(const float (&v)[kCount], int lane, uint8_t* data, uint8_t* scales) {
  static_assert(kCount * 32 == record_width(kFormat));
  if constexpr (kFormat == RecordFormat::kV4Fp8 || kFormat == RecordFormat::kV41Fp8) {
    constexpr int kLanes = kFormat == RecordFormat::kV4Fp8 ? 4 : 2;
    const uint32_t scale = fp8_scale(block_amax<kLanes>(v));
    if (kFormat == RecordFormat::kV4Fp8 && lane >= 28) {  // the rope part, as it is
      uint16_t* to = reinterpret_cast<uint16_t*>(data + 448) + (lane - 28) * 16;
#pragma unroll
      for (int i = 0; i < 16; ++i) to[i] = float_to_bf16(v[i]);
      if (lane == 28) scales[7] = 0;
      return;
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) data[lane * 16 + i] = static_cast<uint8_t>(fp8_code(v[i], scale));
    if (lane % kLanes == 0) scales[lane / kLanes] = static_cast<uint8_t>(scale);
  } else if constexpr (kFormat == RecordFormat::kV41Nvfp4) {
    const float amax = block_amax<1>(v);
    const uint32_t scale = isnan(amax) ? 0x7f : float_to_e4m3(fmaxf(amax, 6.0f / 512.0f) / 6.0f);
    const float value = e4m3_to_float(scale);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t pair = float_to_e2m1(v[2 * i] / value) | float_to_e2m1(v[2 * i + 1] / value) << 4;
      data[lane * 8 + i] = isnan(amax) ? 0 : static_cast<uint8_t>(pair);
    }
    scales[lane] = static_cast<uint8_t>(scale);
  } else {
    const float amax = block_amax<8>(v);
    const uint32_t scale = mxfp4_scale(amax);
    const float inverse = inverse_e8m0(scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t pair = float_to_e2m1(v[2 * i] * inverse) | float_to_e2m1(v[2 * i + 1] * inverse) << 4;
      data[lane * 2 + i] = isnan(amax) ? 0 : static_cast<uint8_t>(pair);
    }
    if (lane % 8 == 0) scales[lane / 8] = static_cast<uint8_t>(scale);
  }
}

// For all threads of a warp: the sum in every lane, added in the same order whatever the caller.
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffff, x, distance);
  return x;
}

}  // namespace onelane::cuda
