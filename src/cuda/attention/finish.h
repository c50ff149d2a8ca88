// From the sums of a row's head to what is stored: sink, inverse RoPE, FP8 cast, lse. For any device from compute
// capability 8.0 on.
//
// A lane has four dims in a row; eight neighbouring lanes have the 32 that share a scale.
#pragma once

#include <cstdint>

#include "cuda/attention/cluster.h"
#include "cuda/numerics.h"
#include "cuda/ptx/memory.h"

namespace onelane::cuda {

inline constexpr int kFirstRotated = ONELANE_ATTENTION_DIM - ONELANE_ATTENTION_ROPE_DIM;

__device__ __forceinline__ bool is_rotated(const AttentionParams& p, int dim) {
  return p.positions != nullptr && dim >= kFirstRotated;
}

// Cosines and sines of the lane's two pairs, if they are rotated.
struct Rotation {
  float cosine[2] = {}, sine[2] = {};
};
__device__ __forceinline__ Rotation load_rotation(const AttentionParams& p, int row, int dim) {
  Rotation rotation;
  if (!is_rotated(p, dim)) return rotation;
  const int64_t position = min(max(__ldcg(p.positions + row), 0), p.angles_count - 1);
  const float* angles = p.angles + position * ONELANE_ATTENTION_ROPE_DIM + (dim - kFirstRotated) / 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    rotation.cosine[i] = __ldcg(angles + i);
    rotation.sine[i] = __ldcg(angles + ONELANE_ATTENTION_ROPE_DIM / 2 + i);
  }
  return rotation;
}

__device__ __forceinline__ float load_sink(const AttentionParams& p, int head) {
  return p.sink == nullptr ? -INFINITY : __ldcg(p.sink + head);
}

// Where an output value and the scale of its chunk go, in values and in bytes (onelane_attention_output; layout.h for
// the host).
struct OutputPlace {
  int64_t value, scale;
};
__device__ __forceinline__ OutputPlace output_place(const AttentionParams& p, int row, int head, int dim) {
  constexpr int kChunks = ONELANE_ATTENTION_DIM / 32;
  const int64_t head_row = static_cast<int64_t>(row) * p.heads + head;
  const int chunk = dim / 32;
  if (p.output != ONELANE_OUT_FP8_GROUPED) return {head_row * ONELANE_ATTENTION_DIM + dim, head_row * kChunks + chunk};
  // What does not depend on dim apart, for loops over it.
  const int64_t padded_rows = (p.rows + 3) / 4 * 4;
  const OutputPlace first = {head_row / 8 * (kChunks * 8 * 32) + head % 8 * 32,
                             ((head / 8 * 32 + head % 8 / 4) * padded_rows + row) * 4 + head % 4};
  return {first.value + chunk * 256 + dim % 32, first.scale + chunk * padded_rows * 8};
}

// `sums` are those of 2^(score - most) * record over all entries, `total` that of 2^(score - most); `most` is -inf for
// a row without entries. All lanes of a warp call it for one head.
__device__ __forceinline__ void finish(const AttentionParams& p, int row, int head, int dim, float4 sums, float most,
                                       float total, float sink, const Rotation& rotation) {
  const bool empty = most == -INFINITY;
  // A sink far above the scores makes the denominator infinite and the output zero, as it should be.
  const float inverse = 1.0f / (total + ptx::exp2_approx(sink * 1.4426950408889634f - most));
  float value[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
  for (float& v : value) v = empty ? 0.0f : v * inverse;
  const int64_t head_row = static_cast<int64_t>(row) * p.heads + head;
  if (p.lse != nullptr && dim == 0) p.lse[head_row] = empty ? INFINITY : (most + log2f(total)) * 0.6931471805599453f;
  if (is_rotated(p, dim)) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float x = value[2 * i], y = value[2 * i + 1];
      value[2 * i] = x * rotation.cosine[i] + y * rotation.sine[i];
      value[2 * i + 1] = y * rotation.cosine[i] - x * rotation.sine[i];
    }
  }
  const OutputPlace place = output_place(p, row, head, dim);
  if (p.output == ONELANE_OUT_BF16) {
    *reinterpret_cast<uint2*>(p.out + place.value * 2) =
        make_uint2(ptx::pack_bf16(value[0], value[1]), ptx::pack_bf16(value[2], value[3]));
    return;
  }
  float magnitude = fmaxf(fmaxf(fabsf(value[0]), fabsf(value[1])), fmaxf(fabsf(value[2]), fabsf(value[3])));
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) {
    magnitude = fmaxf(magnitude, __shfl_xor_sync(0xffffffff, magnitude, distance));
  }
  // 2^ceil(log2(x)) by its bits.
  const uint32_t bits = __float_as_uint(__fdiv_rn(fmaxf(magnitude, 1e-4f), 448.0f));
  const uint32_t code = ((bits - 1) >> 23) + 1;
  const float to_codes = __uint_as_float((254 - code) << 23);
  const uint32_t codes =
      pack_e4m3(value[0] * to_codes, value[1] * to_codes) | pack_e4m3(value[2] * to_codes, value[3] * to_codes) << 16;
  *reinterpret_cast<uint32_t*>(p.out + place.value) = codes;
  if (dim % 32 == 0) p.out_scales[place.scale] = static_cast<uint8_t>(code);
}

}  // namespace onelane::cuda
