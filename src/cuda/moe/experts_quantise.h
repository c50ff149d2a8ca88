// Quantised activations as the experts' products take them (Activations, experts.h), written by a warp.
#pragma once

#include "cuda/linear/decode.h"
#include "cuda/moe/experts_units.h"

namespace onelane::cuda::moe {

// 128 values of a row, four neighbouring ones a lane: the code of the scale of the lane's block.
__device__ __forceinline__ uint32_t quad_scale(uint2 four, int block) {
  const float2 low = unpack_bf16(four.x), high = unpack_bf16(four.y);
  const float v[4] = {low.x, low.y, high.x, high.y};
  return fp8_scale(block == 128 ? block_amax<32>(v) : block_amax<8>(v));
}
// Their operands; `values`: where those of the quad begin.
__device__ __forceinline__ void store_quad(uint2 four, uint32_t scale, const ScaleFactors& factors, uint16_t* values) {
  const int lane = threadIdx.x % 32;
  const float2 low = unpack_bf16(four.x), high = unpack_bf16(four.y);
  uint32_t pairs[2];
  e4m3_to_f16(fp8_code(low.x, scale) | fp8_code(high.x, scale) << 8 | fp8_code(low.y, scale) << 16 |
                  fp8_code(high.y, scale) << 24,
              pairs);
  const uint32_t factor = factors.twice(scale);
  pairs[0] = ptx::multiply_f16(pairs[0], factor);
  pairs[1] = ptx::multiply_f16(pairs[1], factor);
  // The even lane of two has the first half of eight values, and takes 0 2 4 6, the odd one 1 3 5 7.
  const bool even = lane % 2 == 0;
  const uint32_t other = __shfl_xor_sync(0xffffffff, even ? pairs[1] : pairs[0], 1);
  reinterpret_cast<uint2*>(values)[lane] = even ? make_uint2(pairs[0], other) : make_uint2(other, pairs[1]);
}

// Quantises a segment of up to kRows rows, `quads` quads each; kAtOnce of them are asked for at once, and only longer
// segments are read twice. `load`: the lane's values of a row's quad; `values`, `unit`: where a row's are to be.
template <int kRows, int kAtOnce, class Load, class Values, class Unit>
__device__ __forceinline__ void quantise_segment(int rows, int quads, int block, const Load& load, const Values& values,
                                                 const Unit& unit) {
  uint2 four[kRows][kAtOnce] = {};
  uint32_t scale[kRows][kAtOnce], largest[kRows] = {};
  const auto read = [&](int base) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (r < rows && base + i < quads) four[r][i] = load(r, base + i);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (r < rows && base + i < quads) scale[r][i] = quad_scale(four[r][i], block);
      }
    }
  };
  for (int base = 0; base < quads; base += kAtOnce) {
    read(base);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (r < rows && base + i < quads) largest[r] = max(largest[r], scale[r][i]);
      }
    }
  }
  if (block == 32) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) largest[r] = __reduce_max_sync(0xffffffff, largest[r]);
  }
  for (int base = 0; base < quads; base += kAtOnce) {
    if (quads > kAtOnce) read(base);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const ScaleFactors factors(largest[r], kFp8Top);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (r < rows && base + i < quads) store_quad(four[r][i], scale[r][i], factors, values(r) + (base + i) * 128);
      }
    }
  }
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) *unit(r) = fp8_unit(largest[r]);
    }
  }
}

}  // namespace onelane::cuda::moe
