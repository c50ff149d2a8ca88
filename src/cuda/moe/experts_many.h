// Experts of many rows on Hopper: to the bit what experts_product.cu makes, because tensor cores sum for a warpgroup
// exactly as they do for a warp, with weights decoded once for up to 112 pairs.
//
// An expert's pairs are cut into as few *tiles* as can be, of as equal numbers as can be. A pair has a *column* of its
// tile, and columns of all tiles are numbered through, with some left over at the end of a tile: products know but a
// few widths. What products read of the activations is kept in the order of columns, as an *image* of what is to be in
// shared memory, so that a copy of one piece fetches a quad (128 values) of all columns of a tile.
//
//   plan_columns       pairs -> tiles and columns
//   gather             x -> image of its columns
//   up, then quantise  -> hidden [columns, inter] -> its image
//   down               y [pairs, dim]
#pragma once

#include "cuda/moe/experts.h"

namespace onelane::cuda::moe {

inline constexpr int kMostColumns = 112;  // of a tile
// Those of a tile with `count` pairs.
__host__ __device__ constexpr int whole_columns(int count) { return count <= 32 ? 32 : (count + 15) / 16 * 16; }

struct alignas(16) ManyTile {
  ExpertPointers expert;
  int32_t shared;  // 0 or 1
  int32_t count;
  int32_t columns, first;  // of its columns
};

struct alignas(16) Column {
  int32_t first, columns;  // of its tile
  int32_t pair;            // -1: left over
  float weight;            // of the pair
};

// Plans lie where those of the layers before lay, so they are read past the first-level cache.
__device__ __forceinline__ Column load_column(const Column* column) {
  const int4 v = __ldcg(reinterpret_cast<const int4*>(column));
  return {v.x, v.y, v.z, __int_as_float(v.w)};
}
__device__ __forceinline__ ManyTile load_tile(const ManyTile* tile) {
  static_assert(sizeof(ManyTile) % sizeof(uint4) == 0);
  ManyTile loaded;
#pragma unroll
  for (size_t i = 0; i < sizeof(ManyTile) / sizeof(uint4); ++i) {
    reinterpret_cast<uint4*>(&loaded)[i] = __ldcg(reinterpret_cast<const uint4*>(tile) + i);
  }
  return loaded;
}

// Of a tile, quad by quad: f16 operands (experts_units.h), in two panels of 64 of each column with the 128-byte swizzle
// of wgmma and in the order that decoded weights have (experts_weights.h: even ones, then odd ones of a block's
// eights); then what the quad's segment is units of, float [columns].
struct Image {
  std::byte* data = nullptr;
  int quads = 0;
  int block = 0;  // of scales: 32 or 128

  static constexpr int column_bytes() { return 256 + 4; }  // of a quad
  // The quads of a tile.
  __device__ std::byte* tile(int first) const { return data + static_cast<int64_t>(first) * quads * column_bytes(); }
};

struct ColumnPlan {
  ManyTile* tiles;
  Column* columns;
  int32_t* place;   // [pairs] their columns
  int32_t* counts;  // of tiles and of columns
  int most_columns;
};

// Both products, of images of x and of `hidden`.
void multiply_up(const ExpertsCall& call, const ColumnPlan& plan, const Image& x, bf16* hidden);
void multiply_down(const ExpertsCall& call, const ColumnPlan& plan, const Image& x, bf16* y);

}  // namespace onelane::cuda::moe
