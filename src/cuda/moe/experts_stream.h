// A stage's products, by a warp: from its slot of the ring (experts_copy.h) to running totals.
//
// One block's products are summed by two m16n8k16 of f16 operands, which hold all codes exactly, and added to the total
// after multiplication with both scales; e2m1 weights enter as e4m3, 2^-6 times. In quads a weight scale of the NaN
// code acts as infinity.
#pragma once

#include "cuda/linear/decode.h"
#include "cuda/moe/experts_copy.h"
#include "cuda/ptx/mma.h"

namespace onelane::cuda::moe {

// e2m1 -> e4m3 of 2^-6 times the value, even and odd nibbles.
__device__ __forceinline__ uint32_t lower_e2m1_to_e4m3(uint32_t v) {
  return (v << 4 & 0x80808080u) | (v << 2 & 0x1c1c1c1cu);
}
__device__ __forceinline__ uint32_t upper_e2m1_to_e4m3(uint32_t v) {
  return (v & 0x80808080u) | (v >> 2 & 0x1c1c1c1cu);
}
inline constexpr float kE2m1AsE4m3 = 64.0f;

// Totals of a warp, [two times 16 rows, 8 columns a group], as mma has them.
template <int kGroups>
struct Totals {
  float of[2][kGroups][4];
};

// A block's weights of one lane as f16: [m][even, odd][as mma has them].
struct WeightBlock {
  uint32_t a[2][2][4];

  // From e4m3: rows g and g + 8 of both times 16 rows.
  __device__ __forceinline__ WeightBlock(const uint32_t (&even)[2][2], const uint32_t (&odd)[2][2]) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t pairs[2];
        e4m3_to_f16(even[m][half], pairs);
        a[m][0][half] = pairs[0], a[m][0][half + 2] = pairs[1];
        e4m3_to_f16(odd[m][half], pairs);
        a[m][1][half] = pairs[0], a[m][1][half + 2] = pairs[1];
      }
    }
  }
  // Products with 8 columns' activations, e4m3 as well.
  __device__ __forceinline__ void multiply(uint32_t x_even, uint32_t x_odd, float (&sum)[2][4]) const {
    uint32_t b[2][2];
    e4m3_to_f16(x_even, b[0]);
    e4m3_to_f16(x_odd, b[1]);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][i] = 0;
      ptx::mma_f16(sum[m], a[m][0], b[0][0], b[0][1]);
      ptx::mma_f16(sum[m], a[m][1], b[1][0], b[1][1]);
    }
  }
};

// A number that the compiler has to keep instead of finding it anew.
__device__ __forceinline__ uint32_t keep(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}

// Where a lane finds its part of a slot.
struct LanePlaces {
  uint32_t matrices, sixteen, scales, factors;

  __device__ __forceinline__ LanePlaces() {
    const uint32_t lane = threadIdx.x % 32;
    matrices = keep(lane % 16 * kRowStride + lane / 16 * 16);
    sixteen = keep(lane * 16);
    scales = keep(kWeightBytes + lane / 4 * 16);
    factors = keep(kWeightBytes + kScaleBytes + lane % 4 * 8);
  }
};

// Weight scales of a stage of quads in `slot`, from words of codes to floats: of row r of both times 16 at 16 r.
__device__ __forceinline__ void expand_scales(uint32_t slot, const LanePlaces& at) {
  const uint32_t word = ptx::load_shared(slot + kWeightBytes + at.sixteen / 4);
  __syncwarp();
  ptx::store_shared(slot + kWeightBytes + at.sixteen, make_uint4(word << 23 & 0x7f800000u, word << 15 & 0x7f800000u,
                                                                 word << 7 & 0x7f800000u, word >> 1 & 0x7f800000u));
  __syncwarp();
}

// What a lane takes past its ring: the codes of its column, where they are not copied, and scales of weights.
template <int kGroups>
struct QuadCodes {
  uint4 of[2] = {};

  __device__ __forceinline__ explicit QuadCodes(const uint8_t* codes) {
    if constexpr (kCodeBytes<kGroups> == 0) {
      of[0] = *reinterpret_cast<const uint4*>(codes);
      of[1] = *reinterpret_cast<const uint4*>(codes + 16);
    }
  }
};
template <int kGroups>
struct PairOperands {
  uint4 codes = {};
  float scale[2][2];

  __device__ __forceinline__ PairOperands(const uint8_t* from, const Rows& rows, int stage) {
    if constexpr (kCodeBytes<kGroups> == 0) codes = *reinterpret_cast<const uint4*>(from);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        scale[m][b] = e8m0_to_float(ptx::load_byte(rows.scale[m] + rows.scale_index(m, 0, 2 * stage + b)));
      }
    }
  }
};

// Adds the stage of quads in `slot`; `own` are the codes if they are not in there. kOneFactor: activations have one
// scale for the quad, applied to its sum; else one for each block.
template <int kGroups, bool kOneFactor>
__device__ __forceinline__ void add_quad(Totals<kGroups>& totals, uint32_t slot, int live, const LanePlaces& at,
                                         const uint4 (&own)[2]) {
  expand_scales(slot, at);
  const uint32_t matrices = slot + at.matrices, scales = slot + at.scales;
  const uint32_t codes = slot + kWeightBytes + kScaleBytes + at.sixteen;
  const uint32_t factors = slot + at.factors + kCodeBytes<kGroups>;
  Totals<kGroups> quad;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    uint4 x[kGroups];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (kGroups > 1 && n >= live) break;
      x[n] = kCodeBytes<kGroups> > 0 ? ptx::load_shared_four(codes + n * 1024 + pair * 512) : own[pair];
    }
    uint32_t words[2][4];  // [m][row g, g + 8 of the first block, then of the second]
    float2 scale[2][2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      ptx::load_matrices(words[m], matrices + (m * kTileRows * kRowStride + pair * 32));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        scale[m][half] = ptx::load_shared_floats(scales + (m * kTileRows + 8 * half) * 16 + pair * 8);
      }
    }
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      uint32_t even[2][2], odd[2][2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t word = words[m][2 * second + half];
          even[m][half] = lower_e2m1_to_e4m3(word);
          odd[m][half] = upper_e2m1_to_e4m3(word);
        }
      }
      const WeightBlock weights(even, odd);
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        if (kGroups > 1 && n >= live) break;
        float sum[2][4];
        weights.multiply(second == 0 ? x[n].x : x[n].z, second == 0 ? x[n].y : x[n].w, sum);
        float2 factor;
        if constexpr (!kOneFactor) factor = ptx::load_shared_floats(factors + n * 128 + (2 * pair + second) * 32);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const float by[2] = {second == 0 ? scale[m][0].x : scale[m][0].y,
                               second == 0 ? scale[m][1].x : scale[m][1].y};
          if constexpr (!kOneFactor) {
            promote(totals.of[m][n], sum[m], by[0], by[1], factor);
          } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float& of_quad = quad.of[m][n][i];
              const bool first = pair == 0 && second == 0;
              of_quad = first ? __fmul_rn(sum[m][i], by[i / 2]) : __fmaf_rn(sum[m][i], by[i / 2], of_quad);
            }
          }
        }
      }
    }
  }
  if constexpr (kOneFactor) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (kGroups > 1 && n >= live) break;
      const float2 factor = ptx::load_shared_floats(factors + n * 128);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& total = totals.of[m][n][i];
          total = __fmaf_rn(quad.of[m][n][i], i % 2 == 0 ? factor.x : factor.y, total);
        }
      }
    }
  }
}

// Adds the stage of pairs in `slot`, with the weights' scales: [m][block].
template <int kGroups>
__device__ __forceinline__ void add_pair(Totals<kGroups>& totals, uint32_t slot, int live, const LanePlaces& at,
                                         const uint4& own, const float (&scale)[2][2]) {
  const int lane = threadIdx.x % 32;
  const uint32_t rows = slot + (lane / 4 * kRowStride + lane % 4 * 8);
  const uint32_t codes = slot + kWeightBytes + kScaleBytes + at.sixteen;
  const uint32_t factors = slot + at.factors + kCodeBytes<kGroups>;
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    uint32_t even[2][2], odd[2][2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 words = ptx::load_shared_two(rows + ((m * kTileRows + 8 * half) * kRowStride + b * 32));
        even[m][half] = ptx::permute(words.x, words.y, 0x6420);
        odd[m][half] = ptx::permute(words.x, words.y, 0x7531);
      }
    }
    const WeightBlock weights(even, odd);
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (kGroups > 1 && n >= live) break;
      const uint4 x = kCodeBytes<kGroups> > 0 ? ptx::load_shared_four(codes + n * 1024) : own;
      float sum[2][4];
      weights.multiply(b == 0 ? x.x : x.z, b == 0 ? x.y : x.w, sum);
      const float2 factor = ptx::load_shared_floats(factors + n * 128 + b * 32);
#pragma unroll
      for (int m = 0; m < 2; ++m) promote(totals.of[m][n], sum[m], scale[m][b], scale[m][b], factor);
    }
  }
}

// Adds the stage in `slot`, of any layout; `own` is where the lane's codes of the row are if they are not in there.
template <int kGroups, bool kFp4>
__device__ __forceinline__ void add_stage(Totals<kGroups>& totals, uint32_t slot, const Rows& rows, int stage,
                                          int all_blocks, int live, const uint8_t* own) {
  constexpr int kBlocks = kFp4 ? 4 : 2;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t scales = slot + kWeightBytes, codes = scales + kScaleBytes;
  const uint32_t factors = codes + kCodeBytes<kGroups> + t * 8;
  const int count = min(kBlocks, all_blocks - stage * kBlocks);
#pragma unroll 1
  for (int b = 0; b < count; ++b) {
    uint32_t even[2][2], odd[2][2];
    float scale[2][2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
        const uint32_t at = slot + (m * kTileRows + row) * kRowStride;
        if constexpr (kFp4) {
          const uint32_t word = ptx::load_shared(at + b * 16 + t * 4);
          even[m][half] = lower_e2m1_to_e4m3(word);
          odd[m][half] = upper_e2m1_to_e4m3(word);
        } else {
          const uint32_t low = ptx::load_shared(at + b * 32 + t * 8), high = ptx::load_shared(at + b * 32 + t * 8 + 4);
          even[m][half] = ptx::permute(low, high, 0x6420);
          odd[m][half] = ptx::permute(low, high, 0x7531);
        }
        const uint32_t word = ptx::load_shared(scales + (b * 32 + m * kTileRows + row) * 4);
        const uint32_t inside = (static_cast<uint32_t>(reinterpret_cast<uintptr_t>(rows.scale[m])) +
                                 rows.scale_index(m, row, stage * kBlocks + b)) &
                                3;
        scale[m][half] = e8m0_to_float(word >> (8 * inside) & 0xff);
      }
    }
    const WeightBlock weights(even, odd);
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (kGroups > 1 && n >= live) break;
      uint2 x = {};
      if constexpr (kCodeBytes<kGroups> > 0) {
        const uint32_t from = codes + n * 1024 + b / 2 * 512 + lane * 16 + b % 2 * 8;
        x = make_uint2(ptx::load_shared(from), ptx::load_shared(from + 4));
      } else if (own != nullptr) {
        const int block = stage * kBlocks + b;
        x = *reinterpret_cast<const uint2*>(own + block / 4 * 128 + block % 4 * 8);
      }
      float sum[2][4];
      weights.multiply(x.x, x.y, sum);
      const float2 factor = ptx::load_shared_floats(factors + n * 128 + b * 32);
#pragma unroll
      for (int m = 0; m < 2; ++m) promote(totals.of[m][n], sum[m], scale[m][0], scale[m][1], factor);
    }
  }
}

}  // namespace onelane::cuda::moe
