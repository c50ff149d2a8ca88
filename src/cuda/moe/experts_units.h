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

// Which segment the calling warp has. Longer ones go to the schedulers of warps 0 to 3 in order, and in the later half
// of the blocks, of which a multiprocessor has one, to the others first.
__device__ __forceinline__ int own_segment() {
  const int shift = 2 * blockIdx.x >= gridDim.x ? 2 : 0;
  return (threadIdx.x / 32 + shift) % kSegments;
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

  template <class Args>
  __device__ __forceinline__ Walk(const Args& args, int tile_count) {
    const int shared_cost = args.shared.fp4 ? 1 : 2, cost = args.routed.fp4 ? 1 : 2;
    const int64_t shared_units = static_cast<int64_t>(args.shared_tiles) * args.units_per_tile;
    const int64_t shared_costs = shared_units * shared_cost;
    const int64_t all =
        shared_costs + static_cast<int64_t>(tile_count - args.shared_tiles) * args.units_per_tile * cost;
    const auto unit_at = [&](int64_t at) {
      return static_cast<int>(at < shared_costs ? (at + shared_cost - 1) / shared_cost
                                                : shared_units + (at - shared_costs + cost - 1) / cost);
    };
    const int first = unit_at(all * blockIdx.x / gridDim.x);
    left = unit_at(all * (blockIdx.x + 1) / gridDim.x) - first;
    tile = first / args.units_per_tile;
    part = first % args.units_per_tile;
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
