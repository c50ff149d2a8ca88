// Products of many rows on Hopper: those of many_rows.cu to the bit, because its tensor cores sum for a warpgroup
// exactly as they do for a warp.
//
// Blocks stay, and make tiles of 128 outputs of 128 rows. One warpgroup fills a ring of stages, 128 values of every row
// of activations as 16-bit floats, and runs ahead into the next tile. Two others multiply, 64 outputs each: a weight
// concerns one warp of the block alone, so its lanes take it from memory themselves and have it, decoded, as an operand
// in registers: of one step of a stage while the tensor cores are at the one before.
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
constexpr int kStages = 4;
constexpr int kGroupOuts = kOuts / kMultiplying;

// Registers of a thread; together what all have at the start.
constexpr int kMultiplyRegisters = 216, kFillRegisters = 72;

template <class F>
struct Shape {
  static constexpr int kSteps = kStageBlocks / F::kStepBlocks;
  static constexpr int kUnitBlocks = F::kUnit / kBlock, kUnits = kStageBlocks / kUnitBlocks;
  // A stage is a unit, and segments are whole ones.
  static constexpr bool kWhole = kUnits == 1;
  // All outputs of a tile have the unit's scale in common; with that of the activations it is in the stage.
  static constexpr bool kTileScale = F::kScaled && kWhole;
};

// Shared memory.
template <class F>
struct Memory {
  static constexpr int kScales = 2 * kPanel;  // of a stage: float [unit][row]
  static constexpr int kStage = kScales + (F::kQuantised ? kStageBlocks * kRows * 4 : 0);
  static constexpr int kTotals = kStages * kStage;             // of each warpgroup, float [tile of 8 rows][thread][4]
  static constexpr int kCopied = kTotals + kRows * kOuts * 4;  // a stage's activations, not yet as operands
  static constexpr int kBarriers = kCopied + kRows * kStageBlocks * F::kActBlockBytes;  // of full, then empty stages
  static constexpr int kBytes = kBarriers + 2 * kStages * 8;
  static_assert(kStage % 1024 == 0 && kBytes <= 227 * 1024);
};

struct Tile {
  int first_out, first_row;
};

// Tiles in the order of blocks: 16 of rows beside each other for all outputs, then the next 16, so that what runs at a
// time shares both operands in the second-level cache.
__device__ Tile tile_of(const Piece& piece, int block) {
  constexpr int kBeside = 16;
  const int index = block - piece.first_block;
  const int out_tiles = (piece.outs + kOuts - 1) / kOuts, row_tiles = (piece.rows + kRows - 1) / kRows;
  const int band = index / (kBeside * out_tiles), inside = index % (kBeside * out_tiles);
  const int beside = min(kBeside, row_tiles - band * kBeside);
  return {inside / beside * kOuts, (band * kBeside + inside % beside) * kRows};
}

using Slot = Ring<kStages>;

// The stages of a block's tiles, one after the other.
template <class F>
struct StageWalk {
  const Pieces& pieces;
  int left;  // tiles, with this one
  int index;
  const Piece* piece;
  Tile tile;
  Place place;

  __device__ __forceinline__ StageWalk(const Pieces& pieces, int tiles)
      : pieces(pieces),
        left((tiles - static_cast<int>(blockIdx.x) - 1) / static_cast<int>(gridDim.x) + 1),
        index(blockIdx.x) {
    enter();
  }
  __device__ __forceinline__ bool there() const { return left > 0; }
  // Whether the next stage is of the same tile.
  __device__ __forceinline__ bool next() {
    place = place.after(*piece, F::kUnit, kStageBlocks);
    if (place.there(*piece)) return true;
    index += gridDim.x;
    if (--left > 0) enter();
    return false;
  }
  __device__ __forceinline__ bool has(int block) const { return Shape<F>::kWhole || place.block + block < place.end; }
  // Whether the stage is its segment's last.
  __device__ __forceinline__ bool ends() const { return place.block + kStageBlocks >= place.end; }

 private:
  __device__ __forceinline__ void enter() {
    piece = &piece_of(pieces, index);
    tile = tile_of(*piece, index);
    place = Place::of_segment(*piece, F::kUnit, 0);
  }
};

// Fills the ring: thread 4 r + t of the warpgroup takes part t of rows r, r + 32, ..., of a *step* of all of them at a
// time. What a warp has asked for, a whole stage of its rows, is copied to places of its own and takes no registers:
// what comes from the second-level cache takes as long as a stage's products.
template <class F>
__device__ __forceinline__ void fill(const Pieces& pieces, int tiles, uint8_t* shared, Slot slot) {
  using S = Shape<F>;
  using Part = typename F::Activations;
  constexpr int kPartRows = kRows / 32, kCopyBytes = F::kActBytes < 16 ? F::kActBytes : 16;
  constexpr int kCopies = F::kActBytes / kCopyBytes;                       // of a part
  constexpr int kAtOnce = F::kActBytes <= 16 ? kPartRows : kPartRows / 2;  // parts, by what registers there are
  const int thread = threadIdx.x % kGroup, lane = thread % 32, t = thread % 4, r = thread / 4;
  StageWalk<F> walk(pieces, tiles), ahead = walk;
  // Lanes copy what lies beside each other in memory: chunk `lane` % (4 kCopies) of a row.
  const int copied_row = lane / (4 * kCopies), copied_chunk = lane % (4 * kCopies);
  const uint8_t* rows[kPartRows][kCopies];  // of `ahead`
  const auto enter = [&] {
    const Piece& piece = *ahead.piece;
#pragma unroll
    for (int j = 0; j < kPartRows; ++j) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int of_warp = thread / 32 * 8 + i * (8 / kCopies) + copied_row;
        const int64_t row = min(ahead.tile.first_row + of_warp + 32 * j, piece.rows - 1);
        rows[j][i] = (F::kQuantised ? piece.codes + row * piece.in
                                    : reinterpret_cast<const uint8_t*>(piece.x + row * piece.x_stride)) +
                     copied_chunk * kCopyBytes;
      }
    }
  };
  // Chunk `chunk` of row `row` of the warp's eight. Where two make a part, they trade places so that eight lanes' parts
  // are in different banks.
  const auto place = [&](int step, int j, int row, int chunk) {
    const int at = (step * kPartRows + j) * 32 + thread / 32 * 8 + row;
    return ptx::shared_address(shared) + Memory<F>::kCopied + at * (4 * F::kActBytes) +
           (kCopies == 1 ? chunk : chunk ^ row % 2) * kCopyBytes;
  };
  // Nothing where the segment has no such step.
  const auto ask = [&](int step) {
    if (ahead.there() && ahead.has(step * F::kStepBlocks)) {
      const int64_t at = ahead.place.block * F::kActBlockBytes + step * (4 * F::kActBytes);
#pragma unroll
      for (int j = 0; j < kPartRows; ++j) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          const int row = i * (8 / kCopies) + copied_row;
          ptx::copy_async<kCopyBytes>(place(step, j, row, copied_chunk), rows[j][i] + at);
        }
      }
    }
    ptx::copies_commit();
  };
  float scale[S::kUnits];  // of `ahead`, of row `thread`
  uint32_t code;           // of the weights that go with it
  const auto ask_for_scales = [&] {
    if constexpr (F::kQuantised) {
      if (!ahead.there()) return;
      const Piece& piece = *ahead.piece;
      // scale_stride is whole tiles of rows, so there is no end to mind.
#pragma unroll
      for (int unit = 0; unit < S::kUnits; ++unit) {
        const int block =
            S::kWhole ? ahead.place.block : min(ahead.place.block + unit * S::kUnitBlocks, ahead.place.end - 1);
        scale[unit] = piece.code_scales[static_cast<int64_t>(block * kBlock >> piece.act_shift) * piece.scale_stride +
                                        ahead.tile.first_row + thread];
      }
      if constexpr (S::kTileScale) {
        code = weight_scale(piece, piece.first_out + ahead.tile.first_out, ahead.place.block * kBlock);
      }
    }
  };
  enter();
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) ask(step);
  ask_for_scales();
  while (walk.there()) {
    if (!ahead.next() && ahead.there()) enter();
    ptx::mbarrier_wait_in_block(slot.empty(), slot.round ^ 1);
    uint8_t* stage = shared + slot.index * Memory<F>::kStage;
    if constexpr (F::kQuantised) {
      float* scales = reinterpret_cast<float*>(stage + Memory<F>::kScales);
#pragma unroll
      for (int unit = 0; unit < S::kUnits; ++unit) {
        scales[unit * kRows + thread] = S::kTileScale ? scale[unit] * F::factor(code) : scale[unit];
      }
    }
    ask_for_scales();
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      ptx::copies_wait<S::kSteps - 1>();
      __syncwarp();
#pragma unroll
      for (int base = 0; base < kPartRows; base += kAtOnce) {
        if (!walk.has(step * F::kStepBlocks)) break;
        Part parts[kAtOnce];  // all loaded before the first is needed
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
          for (int i = 0; i < kCopies; ++i) {
            const uint32_t from = place(step, base + j, lane / 4, kCopies * t + i);
            if constexpr (kCopyBytes == 16) {
              const uint4 four = ptx::load_shared_four(from);
              parts[j].word[4 * i] = four.x, parts[j].word[4 * i + 1] = four.y;
              parts[j].word[4 * i + 2] = four.z, parts[j].word[4 * i + 3] = four.w;
            } else {
              const uint2 two = ptx::load_shared_two(from);
              parts[j].word[0] = two.x, parts[j].word[1] = two.y;
            }
          }
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          uint32_t words[2 * F::kProducts];
          F::activations(parts[j], words);
          uint8_t* row = stage + (r + 32 * (base + j)) * kLine + t * 4;
#pragma unroll
          for (int i = 0; i < 2 * F::kProducts; ++i) {
            const int chunk = step * (2 * F::kProducts) + i;  // of 8 values as products have them
            *reinterpret_cast<uint32_t*>(row + chunk / 8 * kPanel + ((chunk % 8) ^ (r % 8)) * 16) = words[i];
          }
        }
      }
      __syncwarp();
      ask(step);
    }
    ptx::fence_async_proxy();
    __syncwarp();
    if (thread % 32 == 0) ptx::mbarrier_arrive(slot.full());
    slot.next();
    walk.next();
  }
}

// A lane's weights: rows g and g + 8 of its warp's 16, with the scales that are not in the stage. What a step or the
// scales were needed for, those of the next stage take the registers of.
template <class F>
class LaneWeights {
  using S = Shape<F>;
  static constexpr bool kHasScales = F::kScaled && !(S::kTileScale && F::kQuantised);

 public:
  using Operands = uint32_t[F::kProducts][4];

  __device__ __forceinline__ LaneWeights(const StageWalk<F>& walk) : ahead_(walk) {
    enter();
    load_scales();
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) load(s);
  }
  // Whether there is a stage whose first step has not been decoded.
  __device__ __forceinline__ bool there() const { return ahead_.there(); }
  // Steps in order, as far as the segment has them.
  __device__ __forceinline__ void decode(int step, Operands& a) {
    F::weights(words_[step][0], words_[step][1], a);
    if (step == 0) {
      const bool same = ahead_.next();
      if (!same && ahead_.there()) enter();
    }
    skip(step);
  }
  // A step that its segment does not have.
  __device__ __forceinline__ void skip(int step) {
    if (ahead_.there()) load(step);
  }
  // Of a stage whose first step has been decoded.
  __device__ __forceinline__ void take_scales(float (&factor)[S::kUnits][2]) {
#pragma unroll
    for (int unit = 0; unit < S::kUnits; ++unit) {
#pragma unroll
      for (int half = 0; half < 2; ++half) factor[unit][half] = kHasScales ? F::factor(codes_[unit][half]) : 1.0f;
    }
    if (ahead_.there()) load_scales();
  }

 private:
  __device__ __forceinline__ void enter() {
    const Piece& piece = *ahead_.piece;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int out = ahead_.tile.first_out + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + 8 * half;
      row_[half] = piece.first_out + min(out, piece.outs - 1);
      from_[half] = piece.data + row_[half] * F::row_bytes(piece.in) + lane % 4 * F::kWeightBytes;
    }
  }
  __device__ __forceinline__ void load(int step) {
    if (!ahead_.has(step * F::kStepBlocks)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      words_[step][half] = *reinterpret_cast<const typename F::Weights*>(
          from_[half] + ahead_.place.block * F::kBlockBytes + step * (4 * F::kWeightBytes));
    }
  }
  __device__ __forceinline__ void load_scales() {
    if constexpr (kHasScales) {
#pragma unroll
      for (int unit = 0; unit < S::kUnits; ++unit) {
        if (!ahead_.has(unit * S::kUnitBlocks)) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          codes_[unit][half] =
              weight_scale(*ahead_.piece, row_[half], (ahead_.place.block + unit * S::kUnitBlocks) * kBlock);
        }
      }
    }
  }

  StageWalk<F> ahead_;
  const std::byte* from_[2];
  int row_[2];
  typename F::Weights words_[S::kSteps][2];
  uint32_t codes_[S::kUnits][2];
};

// A thread's sums of a tile.
using Sums = float[kColumnTiles][4];

// Multiplies, tile by tile, and calls `take` with the sums of each.
template <class F, class Take>
__device__ __forceinline__ void multiply(const Pieces& pieces, int tiles, uint8_t* shared, Slot slot,
                                         const Take& take) {
  using S = Shape<F>;
  const int thread = threadIdx.x, lane = thread % 32, t = lane % 4;
  StageWalk<F> walk(pieces, tiles);
  LaneWeights<F> weights(walk);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const uint32_t shared_address = ptx::shared_address(shared);
  float4* totals = reinterpret_cast<float4*>(shared + Memory<F>::kTotals) + thread / kGroup * (kColumnTiles * kGroup) +
                   thread % kGroup;
  Sums acc = {};
  typename LaneWeights<F>::Operands a[2];  // of steps by turns
  weights.decode(0, a[0]);
  while (walk.there()) {
    float factor[S::kUnits][2];
    weights.take_scales(factor);
    ptx::mbarrier_wait_in_block(slot.full(), slot.round);
    const float* scales =
        reinterpret_cast<const float*>(shared + slot.index * Memory<F>::kStage + Memory<F>::kScales) + 2 * t;
    Sums d;
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      if (!walk.has(step * F::kStepBlocks)) {
        if (step > 0) weights.skip(step);
        continue;
      }
      const int unit = step / F::kUnitSteps, of_unit = step % F::kUnitSteps;
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < F::kProducts; ++i) {
        const int product = step * F::kProducts + i;
        const uint32_t at = shared_address + slot.index * Memory<F>::kStage + product / 4 * kPanel + product % 4 * 32;
        ptx::wgmma_128<F::kQuantised>(d, a[step % 2][i], ptx::swizzled_matrix(at), of_unit > 0 || i > 0);
      }
      ptx::wgmma_commit();
      if (step == 0) {
        ptx::hold(d);
        release_before(slot, lane);
      }
      if (of_unit > 0) ptx::wgmma_wait<1>();
      if (step + 1 < S::kSteps ? walk.has((step + 1) * F::kStepBlocks) : S::kWhole && weights.there()) {
        weights.decode((step + 1) % S::kSteps, a[(step + 1) % 2]);
      }
      if (of_unit + 1 < F::kUnitSteps) continue;
      ptx::wgmma_wait<0>();
      ptx::hold(d);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        float2 act_scale = make_float2(1, 1);
        if constexpr (F::kQuantised) act_scale = *reinterpret_cast<const float2*>(scales + unit * kRows + j * 8);
        if constexpr (F::kQuantised && S::kTileScale) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            acc[j][i] = __fmaf_rn(d[j][i], i % 2 == 0 ? act_scale.x : act_scale.y, acc[j][i]);
          }
        } else {
          F::promote(acc[j], d[j], factor[unit][0], factor[unit][1], act_scale);
        }
      }
    }
    if (!walk.has(0)) release_before(slot, lane);  // nothing to multiply
    if (!S::kWhole && weights.there()) weights.decode(0, a[0]);
    slot.next();

    if (walk.ends()) {
      const bool first = walk.place.segment == 0, last = walk.place.segment + 1 == walk.piece->segments;
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        float4& place = totals[j * kGroup];
        float4 total = first ? make_float4(0, 0, 0, 0) : place;
        total.x += acc[j][0], total.y += acc[j][1], total.z += acc[j][2], total.w += acc[j][3];
        if (last) {
          acc[j][0] = total.x, acc[j][1] = total.y, acc[j][2] = total.z, acc[j][3] = total.w;
        } else {
          place = total;
          acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
        }
      }
      if (last) {
        take(*walk.piece, walk.tile, acc);
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
      }
    }
    walk.next();
  }
}

// Stores a warpgroup's sums of a tile, through the memory of its totals, so that rows are written in whole lines. It
// waits for no other.
__device__ __forceinline__ void store(const Piece& piece, const Tile& tile, float* staging, const Sums& acc) {
  const int group = threadIdx.x / kGroup, warp = threadIdx.x % kGroup / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  staging += group * (kRows * kGroupOuts);
  // Rows have their eights of outputs in different orders, so that no two lanes meet in a bank.
  const auto place = [](int row, int out) { return row * kGroupOuts + (out ^ row / 2 % 4 * 8); };
  ptx::named_barrier(1 + group, kGroup);
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) staging[place(j * 8 + 2 * t + i % 2, warp * 16 + g + 8 * (i / 2))] = acc[j][i];
  }
  ptx::named_barrier(1 + group, kGroup);
  constexpr int kLanes = kGroupOuts / 4;  // of a row
  const int out = tile.first_out + group * kGroupOuts + lane % kLanes * 4;
  const bool in_fours = out + 4 <= piece.outs && piece.y_stride % 4 == 0 && !piece.add &&
                        reinterpret_cast<uintptr_t>(piece.rounded) % 8 == 0 &&
                        reinterpret_cast<uintptr_t>(piece.exact) % 16 == 0;
  const int rows = min(kRows, piece.rows - tile.first_row);
  for (int i = threadIdx.x % kGroup / kLanes; i < rows; i += kGroup / kLanes) {
    const float4 y = *reinterpret_cast<const float4*>(staging + place(i, lane % kLanes * 4));
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
  ptx::named_barrier(1 + group, kGroup);
}

template <class F>
__global__ void __launch_bounds__(kThreads, 1) multiply_many_sm90(const __grid_constant__ Pieces pieces, int tiles) {
  ONELANE_DYNAMIC_SHARED(uint8_t, shared);
  const uint32_t barriers = ptx::shared_address(shared + Memory<F>::kBarriers);
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
    fill<F>(pieces, tiles, shared, Slot(barriers));
  } else {
    ptx::take_registers<kMultiplyRegisters>();
    multiply<F>(pieces, tiles, shared, Slot(barriers), [&](const Piece& piece, const Tile& tile, const Sums& acc) {
      store(piece, tile, reinterpret_cast<float*>(shared + Memory<F>::kTotals), acc);
    });
  }
}

}  // namespace

bool multiply_many_rows_sm90(const Stage& stage, const PieceKind& kind, Pieces& pieces) {
  if (kind.unit == 128) {
    // A tile's outputs have one scale.
    for (int i = 0; i < pieces.count; ++i) {
      if (pieces.piece[i].first_out % kOuts != 0 || pieces.piece[i].row_shift != 7) return false;
    }
  }
  const int tiles = tile_blocks(pieces, kOuts, kRows);
  with_format(kind, [&](auto format) {
    launch(stage, "multiply_many_sm90", multiply_many_sm90<decltype(format)>, dim3(std::min(tiles, stage.processors)),
           dim3(kThreads), Memory<decltype(format)>::kBytes, pieces, tiles);
  });
  return true;
}

}  // namespace onelane::cuda
