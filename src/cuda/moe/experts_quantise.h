// Quantised activations as the experts' products take them (Activations, experts.h), written by a warp.
#pragma once

#include "cuda/linear/decode.h"
#include "cuda/moe/experts.h"

namespace onelane::cuda::moe {

// 128 values of a row, four neighbouring ones a lane; `values` and `scales`: where they begin.
__device__ __forceinline__ void quantise_quad(uint2 four, int block, uint16_t* values, float* scales) {
  const int lane = threadIdx.x % 32;
  const float2 low = unpack_bf16(four.x), high = unpack_bf16(four.y);
  const float v[4] = {low.x, low.y, high.x, high.y};
  const uint32_t scale = fp8_scale(block == 128 ? block_amax<32>(v) : block_amax<8>(v));
  uint32_t pairs[2];
  e4m3_to_f16(
      fp8_code(v[0], scale) | fp8_code(v[2], scale) << 8 | fp8_code(v[1], scale) << 16 | fp8_code(v[3], scale) << 24,
      pairs);
  // The even lane of two has the first half of eight values, and takes 0 2 4 6, the odd one 1 3 5 7.
  const bool even = lane % 2 == 0;
  const uint32_t other = __shfl_xor_sync(0xffffffff, even ? pairs[1] : pairs[0], 1);
  reinterpret_cast<uint2*>(values)[lane] = even ? make_uint2(pairs[0], other) : make_uint2(other, pairs[1]);
  if (4 * lane % block == 0) scales[4 * lane / block] = e8m0_to_float(scale);
}

}  // namespace onelane::cuda::moe
