// What the experts' products (experts_product.cu) read, and how it gets to shared memory: units of two times 16 rows of
// one expert's weights, a segment of k to each warp, stages of 64 bytes of each row with what belongs to them, copied
// ahead into the warp's ring.
//
// A stage is four blocks of 32 values of fp4, or two of fp8.
#pragma once

#include "cuda/moe/experts.h"

namespace onelane::cuda::moe {

inline constexpr int kSegments = 8;  // warps of a block
inline constexpr int kTileRows = 16;
inline constexpr int kStageBytes = 64;               // of a row
inline constexpr int kRowStride = kStageBytes + 16;  // in shared memory: rows of 16 bytes do not meet in a bank
inline constexpr int kWeightBytes = 2 * kTileRows * kRowStride;
inline constexpr int kScaleBytes = 4 * 2 * kTileRows * 4;  // a word for each block and row
// Of the codes of activations, for kGroups times 8 columns. Those of one group stay in the first-level cache from unit
// to unit, and are read from there.
template <int kGroups>
inline constexpr int kCodeBytes = kGroups == 1 ? 0 : kGroups * 1024;
template <int kGroups>
inline constexpr int kSlotBytes = kWeightBytes + kScaleBytes + kCodeBytes<kGroups> + kGroups * 128;

// How a matrix lies in memory.
struct Layout {
  bool fp4;
  bool quads;  // fp4 whose scales of four blocks are an aligned word
  bool pairs;  // fp8 of whole stages
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

// Codes and scales of the activations, by row.
struct Activations {
  const uint8_t* codes;
  const float* factors;
  int64_t code_row;  // bytes
  int factor_row;
  int factor_shift;  // blocks of 32 that share a factor
  int blocks;        // of a row
};

// The stages of the warp's segment: whole quads of blocks, as many for every warp as there are.
struct Segment {
  int first = 0, last = 0;

  Segment() = default;
  __device__ __forceinline__ Segment(const Layout& layout, int blocks, int warp) {
    const int quads = (blocks + 3) / 4, share = (quads + kSegments - 1) / kSegments;
    const int begin = min(warp * share, quads), end = min(begin + share, quads);
    const int all = (layout.row_bytes + kStageBytes - 1) / kStageBytes;
    first = layout.fp4 ? begin : min(2 * begin, all);
    last = layout.fp4 ? end : min(2 * end, all);
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

// Starts copies of stage `stage` into `slot`, whatever the layout. `code_rows` are of the lane's column lane / 4,
// `factor_rows` of lane % 8; none where a row < 0.
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
  const uint32_t codes = scales + kScaleBytes, factors = codes + kCodeBytes<kGroups>;
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    if (kCodeBytes<kGroups> > 0 && code_rows[n] >= 0) {
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

// The same of quads and, without the weights' scales, of pairs, by addresses that only advance; of the lane.
template <int kGroups>
struct SteadySource {
  const std::byte* weights[2];
  uint32_t to_other_half;  // 8 rows on
  const uint8_t* scale;
  const uint8_t* codes[kGroups];  // null: no column
  const float* factors[kGroups];
  int factor_step;

  SteadySource() = default;
  __device__ __forceinline__ SteadySource(const Rows& rows, const Activations& x, int stage,
                                          const int (&code_rows)[kGroups], const int (&factor_rows)[kGroups]) {
    const int lane = threadIdx.x % 32;
    const int quad = rows.layout.fp4 ? stage : stage / 2;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      weights[m] =
          rows.data[m] + static_cast<int64_t>(lane / 4) * rows.layout.row_bytes + (stage * kStageBytes + lane % 4 * 16);
    }
    to_other_half = 8 * static_cast<uint32_t>(rows.layout.row_bytes);
    const bool first = lane < kTileRows;
    scale = (first ? rows.scale[0] : rows.scale[1]) +
            static_cast<int64_t>((first ? rows.first_row[0] : rows.first_row[1]) + lane % kTileRows) *
                rows.layout.scale_row +
            stage * 4;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      codes[n] = code_rows[n] < 0 ? nullptr : x.codes + code_rows[n] * x.code_row + (quad * 128 + lane % 4 * 32);
      factors[n] = factor_rows[n] < 0 ? nullptr
                                      : x.factors + static_cast<int64_t>(factor_rows[n]) * x.factor_row +
                                            ((4 * quad + lane / 8) >> x.factor_shift);
    }
    factor_step = 4 >> x.factor_shift;
  }

  // To the first of `stages` stages of the rows that follow in both matrices, `count` on.
  __device__ __forceinline__ void next_rows(const Layout& layout, int count, int stages) {
#pragma unroll
    for (int m = 0; m < 2; ++m) weights[m] += count * layout.row_bytes - stages * kStageBytes;
    scale += count * layout.scale_row - stages * 4;
    const int quads = layout.fp4 ? stages : stages / 2;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (kCodeBytes<kGroups> > 0 && codes[n] != nullptr) codes[n] -= quads * 128;
      if (factors[n] != nullptr) factors[n] -= quads * factor_step;
    }
  }

  __device__ __forceinline__ void copy_weights(uint32_t slot) {
    const int lane = threadIdx.x % 32;
    const uint32_t to = slot + lane / 4 * kRowStride + lane % 4 * 16;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      ptx::copy_async<16>(to + m * kTileRows * kRowStride, weights[m]);
      ptx::copy_async<16>(to + (m * kTileRows + 8) * kRowStride, weights[m] + to_other_half);
      weights[m] += kStageBytes;
    }
  }
  __device__ __forceinline__ void copy_quad(uint32_t slot) {
    copy_weights(slot);
    const int lane = threadIdx.x % 32;
    const uint32_t scales = slot + kWeightBytes;
    ptx::copy_async<4>(scales + lane * 4, scale);
    scale += 4;
    const uint32_t to_codes = scales + kScaleBytes + lane * 16;
    const uint32_t to_factors = scales + kScaleBytes + kCodeBytes<kGroups> + lane * 4;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (kCodeBytes<kGroups> > 0 && codes[n] != nullptr) {
        ptx::copy_async<16>(to_codes + n * 1024, codes[n]);
        ptx::copy_async<16>(to_codes + n * 1024 + 512, codes[n] + 16);
        codes[n] += 128;
      }
      if (factors[n] != nullptr) {
        ptx::copy_async<4>(to_factors + n * 128, factors[n]);
        factors[n] += factor_step;
      }
    }
  }
  __device__ __forceinline__ void copy_pair(uint32_t slot, int stage, const Activations& x) {
    copy_weights(slot);
    const int lane = threadIdx.x % 32;
    const uint32_t to_codes = slot + kWeightBytes + kScaleBytes + lane * 16;
    const uint32_t to_factors = slot + kWeightBytes + kScaleBytes + kCodeBytes<kGroups> + lane * 4;
    const int in_quad = stage % 2;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (kCodeBytes<kGroups> > 0 && codes[n] != nullptr) {
        ptx::copy_async<16>(to_codes + n * 1024, codes[n] + in_quad * 16);
        codes[n] += in_quad * 128;
      }
      if (factors[n] != nullptr && lane < 16) {
        ptx::copy_async<4>(to_factors + n * 128, factors[n] + (x.factor_shift == 0 ? in_quad * 2 : 0));
      }
      if (factors[n] != nullptr) factors[n] += in_quad * factor_step;
    }
  }
};

}  // namespace onelane::cuda::moe
