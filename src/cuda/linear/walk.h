// What a warp of the kernel for few rows works through, and the weights and scales that it meets there.
#pragma once

#include "cuda/linear/format.h"
#include "cuda/ptx/cached_load.h"

namespace onelane::cuda {

inline constexpr int kTile = 16;  // outputs of a warp

// Tiles of outputs begin where the matrix has multiples of kTile rows: the scales of whole blocks are a tile's in
// common.
__host__ __device__ inline int first_row_of_tiles(const Piece& piece) { return piece.first_out / kTile * kTile; }
__host__ __device__ inline int tiles_of(const Piece& piece) {
  return (piece.first_out + piece.outs - first_row_of_tiles(piece) + kTile - 1) / kTile;
}

// What a warp makes: a segment of every `step`th tile from the first on.
struct Walk {
  int first_tile, step, tiles;
  int begin, blocks;  // the segment

  // `tile`: of the `tiles_a_group` that block (or cluster) `index` of the launch takes at a time.
  __device__ __forceinline__ Walk(const Piece& piece, int unit, int index, int segment, int tile, int tiles_a_group)
      : tiles(tiles_of(piece)) {
    first_tile = (index - piece.first_block) * tiles_a_group + tile;
    step = piece.blocks * tiles_a_group;
    begin = segment_begin(piece, unit, segment);
    blocks = segment_begin(piece, unit, segment + 1) - begin;
  }
};

// Row `row` of a tile, as one of the matrix: those that are not the piece's are read as the nearest that is.
__device__ __forceinline__ int row_of_tile(const Piece& piece, int tile, int row) {
  return min(max(first_row_of_tiles(piece) + tile * kTile + row, piece.first_out), piece.first_out + piece.outs - 1);
}

// The scales of a line of weights.
template <class F, bool kOfRows = F::kFp4>
class LineScales;

// The rows have them in common. Lane l has that of unit l, modulo their number.
template <class F>
class LineScales<F, false> {
 public:
  // Of the blocks from `block` on, `left` of which are the segment's.
  __device__ __forceinline__ void load(const Piece& piece, int tile, int block, int left) {
    if constexpr (F::kScaled) {
      const int first = threadIdx.x % F::kUnits * (F::kUnit / kBlock);
      if (first < left) code_ = weight_scale(piece, row_of_tile(piece, tile, 0), (block + first) * kBlock);
    }
  }
  // As factors of rows g and g + 8.
  __device__ __forceinline__ void get(int unit, float (&factor)[2]) const {
    if constexpr (F::kScaled) {
      factor[0] = factor[1] = F::factor(F::kUnits == 1 ? code_ : __shfl_sync(0xffffffff, code_, unit));
    }
  }

 private:
  uint32_t code_ = 0;
};

// Every row has its own. Lane t of four has those of units t, t + 4 of a line, of rows g and g + 8.
template <class F>
class LineScales<F, true> {
 public:
  __device__ __forceinline__ void load(const Piece& piece, int tile, int block, int left) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kCodes; ++i) {
      const int first = (lane % 4 + 4 * i) * (F::kUnit / kBlock);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (first < left) {
          codes_[i][half] =
              weight_scale(piece, row_of_tile(piece, tile, lane / 4 + 8 * half), (block + first) * kBlock);
        }
      }
    }
  }
  __device__ __forceinline__ void get(int unit, float (&factor)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factor[i] = F::factor(__shfl_sync(0xffffffff, codes_[unit / 4][i], threadIdx.x % 32 / 4 * 4 + unit % 4));
    }
  }

 private:
  static constexpr int kCodes = (F::kUnits + 3) / 4;
  uint32_t codes_[kCodes][2] = {};
};

// Where a lane's part of a step is 8 bytes, two steps are one load: lane 2 i has the i-th 16 bytes of the first one,
// lane 2 i + 1 those of the second, and each gives the other what is its part (parts_of).
template <class F>
inline constexpr int kLoadSteps = F::kWeightBytes == 8 ? 2 : 1;

// A line of the rows of a tile, rows g and g + 8 in lane 4 g + t.
template <class F>
struct Line {
  static constexpr int kLoads = F::kSteps / kLoadSteps<F>;
  Part<kLoadSteps<F> * F::kWeightBytes> loaded[kLoads][2];
  LineScales<F> scales;
};

// The lane's parts of both steps of a load: for all lanes of a warp.
__device__ __forceinline__ void parts_of(const Part<16>& loaded, Part<8> (&parts)[2]) {
  const bool odd = threadIdx.x % 2 == 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t low = loaded.word[i], high = loaded.word[2 + i];
    const uint32_t other = __shfl_xor_sync(0xffffffff, odd ? low : high, 1);
    parts[0].word[i] = odd ? other : low;
    parts[1].word[i] = odd ? high : other;
  }
}

// Loads a warp's lines in the order of its walk, `lines` of each tile: nothing where the segment has fewer, or past the
// last tile.
template <class F>
class Loader {
 public:
  __device__ __forceinline__ Loader(const Piece& piece, const Walk& walk, int lines, uint64_t policy)
      : piece_(piece), walk_(walk), lines_(lines), policy_(policy), tile_(walk.first_tile) {
    enter();
  }

  // One of the line's loads, when its registers are free; after the last one next().
  __device__ __forceinline__ void load(Line<F>& line, int i) const {
    const int step = kLoadSteps<F> * i + (kLoadSteps<F> == 1 ? 0 : threadIdx.x % 2);
    if (step * F::kStepBlocks >= left_) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::load_stream(line.loaded[i][half].word, from_[half] + i * (4 * kLoadSteps<F> * F::kWeightBytes), policy_);
    }
  }
  __device__ __forceinline__ void next(Line<F>& line) {
    line.scales.load(piece_, tile_, walk_.begin + line_ * F::kBlocks, left_);
    left_ -= F::kBlocks;
    from_[0] += kLine, from_[1] += kLine;
    if (++line_ < lines_) return;
    line_ = 0;
    tile_ += walk_.step;
    enter();
  }

 private:
  __device__ __forceinline__ void enter() {
    left_ = tile_ < walk_.tiles ? walk_.blocks : 0;
    const int lane = threadIdx.x % 32;
    const int place = kLoadSteps<F> == 1 ? lane % 4 * F::kWeightBytes : lane % 2 * 32 + lane % 4 / 2 * 16;
    const std::byte* begin = piece_.data + walk_.begin * F::kBlockBytes + place;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      from_[half] = begin + row_of_tile(piece_, tile_, lane / 4 + 8 * half) * F::row_bytes(piece_.in);
    }
  }

  const Piece& piece_;
  const Walk& walk_;
  int lines_;
  uint64_t policy_;
  int tile_, line_ = 0, left_;
  const std::byte* from_[2];
};

}  // namespace onelane::cuda
