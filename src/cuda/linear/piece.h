// A product as its kernels see it, and what they must agree on so that a result does not depend on which of them made
// it: how a row is cut, quantised and summed.
//
// Sums. A row's `in` values are cut into segments, each summed in order from zero; the segments' sums are added in
// order, from zero. Within a segment, a *unit* (32 values, or 128 where all its scales cover 128) is summed by the
// tensor cores from zero, in the order of Format::multiply(), and added times its two scales.
#pragma once

#include <algorithm>

#include "cuda/numerics.h"
#include "cuda/stage.h"

namespace onelane::cuda {

inline constexpr int kBlock = 32;  // what every scale covers a multiple of, and a segment is a multiple of

struct Piece {
  const std::byte* data;
  const uint8_t* scale;
  const bf16* x;  // for all but the last kernel in whole 16 bytes, as weights and strides are
  int64_t x_stride;
  // Of quantised activations, for the kernels that do not quantise themselves: e4m3 [rows, in] and scales [in /
  // act_block, scale_stride].
  const uint8_t* codes;
  const float* code_scales;
  bf16* rounded;
  float* exact;
  int64_t y_stride;
  int in, first_out, outs, rows;
  int row_shift, k_shift,
      scale_width;  // the scale of (row, k): scale[(row >> row_shift) * scale_width + (k >> k_shift)]
  int act_shift;    // that of an activation: k >> act_shift
  int scale_stride;
  int segments;
  bool add;                 // to what is there
  int first_block, blocks;  // of the launch; clusters where it is in clusters
};

// What one launch can hold.
struct Pieces {
  static constexpr int kMost = 16;
  int count;
  int first_block[kMost];  // of the pieces, near each other
  Piece piece[kMost];
};

// The piece that a block works on.
__device__ __forceinline__ const Piece& piece_of(const Pieces& pieces, int block) {
  int i = 0;
  while (i + 1 < pieces.count && block >= pieces.first_block[i + 1]) ++i;
  return pieces.piece[i];
}

// Segments of a row of whole blocks: as many as leave 256 values to each, at most one for each warp of a block of the
// kernel for few rows.
inline constexpr int kMostSegments = 8;
inline int segments_of(int in) {
  int segments = kMostSegments;
  while (segments > 1 && in / segments < 256) segments /= 2;
  return segments;
}

// Where segment `s` begins, in blocks; `unit` is that of the sums.
__host__ __device__ inline int segment_begin(const Piece& piece, int unit, int s) {
  return piece.in / unit * s / piece.segments * (unit / kBlock);
}

// Values that a block prepares, `count` from block `begin` on: those of a segment, and those that are quantised with
// them.
struct Extent {
  int begin, count;

  __host__ __device__ static Extent of_row(const Piece& piece) { return {0, piece.in}; }
  __host__ __device__ static Extent of_segment(const Piece& piece, int unit, int s) {
    constexpr int kWhole = 128 / kBlock;  // blocks of 32 that any block of activations divides
    const int begin = segment_begin(piece, unit, s) / kWhole * kWhole;
    const int end = (segment_begin(piece, unit, s + 1) + kWhole - 1) / kWhole * kWhole * kBlock;
    return {begin, (end < piece.in ? end : piece.in) - begin * kBlock};
  }
};

// Gives every piece a block for each tile of `outs` outputs of `rows` rows; returns the blocks of the launch.
inline int tile_blocks(Pieces& pieces, int outs, int rows) {
  int blocks = 0;
  for (int i = 0; i < pieces.count; ++i) {
    Piece& piece = pieces.piece[i];
    pieces.first_block[i] = piece.first_block = blocks;
    piece.blocks = (piece.outs + outs - 1) / outs * ((piece.rows + rows - 1) / rows);
    blocks += piece.blocks;
  }
  return blocks;
}

// A part of a row for the kernels of many rows: blocks from `block` on, to `end` or as many as they take at a time.
struct Place {
  int segment, block, end;

  __device__ static Place of_segment(const Piece& piece, int unit, int segment) {
    if (segment == piece.segments) return {segment, 0, 0};
    return {segment, segment_begin(piece, unit, segment), segment_begin(piece, unit, segment + 1)};
  }
  __device__ bool there(const Piece& piece) const { return segment < piece.segments; }
  // The part after this one of `blocks`: none has values of two segments.
  __device__ Place after(const Piece& piece, int unit, int blocks) const {
    if (!there(piece) || block + blocks < end) return {segment, block + blocks, end};
    return of_segment(piece, unit, segment + 1);
  }
};

__device__ __forceinline__ uint32_t weight_scale(const Piece& piece, int row, int k) {
  return ptx::load_byte(piece.scale + static_cast<int64_t>(row >> piece.row_shift) * piece.scale_width +
                        (k >> piece.k_shift));
}

__device__ __forceinline__ void store_output(const Piece& piece, int row, int out, float y) {
  const int64_t at = row * piece.y_stride + out;
  if (piece.rounded != nullptr) {
    piece.rounded[at] = float_to_bf16(y);
  } else {
    piece.exact[at] = piece.add ? piece.exact[at] + y : y;
  }
}

// The e4m3 codes of a lane's 8 kEights values, the block of which neighbouring lanes hold, and their scale: for all
// lanes of a warp.
template <int kEights>
__device__ __forceinline__ void quantise_lane(const uint4 (&values)[kEights], int act_shift, uint2 (&codes)[kEights],
                                              uint32_t& scale) {
  uint32_t words[kEights][4];
  // Magnitudes of bf16 are ordered as their bits, those that are not finite above all others.
  uint32_t most = 0;
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    words[e][0] = values[e].x, words[e][1] = values[e].y, words[e][2] = values[e].z, words[e][3] = values[e].w;
#pragma unroll
    for (int i = 0; i < 4; ++i) most = __vmaxu2(most, words[e][i] & 0x7fff7fffu);
  }
  constexpr int kMostLanes = 128 / (8 * kEights);
#pragma unroll
  for (int distance = 1; distance < kMostLanes; distance *= 2) {
    if (8 * kEights * distance < 1 << act_shift) most = __vmaxu2(most, __shfl_xor_sync(0xffffffff, most, distance));
  }
  const float amax = __uint_as_float(max(most << 16, most & 0xffff0000u));
  scale = amax < __uint_as_float(0x7f800000u) ? fp8_scale(amax) : 255;
  const float inverse = inverse_e8m0(scale);
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack_bf16(words[e][i]);
      pairs[i] = pack_e4m3(pair.x * inverse, pair.y * inverse);
    }
    codes[e] = scale == 255 ? make_uint2(0x7f7f7f7fu, 0x7f7f7f7fu)
                            : make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
  }
}

// -- the kernels' launchers ------------------------------------------------------------------------------------------

// How the pieces of a launch are made.
struct PieceKind {
  Matrix::Kind kind;
  bool quantised;
  int unit;  // 32 or 128
};

// Up to kFewRows rows a piece. False, and nothing done, where their activations do not fit into shared memory.
inline constexpr int kFewRows = 16;
bool multiply_few_rows(const Stage& stage, const PieceKind& kind, Pieces& pieces);
// Any number of rows; needs codes.
void multiply_many_rows(const Stage& stage, const PieceKind& kind, Pieces& pieces);
// The same to the bit, on Hopper. False, and nothing done, where scales of 128 rows do not begin where a piece does.
bool multiply_many_rows_sm90(const Stage& stage, const PieceKind& kind, Pieces& pieces);
// Any shape and alignment; needs codes.
void multiply_any_shape(const Stage& stage, Matrix::Kind kind, const Piece& piece);

// Gives a piece codes and scales of its quantised activations.
void quantise_rows(const Stage& stage, Piece& piece);
// Gives it a copy of its x in whole 16 bytes.
void align_rows(const Stage& stage, Piece& piece);

// What a block of a kernel may have.
int shared_memory_limit();

}  // namespace onelane::cuda
