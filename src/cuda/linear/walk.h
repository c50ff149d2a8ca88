// What a warp of the kernel for few rows works through, and the scales of the weights that it meets there.
#pragma once

#include "cuda/linear/format.h"

namespace onelane::cuda {

inline constexpr int kTile = 16;  // outputs of a warp

// Tiles of outputs begin where the matrix has multiples of kTile rows: the scales of whole blocks are a tile's in
// common.
__host__ __device__ inline int first_row_of_tiles(const Piece& piece) { return piece.first_out / kTile * kTile; }
__host__ __device__ inline int tiles_of(const Piece& piece) {
  return (piece.first_out + piece.outs - first_row_of_tiles(piece) + kTile - 1) / kTile;
}

// What a warp works through: a tile of every group of its block, `stages` lines of each.
struct Walk {
  int first_row, last_row;  // of the matrix; rows of a tile that are not among them are read as the nearest that is
  int tiles_begin;
  int tiles, groups;
  int tiles_a_group, tile_of_group;
  int first_group, step;
  int begin, blocks;  // the segment

  // -1: there is none.
  __device__ int tile(int group) const {
    const int tile = group * tiles_a_group + tile_of_group;
    return group < groups && tile < tiles ? tile : -1;
  }
  __device__ int row(int tile, int row) const {
    return min(max(tiles_begin + tile * kTile + row, first_row), last_row);
  }
};

// The factors of a warp's units, in the order in which it meets them, loaded far ahead: as the weights, they come from
// memory.
template <class F, bool kOfRows = F::kFp4>
class Factors;

// A tile has them in common. Lane l has that of unit l of 32, and of the 32 after those.
template <class F>
class Factors<F, false> {
 public:
  __device__ Factors(const Piece& piece, const Walk& walk)
      : units_(walk.blocks * kBlock / F::kUnit), at_(0), now_(load(piece, walk, 0)), ahead_(load(piece, walk, 32)) {}

  __device__ void next_line(const Piece&, const Walk&) {}
  __device__ void get(const Piece& piece, const Walk& walk, int, float (&factor)[2]) {
    if constexpr (F::kScaled) {
      factor[0] = factor[1] = F::factor(__shfl_sync(0xffffffff, now_, at_ % 32));
      if (++at_ % 32 == 0) {
        now_ = ahead_;
        ahead_ = load(piece, walk, at_ + 32);
      }
    }
  }

 private:
  __device__ uint32_t load(const Piece& piece, const Walk& walk, int first) const {
    if constexpr (!F::kScaled) return 0;
    const int i = first + threadIdx.x % 32;
    const int tile = walk.tile(walk.first_group + i / units_ * walk.step);
    if (tile < 0) return 0;
    return weight_scale(piece, walk.row(tile, 0), walk.begin * kBlock + i % units_ * F::kUnit);
  }

  int units_, at_;
  uint32_t now_, ahead_;
};

// Every row has its own. Lane t of four has those of units t, t + 4 of a line, of rows g and g + 8.
template <class F>
class Factors<F, true> {
 public:
  __device__ Factors(const Piece& piece, const Walk& walk) : group_(walk.first_group), line_(0) { load(piece, walk); }

  __device__ void next_line(const Piece& piece, const Walk& walk) {
#pragma unroll
    for (int i = 0; i < kCodes; ++i) now_[i][0] = ahead_[i][0], now_[i][1] = ahead_[i][1];
    if ((++line_) * F::kBlocks >= walk.blocks) {
      line_ = 0;
      group_ += walk.step;
    }
    load(piece, walk);
  }
  __device__ void get(const Piece&, const Walk&, int unit, float (&factor)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factor[i] = F::factor(__shfl_sync(0xffffffff, now_[unit / 4][i], threadIdx.x % 32 / 4 * 4 + unit % 4));
    }
  }

 private:
  static constexpr int kCodes = (F::kUnits + 3) / 4;
  __device__ void load(const Piece& piece, const Walk& walk) {
    const int tile = walk.tile(group_), lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kCodes; ++i) {
      const int block = line_ * F::kBlocks + (lane % 4 + 4 * i) * (F::kUnit / kBlock);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ahead_[i][half] = tile >= 0 && block < walk.blocks
                              ? weight_scale(piece, walk.row(tile, lane / 4 + 8 * half), (walk.begin + block) * kBlock)
                              : 0;
      }
    }
  }

  int group_, line_;
  uint32_t now_[kCodes][2], ahead_[kCodes][2];
};

}  // namespace onelane::cuda
