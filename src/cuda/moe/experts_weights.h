// A stage's products, by a warp: from its slot of the ring (experts_product.cu) to sums of its segment.
//
// Weights are decoded to f16, brought to the largest scale of their row (experts_units.h), and multiplied by m16n8k16:
// a segment is one chain of products, block by block.
#pragma once

#include "cuda/linear/decode.h"
#include "cuda/moe/experts_units.h"
#include "cuda/ptx/mma.h"

namespace onelane::cuda::moe {

// A slot: two times 16 rows of 64 bytes, in pieces of 16 that trade places so that eight rows' are in different banks.
inline constexpr int kWeightBytes = 2 * kTileRows * kStageBytes;
// Of each row of a warp the factors of four blocks.
inline constexpr int kFactorBytes = 2 * kTileRows * 8;
__device__ __forceinline__ uint32_t piece_place(uint32_t row, uint32_t piece) {
  return row * kStageBytes + (piece ^ (row / 2 & 3)) * 16;
}

// Of 16 rows, row g and row g + 8 beside each other.
__device__ __forceinline__ uint32_t factor_place(uint32_t row) {
  return (row & ~15u) * 8 + (row % 8 * 2 + row / 8 % 2) * 8;
}

// Where a lane finds its part: of a slot; of its warp's kFactorBytes those of its own row, and of rows g and g + 8.
struct LanePlaces {
  uint32_t matrices, halves, own_factors, factors;

  __device__ __forceinline__ explicit LanePlaces(uint32_t of_warp) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    matrices = ptx::hold(piece_place(lane % 16, lane / 16));
    halves = ptx::hold(piece_place(g, t / 2) + t % 2 * 8);
    own_factors = ptx::hold(of_warp + factor_place(lane));
    factors = ptx::hold(of_warp + factor_place(g));
  }
};

// e2m1 -> e4m3 of 2^-6 times the value, even and odd nibbles.
__device__ __forceinline__ uint32_t lower_e2m1_to_e4m3(uint32_t v) {
  return (v << 4 & 0x80808080u) | (v << 2 & 0x1c1c1c1cu);
}
__device__ __forceinline__ uint32_t upper_e2m1_to_e4m3(uint32_t v) {
  return (v & 0x80808080u) | (v >> 2 & 0x1c1c1c1cu);
}

// Sums of a warp over a segment, [two times 16 rows, 8 columns a group], as mma has them.
template <int kGroups>
struct Sums {
  float of[2][kGroups][4];
};

// The lane's activations of a stage of kBlocks blocks: those of its column of each group. One group's are asked for at
// once, before the wait for the stage's weights.
template <int kGroups, int kBlocks>
class ColumnValues {
 public:
  // `at`: its columns' at the segment.
  __device__ __forceinline__ ColumnValues(const uint16_t* const (&at)[kGroups], int stage) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) from_[n] = at[n] + 32 * kBlocks * stage;
    if constexpr (kGroups == 1) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) blocks_[block] = load(0, block);
    }
  }
  __device__ __forceinline__ uint4 of(int n, int block) const { return kGroups == 1 ? blocks_[block] : load(n, block); }

 private:
  __device__ __forceinline__ uint4 load(int n, int block) const {
    return *reinterpret_cast<const uint4*>(from_[n] + 32 * block);
  }
  const uint16_t* from_[kGroups];
  uint4 blocks_[kBlocks];
};

// A block's weights of rows g and g + 8 as operands: [even, odd][as mma has them].
using Operands = uint32_t[2][4];
__device__ __forceinline__ void expand(const uint32_t (&even)[2], const uint32_t (&odd)[2], Operands& a) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t pairs[2];
    e4m3_to_f16(even[half], pairs);
    a[0][half] = pairs[0], a[0][half + 2] = pairs[1];
    e4m3_to_f16(odd[half], pairs);
    a[1][half] = pairs[0], a[1][half + 2] = pairs[1];
  }
}

__device__ __forceinline__ void expand_fp4(uint32_t low, uint32_t high, Operands& a) {
  expand({lower_e2m1_to_e4m3(low), lower_e2m1_to_e4m3(high)}, {upper_e2m1_to_e4m3(low), upper_e2m1_to_e4m3(high)}, a);
}
// The codes of block `b` of two, [row g, g + 8][two]; `at`: where the lane finds its part of row g
// (LanePlaces::halves).
__device__ __forceinline__ void load_fp8(uint32_t at, int b, uint32_t (&words)[4]) {
  const uint2 low = ptx::load_shared_two(at ^ (b * 32)), high = ptx::load_shared_two((at + 8 * kStageBytes) ^ (b * 32));
  words[0] = low.x, words[1] = low.y, words[2] = high.x, words[3] = high.y;
}
__device__ __forceinline__ void expand_fp8(const uint32_t (&words)[4], Operands& a) {
  expand({ptx::permute(words[0], words[1], 0x6420), ptx::permute(words[2], words[3], 0x6420)},
         {ptx::permute(words[0], words[1], 0x7531), ptx::permute(words[2], words[3], 0x7531)}, a);
}

// With a factor for each of the rows, the lower or the higher of two.
__device__ __forceinline__ void scale_rows(Operands& a, uint32_t g, uint32_t g8, bool high) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) a[i][j] = ptx::multiply_f16_by_half(a[i][j], j % 2 == 0 ? g : g8, high);
  }
}

// Adds a block's products; `live`: groups that are there.
template <int kGroups, int kBlocks>
__device__ __forceinline__ void add_block(Sums<kGroups>& sums, const Operands (&a)[2],
                                          const ColumnValues<kGroups, kBlocks>& x, int block, int live) {
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    if (kGroups > 1 && n >= live) break;
    const uint4 b = x.of(n, block);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      ptx::mma_f16(sums.of[m][n], a[m][0], b.x, b.y);
      ptx::mma_f16(sums.of[m][n], a[m][1], b.z, b.w);
    }
  }
}

// Adds the stage of fp4 in `slot`; `word`: the codes of the lane's row.
template <int kGroups>
__device__ __forceinline__ void add_fp4(Sums<kGroups>& sums, uint32_t slot, const ScaleFactors& own, uint32_t word,
                                        const LanePlaces& at, const ColumnValues<kGroups, 4>& x, int live) {
  // A row in each lane; then each gets those of four rows.
  ptx::store_shared(at.own_factors, make_uint2(own.of_two(word, 0), own.of_two(word, 2)));
  __syncwarp();
  uint32_t by[2][2][2];  // [m][row g, g + 8][two blocks]
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const uint4 four = ptx::load_shared_four(at.factors + m * kTileRows * 8);
    by[m][0][0] = four.x, by[m][0][1] = four.y, by[m][1][0] = four.z, by[m][1][1] = four.w;
  }
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    uint32_t words[2][4];  // [m][row g, g + 8 of the first block, then of the second]
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      ptx::load_matrices(words[m], ((slot + at.matrices) ^ (pair * 32)) + m * kTileRows * kStageBytes);
    }
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int block = 2 * pair + second;
      Operands a[2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        expand_fp4(words[m][2 * second], words[m][2 * second + 1], a[m]);
        scale_rows(a[m], by[m][0][pair], by[m][1][pair], second == 1);
      }
      add_block(sums, a, x, block, live);
    }
  }
}

// Scales of fp8, which each 16 rows have in common.
struct Fp8Scales {
  const uint8_t* codes[2];  // of [m] at the row's first value
  int block_shift;
  uint32_t largest[2];

  // For all lanes: of the blocks of values [first, first + count).
  __device__ __forceinline__ Fp8Scales(const uint8_t* const (&scale)[2], int first, int count, int shift)
      : codes{scale[0], scale[1]}, block_shift(shift) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint32_t most = 0;
      for (int value = first + (threadIdx.x % 32 << shift); value < first + count; value += 32 << shift) {
        most = max(most, ptx::load_byte(scale[m] + (value >> shift)));
      }
      largest[m] = __reduce_max_sync(0xffffffff, most);
    }
  }
};
// Factors of a stage at `value`: [m], of its two blocks.
struct Fp8Factors {
  uint32_t of[2];

  __device__ __forceinline__ Fp8Factors(const Fp8Scales& scales, int value) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint32_t word = 0;
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        word |= ptx::load_byte(scales.codes[m] + ((value + 32 * b) >> scales.block_shift)) << (8 * b);
      }
      of[m] = ScaleFactors(scales.largest[m], kFp8Top).of_two(word, 0);
    }
  }
};

// Adds the stage of fp8 in `slot`.
template <int kGroups>
__device__ __forceinline__ void add_fp8(Sums<kGroups>& sums, uint32_t slot, const LanePlaces& at,
                                        const Fp8Factors& factors, const ColumnValues<kGroups, 2>& x, int live) {
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    Operands a[2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint32_t words[4];
      load_fp8(slot + at.halves + m * kTileRows * kStageBytes, b, words);
      expand_fp8(words, a[m]);
      scale_rows(a[m], factors.of[m], factors.of[m], b == 1);
    }
    add_block(sums, a, x, b, live);
  }
}

}  // namespace onelane::cuda::moe
