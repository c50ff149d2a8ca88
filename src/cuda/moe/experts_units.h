// How the experts' products (experts_product.cu) are cut: units of two times 16 rows of one expert's weights, over all
// of k; of a unit a segment of k to each warp; of a segment stages of 64 bytes of each row, which are four blocks of 32
// values of fp4, or two of fp8.
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

// Quads of blocks in segment `index` of a row: as many in each, the first ones have one more.
__device__ __forceinline__ int segment_quads(int quads, int index) {
  return quads / kSegments + (index < quads % kSegments ? 1 : 0);
}

// The stages of a segment.
struct Segment {
  int first = 0, count = 0;

  Segment() = default;
  __device__ __forceinline__ Segment(const Layout& layout, int index) {
    const int shift = layout.fp4 ? 0 : 1;  // two stages of fp8 are a quad
    const int quads = layout.row_bytes / kStageBytes >> shift;
    first = index * (quads / kSegments) + min(index, quads % kSegments) << shift;
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
