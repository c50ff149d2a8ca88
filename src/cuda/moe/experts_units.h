// How the experts' products (experts_product.cu) are cut: units of two times 16 rows of one expert's weights, over all
// of k; of a unit a segment of k to each warp; of a segment stages of 64 bytes of each row, which are four blocks of 32
// values of fp4, or two of fp8.
//
// Tensor cores sum the products of a whole segment. Scales are powers of two, so they are in the operands, which are
// f16 and exact: a value times 2^(its scale - the largest scale that its row of weights, or its column of activations,
// has in the segment). The sum is multiplied with the largest ones. A block counts as zero where its scale is less than
// the largest by 2^30 (fp4 weights) or 2^22 (fp8).
#pragma once

#include "cuda/moe/experts.h"

namespace onelane::cuda::moe {

inline constexpr int kSegments = 8;  // warps of a block
inline constexpr int kTileRows = 16;
inline constexpr int kStageBytes = 64;  // of a row

// How a matrix lies in memory; all of it is whole stages.
struct Layout {
  bool fp4;
  int32_t row_bytes;
  int32_t scale_row;    // scales of a row
  int32_t row_shift;    // rows that share scales, as a power of two
  int32_t block_shift;  // values that share one
};

inline Layout matrix_layout(const Matrix& w) {
  Layout layout = {};
  layout.fp4 = w.kind == Matrix::Kind::kFp4;
  layout.row_bytes = layout.fp4 ? w.in / 2 : w.in;
  const int edge = layout.fp4 ? 32 : w.block;
  layout.scale_row = (w.in + edge - 1) / edge;
  layout.row_shift = layout.fp4 ? 0 : edge == 128 ? 7 : 5;
  layout.block_shift = edge == 128 ? 7 : 5;
  return layout;
}

// The factor of a block with the largest scale, as the exponent field of an f16. Decoded e2m1 are 2^-6 times the
// values, e4m3 the values, and 6 2^-6 2^15 and 448 2^7 are f16.
inline constexpr int kFp4Top = 30, kFp8Top = 22;

// Factors of blocks, from the codes of their scales.
class ScaleFactors {
 public:
  __device__ __forceinline__ ScaleFactors(uint32_t largest, int top)
      : least_(0x10001u * static_cast<uint32_t>(max(static_cast<int>(largest) - top, 0))),
        add_(0x10001u * static_cast<uint32_t>(top - static_cast<int>(largest)) << 10) {}
  // As two f16, of the codes in bytes `i` and `i` + 1 of `word`.
  __device__ __forceinline__ uint32_t of_two(uint32_t word, int i) const {
    return of(ptx::permute(word, 0, 0x4140u + static_cast<uint32_t>(i) * 0x101u));
  }
  // Of one code, twice.
  __device__ __forceinline__ uint32_t twice(uint32_t code) const { return of(code * 0x10001u); }

 private:
  __device__ __forceinline__ uint32_t of(uint32_t both) const { return (__vmaxu2(both, least_) << 10) + add_; }

  uint32_t least_, add_;
};
// What sums are units of: 2^-127 times the largest scale, times what the operands are too small or too large by.
__device__ __forceinline__ float fp4_unit(uint32_t largest) { return e8m0_to_float(largest) * 0x1p-9f; }
__device__ __forceinline__ float fp8_unit(uint32_t largest) { return e8m0_to_float(largest) * 0x1p-7f; }

// Of four codes the two larger ones, to be merged with those of others by __vmaxu2, and at last the largest.
__device__ __forceinline__ uint32_t larger_codes(uint32_t word) {
  return __vmaxu2(word & 0x00ff00ffu, word >> 8 & 0x00ff00ffu);
}
__device__ __forceinline__ uint32_t largest_code(uint32_t two) { return max(two & 0xffffu, two >> 16); }

// Quads of blocks in segment `index` of a row: as many in each, the first ones have one more.
__device__ __forceinline__ int segment_quads(int quads, int index) {
  return quads / kSegments + (index < quads % kSegments ? 1 : 0);
}

__device__ __forceinline__ int first_quad(int quads, int index) {
  return index * (quads / kSegments) + min(index, quads % kSegments);
}
// Which one has quad `quad`.
__device__ __forceinline__ int segment_of(int quads, int quad) {
  const int each = quads / kSegments, longer = quads % kSegments;
  return quad < longer * (each + 1) ? quad / (each + 1) : longer + (quad - longer * (each + 1)) / max(each, 1);
}

// The stages of a segment.
struct Segment {
  int first = 0, count = 0;

  Segment() = default;
  __device__ __forceinline__ Segment(const Layout& layout, int index) {
    const int shift = layout.fp4 ? 0 : 1;  // two stages of fp8 are a quad
    const int quads = layout.row_bytes / kStageBytes >> shift;
    first = first_quad(quads, index) << shift;
    count = segment_quads(quads, index) << shift;
  }
};

// The units of a block: a stretch of all of them, as long as any other block's in bytes.
struct Walk {
  int tile, part, left;

  // Count: holds the bytes of all tiles, in units of fp4, times the blocks. A division of 64 bits takes long enough for
  // a kernel to notice that has 100 us.
  template <class Count, class Args>
  static __device__ __forceinline__ Walk of_block(const Args& args, int tile_count) {
    const int shared_shift = args.shared.fp4 ? 0 : 1, shift = args.routed.fp4 ? 0 : 1;
    const Count shared_units = static_cast<Count>(args.shared_tiles) * args.units_per_tile;
    const Count shared_costs = shared_units << shared_shift;
    const Count all =
        shared_costs + (static_cast<Count>(tile_count - args.shared_tiles) * args.units_per_tile << shift);
    const auto unit_at = [&](Count at) {
      return static_cast<int>(at < shared_costs ? (at + shared_shift) >> shared_shift
                                                : shared_units + ((at - shared_costs + shift) >> shift));
    };
    const int first = unit_at(all * blockIdx.x / gridDim.x);
    return {first / args.units_per_tile, first % args.units_per_tile,
            unit_at(all * (blockIdx.x + 1) / gridDim.x) - first};
  }
  // Whether the next unit is of the same tile.
  template <class Args>
  __device__ __forceinline__ bool next(const Args& args) {
    --left;
    if (++part < args.units_per_tile) return true;
    part = 0;
    ++tile;
    return false;
  }
};

}  // namespace onelane::cuda::moe
