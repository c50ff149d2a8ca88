// A stage's products, by a warp: from its slot of the ring (experts_product.cu) to running totals.
//
// One block's products are summed by two m16n8k16 of f16 operands, which hold all codes exactly, and added to the total
// after multiplication with both scales; e2m1 weights enter as e4m3, 2^-6 times. Of fp4 a weight scale of the NaN code
// acts as infinity.
#pragma once

#include "cuda/linear/decode.h"
#include "cuda/moe/experts_units.h"
#include "cuda/ptx/mma.h"

namespace onelane::cuda::moe {

// A slot: two times 16 rows of 64 bytes, in pieces of 16 that trade places so that eight rows' are in different banks;
// then of fp4 a word of scales for each row, unless those of a unit are elsewhere.
inline constexpr int kWeightBytes = 2 * kTileRows * kStageBytes;
inline constexpr int kScaleBytes = 2 * kTileRows * 4;
// Scales of a stage of fp4 as floats, of each row four.
inline constexpr int kFloatScaleBytes = 2 * kTileRows * 16;
__device__ __forceinline__ uint32_t piece_place(uint32_t row, uint32_t piece) {
  return row * kStageBytes + (piece ^ (row / 2 & 3)) * 16;
}

// Where a lane finds its part: of a slot; of the scales.
struct LanePlaces {
  uint32_t matrices, halves, own_scale, scale;
  uint32_t to_rows, own_row;  // of sums on their way to the lanes that add them (add_fp4_narrow)

  __device__ __forceinline__ explicit LanePlaces(uint32_t scales) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    matrices = ptx::hold(piece_place(lane % 16, lane / 16));
    halves = ptx::hold(piece_place(g, t / 2) + t % 2 * 8);
    own_scale = ptx::hold(scales + lane * 16);
    scale = ptx::hold(scales + g * 16);
    to_rows = ptx::hold(row_piece(g, t / 2) + t % 2 * 8);
    own_row = ptx::hold(row_piece(lane, 0));
  }

 private:
  // Two pieces of 16 bytes a row, which trade places so that eight rows' are in different banks.
  static __device__ __forceinline__ uint32_t row_piece(uint32_t row, uint32_t piece) {
    return row * 32 + (piece ^ (row / 4 & 1)) * 16;
  }
};

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

// The lane's activations of a stage: where the f16 of its column of each group are, and the scales of its two columns,
// one for the stage or (kEach) one for each block.
template <int kGroups, int kBlocks, bool kEach>
struct StageActivations {
  static constexpr int kScales = kEach ? kBlocks : 1;
  const uint16_t* values[kGroups];
  float scale[kGroups][2][kScales];

  // `of_values`, `of_scales`: where the segment's are in `x`; `live`: groups that are there.
  __device__ __forceinline__ StageActivations(const Activations& x, const int (&of_values)[kGroups],
                                              const int (&of_scales)[kGroups][2], int stage, int live) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (kGroups > 1 && n >= live) break;
      values[n] = x.values + of_values[n] + 32 * kBlocks * stage;
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        const int at = kEach ? kBlocks * stage + i : kBlocks * stage / 4;
        scale[n][0][i] = (x.scales + of_scales[n][0])[at], scale[n][1][i] = (x.scales + of_scales[n][1])[at];
      }
    }
  }
  __device__ __forceinline__ uint4 of(int n, int block) const {
    return *reinterpret_cast<const uint4*>(values[n] + 32 * block);
  }
};

// The sums of a block's products, from e4m3 of rows g and g + 8 of both times 16.
struct BlockSum {
  float of[2][4];

  __device__ __forceinline__ BlockSum(const uint32_t (&a)[2][2][4], const uint4& x) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) of[m][i] = 0;
      ptx::mma_f16(of[m], a[m][0], x.x, x.y);
      ptx::mma_f16(of[m], a[m][1], x.z, x.w);
    }
  }
};
// A block's weights of rows g and g + 8 as operands: [even, odd][as mma has them].
__device__ __forceinline__ void expand(const uint32_t (&even)[2], const uint32_t (&odd)[2], uint32_t (&a)[2][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t pairs[2];
    e4m3_to_f16(even[half], pairs);
    a[0][half] = pairs[0], a[0][half + 2] = pairs[1];
    e4m3_to_f16(odd[half], pairs);
    a[1][half] = pairs[0], a[1][half + 2] = pairs[1];
  }
}

__device__ __forceinline__ void expand_fp4(uint32_t low, uint32_t high, uint32_t (&a)[2][4]) {
  expand({lower_e2m1_to_e4m3(low), lower_e2m1_to_e4m3(high)}, {upper_e2m1_to_e4m3(low), upper_e2m1_to_e4m3(high)}, a);
}
// Of block `b` of two; `at`: where the lane finds its part of row g (LanePlaces::halves).
__device__ __forceinline__ void load_fp8(uint32_t at, int b, uint32_t (&a)[2][4]) {
  const uint2 low = ptx::load_shared_two(at ^ (b * 32)), high = ptx::load_shared_two((at + 8 * kStageBytes) ^ (b * 32));
  expand({ptx::permute(low.x, low.y, 0x6420), ptx::permute(high.x, high.y, 0x6420)},
         {ptx::permute(low.x, low.y, 0x7531), ptx::permute(high.x, high.y, 0x7531)}, a);
}

// Adds the stage of fp4 in `slot`; `scales`: where the lane's word of them is.
template <int kGroups, bool kEach>
__device__ __forceinline__ void add_fp4(Totals<kGroups>& totals, uint32_t slot, uint32_t scales, const LanePlaces& at,
                                        const StageActivations<kGroups, 4, kEach>& x, int live) {
  // Words of codes become floats, a row in each lane.
  const uint32_t word = ptx::load_shared(scales);
  ptx::store_shared(at.own_scale, make_uint4(word << 23 & 0x7f800000u, word << 15 & 0x7f800000u,
                                             word << 7 & 0x7f800000u, word >> 1 & 0x7f800000u));
  __syncwarp();
  Totals<kGroups> quad;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    uint32_t words[2][4];  // [m][row g, g + 8 of the first block, then of the second]
    float2 by[2][2];       // scales of both blocks: [m][row g, g + 8]
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        by[m][half] = ptx::load_shared_floats(at.scale + (m * kTileRows + 8 * half) * 16 + pair * 8);
      }
      ptx::load_matrices(words[m], (slot + at.matrices + m * kTileRows * kStageBytes) ^ (pair * 32));
    }
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int block = 2 * pair + second;
      uint32_t a[2][2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) expand_fp4(words[m][2 * second], words[m][2 * second + 1], a[m]);
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        if (kGroups > 1 && n >= live) break;
        const BlockSum sum(a, x.of(n, block));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const float of_row[2] = {second == 0 ? by[m][0].x : by[m][0].y, second == 0 ? by[m][1].x : by[m][1].y};
          if constexpr (kEach) {
            promote(totals.of[m][n], sum.of[m], of_row[0], of_row[1],
                    make_float2(x.scale[n][0][block], x.scale[n][1][block]));
          } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float& of_quad = quad.of[m][n][i];
              of_quad =
                  block == 0 ? __fmul_rn(sum.of[m][i], of_row[i / 2]) : __fmaf_rn(sum.of[m][i], of_row[i / 2], of_quad);
            }
          }
        }
      }
    }
  }
  if constexpr (!kEach) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (kGroups > 1 && n >= live) break;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& total = totals.of[m][n][i];
          total = __fmaf_rn(quad.of[m][n][i], x.scale[n][i % 2][0], total);
        }
      }
    }
  }
}

// Tiles of one or two columns, which most are where a step has few rows and there are many experts. A product has room
// for eight, so the columns' parts of the stage's four blocks stand beside each other, each with zeros where the others
// have values: the sums of all blocks come out of one accumulator, each as if it were alone. They go to the lane that
// has the row, which multiplies and adds for two columns where lanes of wide tiles do it for eight.
inline constexpr int kNarrow = 2;

// The lane's values of a stage, which are those of one block; `of_values`: where the first stage's are in `x`.
__device__ __forceinline__ uint4 narrow_values(const Activations& x, int of_values, int stage) {
  return *reinterpret_cast<const uint4*>(x.values + of_values + 128 * stage);
}

// Both columns' scales of a stage, for all lanes; `of_scales`: where the segment's are in `x`.
template <bool kEach>
struct NarrowScales {
  static constexpr int kCount = kEach ? 4 : 1;
  float of[kNarrow][kCount];

  __device__ __forceinline__ NarrowScales(const Activations& x, const int (&of_scales)[kNarrow], int stage) {
#pragma unroll
    for (int c = 0; c < kNarrow; ++c) {
      const float* from = x.scales + of_scales[c] + kCount * stage;
      if constexpr (kEach) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        of[c][0] = four.x, of[c][1] = four.y, of[c][2] = four.z, of[c][3] = four.w;
      } else {
        of[c][0] = *from;
      }
    }
  }
};

// Which block of a stage the lane has values of, as factors of two f16 each.
struct OwnBlock {
  uint32_t factor[4];

  __device__ __forceinline__ OwnBlock() {
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      factor[block] = static_cast<int>(threadIdx.x) % 32 / 8 == block ? 0x3c003c00u : 0;
    }
  }
};

// Adds the stage of fp4 in `slot`, whose weights it overwrites, to the totals of the lane's row.
template <bool kEach>
__device__ __forceinline__ void add_fp4_narrow(float (&totals)[kNarrow], uint32_t slot, uint32_t scales,
                                               const LanePlaces& at, const OwnBlock& own, const uint4& values,
                                               const NarrowScales<kEach>& x_scales) {
  const uint32_t word = ptx::load_shared(scales);
  float sums[2][4] = {};
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    uint32_t words[2][4];  // [m][row g, g + 8 of the first block, then of the second]
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      ptx::load_matrices(words[m], (slot + at.matrices + m * kTileRows * kStageBytes) ^ (pair * 32));
    }
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const uint32_t factor = own.factor[2 * pair + second];
      const uint4 b = make_uint4(ptx::multiply_f16(values.x, factor), ptx::multiply_f16(values.y, factor),
                                 ptx::multiply_f16(values.z, factor), ptx::multiply_f16(values.w, factor));
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        uint32_t a[2][4];
        expand_fp4(words[m][2 * second], words[m][2 * second + 1], a);
        ptx::mma_f16(sums[m], a[0], b.x, b.y);
        ptx::mma_f16(sums[m], a[1], b.z, b.w);
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::store_shared(slot + at.to_rows + (m * kTileRows + 8 * half) * 32,
                        make_float2(sums[m][2 * half], sums[m][2 * half + 1]));
    }
  }
  __syncwarp();
  const uint4 low = ptx::load_shared_four(slot + at.own_row), high = ptx::load_shared_four((slot + at.own_row) ^ 16);
  const float of[4][kNarrow] = {{__uint_as_float(low.x), __uint_as_float(low.y)},
                                {__uint_as_float(low.z), __uint_as_float(low.w)},
                                {__uint_as_float(high.x), __uint_as_float(high.y)},
                                {__uint_as_float(high.z), __uint_as_float(high.w)}};
  float quad[kNarrow];
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    const float by = __uint_as_float((block < 3 ? word << (23 - 8 * block) : word >> 1) & 0x7f800000u);
#pragma unroll
    for (int c = 0; c < kNarrow; ++c) {
      if constexpr (kEach) {
        totals[c] = __fmaf_rn(of[block][c], __fmul_rn(by, x_scales.of[c][block]), totals[c]);
      } else {
        quad[c] = block == 0 ? __fmul_rn(of[block][c], by) : __fmaf_rn(of[block][c], by, quad[c]);
        if (block == 3) totals[c] = __fmaf_rn(quad[c], x_scales.of[c][0], totals[c]);
      }
    }
  }
}

// Scales of fp8 in a stage: [m][block].
struct Fp8Scales {
  float of[2][2];

  // At the two times 16 rows' scales of the stage's first value, of blocks of 2^block_shift.
  __device__ __forceinline__ Fp8Scales(const uint8_t* const (&scale)[2], int value, int block_shift) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int b = 0; b < 2; ++b)
        of[m][b] = e8m0_to_float(ptx::load_byte(scale[m] + ((value + 32 * b) >> block_shift)));
    }
  }
};

// Adds the stage of fp8 in `slot`.
template <int kGroups, bool kEach>
__device__ __forceinline__ void add_fp8(Totals<kGroups>& totals, uint32_t slot, const LanePlaces& at,
                                        const Fp8Scales& scales, const StageActivations<kGroups, 2, kEach>& x,
                                        int live) {
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    uint32_t a[2][2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) load_fp8(slot + at.halves + m * kTileRows * kStageBytes, b, a[m]);
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (kGroups > 1 && n >= live) break;
      const BlockSum sum(a, x.of(n, b));
      const int i = kEach ? b : 0;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        promote(totals.of[m][n], sum.of[m], scales.of[m][b], scales.of[m][b],
                make_float2(x.scale[n][0][i], x.scale[n][1][i]));
      }
    }
  }
}

}  // namespace onelane::cuda::moe
