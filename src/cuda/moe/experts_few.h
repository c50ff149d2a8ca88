// What the experts' products do for themselves when rows are few, instead of leaving it to kernels of its own: tiles in
// every block, and of the second product the quantised activations in every warp.
#pragma once

#include "cuda/moe/experts_quantise.h"
#include "cuda/moe/experts_units.h"

namespace onelane::cuda::moe {

inline constexpr int kFewRows = 8;
inline constexpr int kFewPairs = 48;  // routed

struct FewPairs {
  const int32_t* ids;
  const ExpertPointers* experts;
  int count, rows;
};

// Pairs to tiles of as many columns as there are rows at most, the shared expert's first; returns how many tiles.
// `scratch`: kFewPairs ints and two. For all threads of a block; ends with a barrier.
template <int kWidth>
__device__ __forceinline__ int make_few_tiles(const FewPairs& pairs, const ExpertPointers& shared, Tile<kWidth>* tiles,
                                              int32_t* scratch) {
  static_assert(kFewRows <= kWidth && kFewPairs + kFewRows < 64);
  const int p = static_cast<int>(threadIdx.x);
  const bool exists = p < pairs.count;
  uint32_t* firsts = reinterpret_cast<uint32_t*>(scratch + kFewPairs);  // a bit for each pair that is first of a tile
  ExpertPointers pointers = {};
  int expert = -1;
  if (exists) {
    expert = scratch[p] = __ldcg(pairs.ids + p);
    pointers = pairs.experts[expert];
  }
  __syncthreads();
  int first = p, column = 0, later = 0;  // of the pair: its tile's first, its column, how many of its expert follow
  if (p < 64) {
    for (int q = 0; q < pairs.count; ++q) {
      const bool same = scratch[q] == expert;
      if (same && q < p && column == 0) first = q;
      if (same && q < p && ++column == pairs.rows) column = 0;
      later += same && q > p;
    }
    if (column == 0) first = p;
    const uint32_t bits = __ballot_sync(0xffffffff, exists && column == 0);
    if (p % 32 == 0) firsts[p / 32] = bits;
  }
  __syncthreads();
  const uint32_t low = firsts[0], high = firsts[1];
  if (exists) {
    const int before =
        first < 32 ? __popc(low & ((1u << first) - 1)) : __popc(low) + __popc(high & ((1u << (first - 32)) - 1));
    Tile<kWidth>& tile = tiles[1 + before];
    tile.pairs[column] = p;
    if (column == 0) {
      tile.expert = pointers;
      tile.shared = 0;
      tile.count = min(pairs.rows, 1 + later);
    }
  } else if (p < pairs.count + pairs.rows) {
    tiles[0].pairs[p - pairs.count] = p;
  } else if (p == kFewPairs + kFewRows) {
    tiles[0].expert = shared;
    tiles[0].shared = 1;
    tiles[0].count = pairs.rows;
  }
  __syncthreads();
  return 1 + __popc(low) + __popc(high);
}

// Activations of a tile's columns in shared memory: of each column the values a little apart, for the banks' sake.
constexpr __host__ __device__ int own_stride(int width) { return width + 32; }
constexpr __host__ __device__ int own_bytes(int width, int columns) {
  return columns *
         (own_stride(width) * static_cast<int>(sizeof(uint16_t)) + kSegments * static_cast<int>(sizeof(float)));
}
struct OwnActivations {
  Activations all;  // of column c the values are at c * own_stride(width), the units at c * kSegments

  __device__ __forceinline__ OwnActivations(std::byte* memory, int width, int block, int columns)
      : all{reinterpret_cast<uint16_t*>(memory),
            reinterpret_cast<float*>(memory + columns * own_stride(width) * sizeof(uint16_t)), width, block} {}

  // For a warp: segment `index` of the tile's columns, of rows `tile.pairs` of `x`.
  template <int kWidth>
  __device__ __forceinline__ void quantise(const bf16* x, const Tile<kWidth>& tile, int index) {
    constexpr int kAtOnce = 2;  // columns
    const int lane = threadIdx.x % 32, quads = all.width / 128, first = first_quad(quads, index) * 128;
    __syncwarp();
#pragma unroll 1
    for (int base = 0; base < tile.count; base += kAtOnce) {
      quantise_segment<kAtOnce, 3>(
          min(tile.count - base, kAtOnce), segment_quads(quads, index), all.block,
          [&](int i, int quad) {
            const bf16* row = x + static_cast<int64_t>(tile.pairs[base + i]) * all.width + first;
            return __ldcg(reinterpret_cast<const uint2*>(row) + quad * 32 + lane);
          },
          [&](int i) { return all.values + (base + i) * own_stride(all.width) + first; },
          [&](int i) { return all.units + (base + i) * kSegments + index; });
    }
    __syncwarp();
  }
};

}  // namespace onelane::cuda::moe
