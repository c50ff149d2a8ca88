// Products of many rows on Hopper: those of many_rows.cu to the bit, because its tensor cores sum for a warpgroup
// exactly as they do for a warp.
//
// A block makes a tile of 128 outputs of 128 rows. One warpgroup fills a ring of stages, 128 values of every row of
// activations as 16-bit floats. Two others multiply, 64 outputs each: a weight concerns one warp of the block alone, so
// its lanes take it from memory themselves and have it, decoded, as an operand in registers.
#include "cuda/linear/format.h"
#include "cuda/ptx/cluster.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/ring.h"

namespace onelane::cuda {
namespace {

constexpr int kGroup = 128;      // threads of a warpgroup
constexpr int kMultiplying = 2;  // of them
constexpr int kThreads = (kMultiplying + 1) * kGroup;
constexpr int kOuts = 64 * kMultiplying, kRows = 128, kColumnTiles = kRows / 8;
constexpr int kStageBlocks = 4;
constexpr int kPanel = kRows * kLine;  // 64 values of each row
constexpr int kScales = 2 * kPanel;    // float [unit][row]
constexpr int kStageBytes = kScales + kStageBlocks * kRows * 4;
constexpr int kStages = 4;
constexpr int kTotals = kStages * kStageBytes;          // float [tile of 8 rows][thread][4]
constexpr int kBarriers = kTotals + kOuts * kRows * 4;  // of full stages, then of empty ones
constexpr int kSharedBytes = kBarriers + 2 * kStages * 8;
constexpr int kStagingStride = kOuts + 4;  // floats: no two lanes in one bank
static_assert(kRows * kStagingStride * 4 <= kTotals);

// Registers of a thread; together what all have at the start.
constexpr int kMultiplyRegisters = 216, kFillRegisters = 72;

template <class F>
struct Shape {
  static constexpr int kSteps = kStageBlocks / F::kStepBlocks;
  static constexpr int kUnitBlocks = F::kUnit / kBlock, kUnits = kStageBlocks / kUnitBlocks;
};

struct Tile {
  int first_out, first_row;
};

// Tiles in the order of blocks: 16 of rows beside each other for all outputs, then the next 16, so that what runs at a
// time shares both operands in the second-level cache.
__device__ Tile tile_of(const Piece& piece) {
  constexpr int kBeside = 16;
  const int index = blockIdx.x - piece.first_block;
  const int out_tiles = (piece.outs + kOuts - 1) / kOuts, row_tiles = (piece.rows + kRows - 1) / kRows;
  const int band = index / (kBeside * out_tiles), inside = index % (kBeside * out_tiles);
  const int beside = min(kBeside, row_tiles - band * kBeside);
  return {inside / beside * kOuts, (band * kBeside + inside % beside) * kRows};
}

using Slot = Ring<kStages>;

// Fills the ring: thread 4 r + t of the warpgroup takes part t of rows r, r + 32, ...
template <class F>
__device__ __forceinline__ void fill(const Piece& piece, int first_row, uint8_t* shared, Slot slot) {
  using S = Shape<F>;
  constexpr int kPartRows = kRows / 32;
  constexpr int kAtOnce = F::kActBytes <= 16 ? kPartRows : kPartRows / 2;  // parts, by what registers there are
  constexpr int kTimes = kPartRows / kAtOnce, kItems = S::kSteps * kTimes;
  const int thread = threadIdx.x % kGroup, t = thread % 4, r = thread / 4;
  const uint8_t* rows[kPartRows];
#pragma unroll
  for (int j = 0; j < kPartRows; ++j) {
    const int64_t row = min(first_row + r + 32 * j, piece.rows - 1);
    rows[j] = (F::kQuantised ? piece.codes + row * piece.in
                             : reinterpret_cast<const uint8_t*>(piece.x + row * piece.x_stride)) +
              t * F::kActBytes;
  }
  const auto has = [&](const Place& place, int item) {
    return place.block + item / kTimes * F::kStepBlocks < place.end;
  };
  typename F::Activations next[kAtOnce];
  const auto load = [&](const Place& place, int item) {
    const int64_t at = place.block * F::kActBlockBytes + item / kTimes * (4 * F::kActBytes);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      next[j] = *reinterpret_cast<const typename F::Activations*>(rows[item % kTimes * kAtOnce + j] + at);
    }
  };
  Place place = Place::of_segment(piece, F::kUnit, 0);
  load(place, 0);
  while (place.there(piece)) {
    const Place following = place.after(piece, F::kUnit, kStageBlocks);
    float scale[S::kUnits];
    if constexpr (F::kQuantised) {
      // scale_stride is whole tiles of rows, so there is no end to mind.
#pragma unroll
      for (int unit = 0; unit < S::kUnits; ++unit) {
        const int block = min(place.block + unit * S::kUnitBlocks, place.end - 1);
        scale[unit] = piece.code_scales[static_cast<int64_t>(block * kBlock >> piece.act_shift) * piece.scale_stride +
                                        first_row + thread];
      }
    }
    ptx::mbarrier_wait(slot.empty(), slot.round ^ 1);
    uint8_t* stage = shared + slot.index * kStageBytes;
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      if (!has(place, item)) break;
      typename F::Activations parts[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) parts[j] = next[j];
      if (item + 1 < kItems && has(place, item + 1)) {
        load(place, item + 1);
      } else if (following.there(piece)) {
        load(following, 0);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        uint32_t words[2 * F::kProducts];
        F::activations(parts[j], words);
        uint8_t* row = stage + (r + 32 * (item % kTimes * kAtOnce + j)) * kLine + t * 4;
#pragma unroll
        for (int i = 0; i < 2 * F::kProducts; ++i) {
          const int chunk = item / kTimes * (2 * F::kProducts) + i;  // of 8 values as products have them
          *reinterpret_cast<uint32_t*>(row + chunk / 8 * kPanel + ((chunk % 8) ^ (r % 8)) * 16) = words[i];
        }
      }
    }
    if constexpr (F::kQuantised) {
      float* scales = reinterpret_cast<float*>(stage + kScales);
#pragma unroll
      for (int unit = 0; unit < S::kUnits; ++unit) scales[unit * kRows + thread] = scale[unit];
    }
    ptx::fence_async_proxy();
    __syncwarp();
    if (thread % 32 == 0) ptx::mbarrier_arrive(slot.full());
    slot.next();
    place = following;
  }
}

// A stage's weights of a lane: rows g and g + 8 of its warp's 16, with their scales.
template <class F>
struct StageWeights {
  typename F::Weights weights[Shape<F>::kSteps][2];
  uint32_t codes[Shape<F>::kUnits][2];

  __device__ __forceinline__ void load(const Piece& piece, const int (&row)[2], const Place& place) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::byte* from =
          piece.data + row[half] * F::row_bytes(piece.in) + place.block * F::kBlockBytes + t * F::kWeightBytes;
#pragma unroll
      for (int s = 0; s < Shape<F>::kSteps; ++s) {
        if (place.block + s * F::kStepBlocks >= place.end) break;
        weights[s][half] = *reinterpret_cast<const typename F::Weights*>(from + s * (4 * F::kWeightBytes));
      }
      if constexpr (F::kScaled) {
#pragma unroll
        for (int unit = 0; unit < Shape<F>::kUnits; ++unit) {
          const int block = place.block + unit * Shape<F>::kUnitBlocks;
          if (block < place.end) codes[unit][half] = weight_scale(piece, row[half], block * kBlock);
        }
      }
    }
  }
};

// Multiplies, and leaves the sums in `acc`.
template <class F>
__device__ __forceinline__ void multiply(const Piece& piece, int first_out, uint8_t* shared, Slot slot,
                                         float (&acc)[kColumnTiles][4]) {
  using S = Shape<F>;
  const int thread = threadIdx.x, lane = thread % 32, t = lane % 4;
  int row[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    row[half] = piece.first_out + min(first_out + thread / 32 * 16 + lane / 4 + 8 * half, piece.outs - 1);
  }
  StageWeights<F> next;
  Place place = Place::of_segment(piece, F::kUnit, 0);
  next.load(piece, row, place);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const uint32_t shared_address = ptx::shared_address(shared);
  float4* totals = reinterpret_cast<float4*>(shared + kTotals) + thread;
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[j][i] = 0;
  }
  while (place.there(piece)) {
    uint32_t a[S::kSteps][F::kProducts][4];
    float factor[S::kUnits][2] = {};
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) F::weights(next.weights[s][0], next.weights[s][1], a[s]);
    if constexpr (F::kScaled) {
#pragma unroll
      for (int unit = 0; unit < S::kUnits; ++unit) {
#pragma unroll
        for (int half = 0; half < 2; ++half) factor[unit][half] = F::factor(next.codes[unit][half]);
      }
    }
    const Place following = place.after(piece, F::kUnit, kStageBlocks);
    if (following.there(piece)) next.load(piece, row, following);
    ptx::mbarrier_wait(slot.full(), slot.round);
    const float* scales = reinterpret_cast<const float*>(shared + slot.index * kStageBytes + kScales) + 2 * t;
#pragma unroll
    for (int unit = 0; unit < S::kUnits; ++unit) {
      if (place.block + unit * S::kUnitBlocks >= place.end) break;
      float d[kColumnTiles][4];
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < F::kUnit / 16; ++i) {
        const int product = unit * (F::kUnit / 16) + i;  // of the stage
        const uint32_t at = shared_address + slot.index * kStageBytes + product / 4 * kPanel + product % 4 * 32;
        ptx::wgmma_128<F::kQuantised>(d, a[product / F::kProducts][product % F::kProducts], ptx::swizzled_matrix(at),
                                      i > 0);
      }
      ptx::wgmma_commit();
      ptx::hold(d);
      if (unit == 0) release_before(slot, lane);
      ptx::wgmma_wait<0>();
      ptx::hold(d);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        float2 act_scale = make_float2(1, 1);
        if constexpr (F::kQuantised) act_scale = *reinterpret_cast<const float2*>(scales + unit * kRows + j * 8);
        F::promote(acc[j], d[j], factor[unit][0], factor[unit][1], act_scale);
      }
    }
    if (place.block >= place.end) release_before(slot, lane);  // nothing to multiply
    slot.next();

    if (following.segment != place.segment) {
      const bool first = place.segment == 0, last = !following.there(piece);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        float4 total = first ? make_float4(0, 0, 0, 0) : totals[j * (kMultiplying * kGroup)];
        total.x += acc[j][0], total.y += acc[j][1], total.z += acc[j][2], total.w += acc[j][3];
        if (last) {
          acc[j][0] = total.x, acc[j][1] = total.y, acc[j][2] = total.z, acc[j][3] = total.w;
        } else {
          totals[j * (kMultiplying * kGroup)] = total;
          acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
        }
      }
    }
    place = following;
  }
}

// Stores the sums of a tile, through the ring's memory, so that rows are written whole.
__device__ __forceinline__ void store(const Piece& piece, const Tile& tile, float* staging,
                                      const float (&acc)[kColumnTiles][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  ptx::named_barrier(1, kMultiplying * kGroup);
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      staging[(j * 8 + 2 * t + i % 2) * kStagingStride + warp * 16 + g + 8 * (i / 2)] = acc[j][i];
  }
  ptx::named_barrier(1, kMultiplying * kGroup);
  const int out = tile.first_out + lane * 4;
  const bool in_fours = out + 4 <= piece.outs && piece.y_stride % 4 == 0 && !piece.add &&
                        reinterpret_cast<uintptr_t>(piece.rounded) % 8 == 0 &&
                        reinterpret_cast<uintptr_t>(piece.exact) % 16 == 0;
  const int rows = min(kRows, piece.rows - tile.first_row);
  for (int i = warp; i < rows; i += kMultiplying * kGroup / 32) {
    const float4 y = *reinterpret_cast<const float4*>(staging + i * kStagingStride + lane * 4);
    const int row = tile.first_row + i;
    const int64_t at = row * piece.y_stride + out;
    if (in_fours && piece.rounded != nullptr) {
      *reinterpret_cast<uint2*>(piece.rounded + at) = make_uint2(ptx::pack_bf16(y.x, y.y), ptx::pack_bf16(y.z, y.w));
    } else if (in_fours) {
      *reinterpret_cast<float4*>(piece.exact + at) = y;
    } else {
      const float values[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (out + j < piece.outs) store_output(piece, row, out + j, values[j]);
      }
    }
  }
}

template <class F>
__global__ void __launch_bounds__(kThreads, 1) multiply_many_sm90(const __grid_constant__ Pieces pieces) {
  ONELANE_DYNAMIC_SHARED(uint8_t, shared);
  const Piece& piece = piece_of(pieces, blockIdx.x);
  const Tile tile = tile_of(piece);
  const uint32_t barriers = ptx::shared_address(shared + kBarriers);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(barriers + i * 8, kGroup / 32);
      ptx::mbarrier_init(barriers + (kStages + i) * 8, kMultiplying * kGroup / 32);
    }
  }
  __syncthreads();
  if (threadIdx.x >= kMultiplying * kGroup) {
    ptx::give_registers<kFillRegisters>();
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
    fill<F>(piece, tile.first_row, shared, Slot(barriers));
  } else {
    ptx::take_registers<kMultiplyRegisters>();
    float acc[kColumnTiles][4];
    multiply<F>(piece, tile.first_out, shared, Slot(barriers), acc);
    store(piece, tile, reinterpret_cast<float*>(shared), acc);
  }
}

}  // namespace

void multiply_many_rows_sm90(const Stage& stage, const PieceKind& kind, Pieces& pieces) {
  const int blocks = tile_blocks(pieces, kOuts, kRows);
  with_format(kind, [&](auto format) {
    launch(stage, "multiply_many_sm90", multiply_many_sm90<decltype(format)>, dim3(blocks), dim3(kThreads),
           kSharedBytes, pieces);
  });
}

}  // namespace onelane::cuda
