// A warp's way through a segment of k of two times 16 rows of one expert's weights, for experts_product.cu: stages of
// 64 bytes of each row, copied ahead into a ring in shared memory, multiplied with the expert's columns as they arrive.
//
// A stage is four blocks of 32 values of fp4, or two of fp8, with what belongs to them. One block's products are summed
// by two m16n8k16 of f16 operands, which hold all codes exactly, and added to the total after multiplication with both
// scales; e2m1 weights enter as e4m3, 2^-6 times. A weight scale of the NaN code may act as infinity.
#pragma once

#include "cuda/linear/decode.h"
#include "cuda/moe/experts.h"
#include "cuda/ptx/mma.h"

namespace onelane::cuda::moe {

inline constexpr int kTileRows = 16;
inline constexpr int kStageBytes = 64;               // of a row
inline constexpr int kRowStride = kStageBytes + 16;  // in shared memory: rows of 16 bytes do not meet in a bank
inline constexpr int kWeightBytes = 2 * kTileRows * kRowStride;
inline constexpr int kScaleBytes = 4 * 2 * kTileRows * 4;  // a word for each block and row
template <int kGroups>                                     // of 8 columns
inline constexpr int kSlotBytes = kWeightBytes + kScaleBytes + kGroups * (1024 + 128);

// How a matrix lies in memory.
struct Layout {
  bool fp4;
  bool quads;  // fp4 whose scales of four blocks are an aligned word
  int32_t row_bytes;
  int32_t scale_row;    // scales of a row
  int32_t row_shift;    // rows that share scales, as a power of two
  int32_t block_shift;  // blocks of 32 that share one
  int32_t scales;       // of the matrix
};

// The two times 16 rows, from the same matrix or from two.
struct Rows {
  const std::byte* data[2];  // at the first row
  const uint8_t* scale[2];   // at the matrix
  int first_row[2];
  Layout layout;

  __device__ __forceinline__ int scale_index(int m, int row, int block) const {
    return ((first_row[m] + row) >> layout.row_shift) * layout.scale_row + (block >> layout.block_shift);
  }
  __device__ __forceinline__ int blocks_per_stage() const { return layout.fp4 ? 4 : 2; }
};

// What the lane copies of an activation row: none where row < 0.
struct Activations {
  const uint8_t* codes;
  const float* factors;
  int64_t code_row;  // bytes
  int factor_row;
  int factor_shift;  // blocks of 32 that share a factor
  int blocks;        // of a row
};

// e2m1 -> e4m3 of 2^-6 times the value, even and odd nibbles.
__device__ __forceinline__ uint32_t upper_e2m1_to_e4m3(uint32_t v) {
  return (v & 0x80808080u) | ((v & 0x70707070u) >> 2);
}
inline constexpr float kE2m1AsE4m3 = 64.0f;

// Starts copies of stage `stage` into `slot`. `code_rows` are of the lane's column lane / 4, `factor_rows` of lane % 8.
template <int kGroups>
__device__ __forceinline__ void copy_stage(uint32_t slot, const Rows& rows, const Activations& x, int stage,
                                           const int (&code_rows)[kGroups], const int (&factor_rows)[kGroups]) {
  const int lane = threadIdx.x % 32;
  const int piece = lane % 4 * 16;
  if (stage * kStageBytes + piece < rows.layout.row_bytes) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + 8 * half;
        ptx::copy_async<16>(
            slot + (m * kTileRows + row) * kRowStride + piece,
            rows.data[m] + static_cast<int64_t>(row) * rows.layout.row_bytes + (stage * kStageBytes + piece));
      }
    }
  }
  const int per_stage = rows.blocks_per_stage();
  const int first_block = stage * per_stage;
  const uint32_t scales = slot + kWeightBytes;
  const int m = lane / kTileRows, row = lane % kTileRows;
  if (rows.layout.quads) {
    ptx::copy_async<4>(scales + lane * 4, (m == 0 ? rows.scale[0] : rows.scale[1]) +
                                              ((m == 0 ? rows.first_row[0] : rows.first_row[1]) + row) *
                                                  static_cast<int64_t>(rows.layout.scale_row) +
                                              first_block);
  } else {
    for (int b = 0; b < per_stage && first_block + b < x.blocks; ++b) {
      // The aligned word around the byte, if it is all the matrix's.
      const uint8_t* begin = m == 0 ? rows.scale[0] : rows.scale[1];
      const int index = m == 0 ? rows.scale_index(0, row, first_block + b) : rows.scale_index(1, row, first_block + b);
      const uint8_t* byte = begin + index;
      const int inside = static_cast<int>(reinterpret_cast<uintptr_t>(byte) & 3);
      const uint32_t to = scales + (b * 32 + lane) * 4;
      if (index >= inside && index - inside + 4 <= rows.layout.scales) {
        ptx::copy_async<4>(to, byte - inside);
      } else {
        ptx::store_shared(to, ptx::load_byte(byte) << (8 * inside));
      }
    }
  }
  const uint32_t codes = scales + kScaleBytes, factors = codes + kGroups * 1024;
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    if (code_rows[n] >= 0) {
      const uint8_t* from =
          x.codes + code_rows[n] * x.code_row + (rows.layout.fp4 ? stage : stage / 2) * 128 + lane % 4 * 32;
      const uint32_t to = codes + n * 1024 + lane * 16;
      if (rows.layout.fp4) {
        ptx::copy_async<16>(to, from);
        ptx::copy_async<16>(to + 512, from + 16);
      } else {
        ptx::copy_async<16>(to, from + stage % 2 * 16);
      }
    }
    const int block = first_block + lane / 8;
    if (factor_rows[n] >= 0 && lane / 8 < per_stage && block < x.blocks) {
      ptx::copy_async<4>(factors + n * 128 + lane * 4,
                         x.factors + static_cast<int64_t>(factor_rows[n]) * x.factor_row + (block >> x.factor_shift));
    }
  }
}

// Totals of a warp, [two times 16 rows, 8 columns a group], as mma has them.
template <int kGroups>
struct Totals {
  float of[2][kGroups][4];
};

// One block of 32: weights as e4m3, [m][row g, g + 8], and their scales likewise; activations of all groups.
template <int kGroups>
__device__ __forceinline__ void add_block(Totals<kGroups>& totals, const uint32_t (&even)[2][2],
                                          const uint32_t (&odd)[2][2], const float (&scale)[2][2],
                                          const uint32_t (&x_even)[kGroups], const uint32_t (&x_odd)[kGroups],
                                          uint32_t factors, int live) {
  uint32_t a[2][2][4];  // [m][even, odd]
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
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    if (kGroups > 1 && n >= live) break;
    uint32_t b[2][2];
    e4m3_to_f16(x_even[n], b[0]);
    e4m3_to_f16(x_odd[n], b[1]);
    const uint32_t at = factors + n * 128;
    const float factor[2] = {__uint_as_float(ptx::load_shared(at)), __uint_as_float(ptx::load_shared(at + 4))};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float sum[4] = {};
      ptx::mma_f16(sum, a[m][0], b[0][0], b[0][1]);
      ptx::mma_f16(sum, a[m][1], b[1][0], b[1][1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& total = totals.of[m][n][i];
        total = __fmaf_rn(sum[i], __fmul_rn(scale[m][i / 2], factor[i % 2]), total);
      }
    }
  }
}

// Adds the stage in `slot`. kQuads: four blocks of fp4 with their scales in words; else any stage.
template <int kGroups, bool kFp4, bool kQuads>
__device__ __forceinline__ void add_stage(Totals<kGroups>& totals, uint32_t slot, const Rows& rows, int stage,
                                          int all_blocks, int live) {
  constexpr int kBlocks = kFp4 ? 4 : 2;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t scales = slot + kWeightBytes, codes = scales + kScaleBytes;
  const uint32_t factors = codes + kGroups * 1024 + t * 8;
  uint32_t scale_words[2][2];
  if constexpr (kQuads) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        scale_words[m][half] = ptx::load_shared(scales + (m * kTileRows + g + 8 * half) * 4);
      }
    }
  }
#pragma unroll
  for (int pair = 0; pair < kBlocks / 2; ++pair) {
    if (!kQuads && stage * kBlocks + 2 * pair >= all_blocks) break;
    uint4 x[kGroups];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (kGroups > 1 && n >= live) break;
      x[n] = ptx::load_shared_four(codes + n * 1024 + pair * 512 + lane * 16);
    }
    uint32_t words[2][4];  // fp4: [m][row g, g + 8 of the first block, then of the second]
    if constexpr (kFp4) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        ptx::load_matrices(words[m], slot + (m * kTileRows + lane % 16) * kRowStride + (2 * pair + lane / 16) * 16);
      }
    }
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int b = 2 * pair + second;
      const int block = stage * kBlocks + b;
      if (!kQuads && block >= all_blocks) break;
      uint32_t even[2][2], odd[2][2];
      float scale[2][2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = g + 8 * half;
          if constexpr (kFp4) {
            const uint32_t word = words[m][2 * second + half];
            even[m][half] = upper_e2m1_to_e4m3(word << 4);
            odd[m][half] = upper_e2m1_to_e4m3(word);
          } else {
            const uint32_t at = slot + (m * kTileRows + row) * kRowStride + b * 32 + t * 8;
            const uint32_t low = ptx::load_shared(at), high = ptx::load_shared(at + 4);
            even[m][half] = ptx::permute(low, high, 0x6420);
            odd[m][half] = ptx::permute(low, high, 0x7531);
          }
          if constexpr (kQuads) {
            const uint32_t word = scale_words[m][half];
            scale[m][half] = __uint_as_float((b < 3 ? word << (23 - 8 * b) : word >> 1) & 0x7f800000u);
          } else {
            const uint32_t word = ptx::load_shared(scales + (b * 32 + m * kTileRows + row) * 4);
            const uint32_t inside =
                (static_cast<uint32_t>(reinterpret_cast<uintptr_t>(rows.scale[m])) + rows.scale_index(m, row, block)) &
                3;
            scale[m][half] = e8m0_to_float(word >> (8 * inside) & 0xff);
          }
        }
      }
      uint32_t x_even[kGroups], x_odd[kGroups];
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        x_even[n] = second == 0 ? x[n].x : x[n].z;
        x_odd[n] = second == 0 ? x[n].y : x[n].w;
      }
      add_block(totals, even, odd, scale, x_even, x_odd, factors + b * 32, live);
    }
  }
}

}  // namespace onelane::cuda::moe
