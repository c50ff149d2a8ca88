// Pairs to columns, activations to images (see experts_many.h).
#include <algorithm>

#include "cuda/linear/decode.h"
#include "cuda/linear/piece.h"
#include "cuda/moe/experts_many.h"
#include "cuda/moe/experts_units.h"

namespace onelane::cuda::moe {
namespace {

constexpr int kPlanThreads = 1024;
constexpr int kThreads = 256;
constexpr int kHalfWarps = kThreads / 16;

struct PlanArgs {
  const int32_t* ids;
  const float* weights;
  int rows, topk, expert_count;
  const ExpertPointers* experts;
  ExpertPointers shared;
  ColumnPlan plan;
};

// What the pairs of an expert share while columns are dealt out, the shared expert being number 0.
struct Deal {
  int32_t left;  // pairs without a column
  int32_t tiles, columns, first_tile, first_column;
};

// Calls `take` with each routed pair, its expert and of(pair), several loads at a time.
template <class Of, class Take>
__device__ __forceinline__ void for_each_pair(const PlanArgs& args, const Of& of, const Take& take) {
  constexpr int kAtOnce = 8;
  const int pairs = args.rows * args.topk;
  for (int base = threadIdx.x; base < pairs; base += kAtOnce * kPlanThreads) {
    int id[kAtOnce];
    float with[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int pair = min(base + i * kPlanThreads, pairs - 1);
      id[i] = __ldcg(args.ids + pair);
      with[i] = of(pair);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (base + i * kPlanThreads < pairs) take(base + i * kPlanThreads, id[i], with[i]);
    }
  }
}

// Where the tiles and columns of each expert begin; a warp.
__device__ __forceinline__ void deal_tiles(const PlanArgs& args, Deal* deals) {
  const int lane = threadIdx.x;
  int tiles = 0, columns = 0;
  for (int base = 0; base <= args.expert_count; base += 32) {
    const int e = base + lane;
    Deal deal = {};
    if (e <= args.expert_count) {
      deal.left = deals[e].left;
      deal.tiles = (deal.left + kMostColumns - 1) / kMostColumns;
      deal.columns = deal.tiles == 0 ? 0 : whole_columns((deal.left + deal.tiles - 1) / deal.tiles);
    }
    int tile_sum = deal.tiles, column_sum = deal.tiles * deal.columns;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int tiles_below = __shfl_up_sync(0xffffffff, tile_sum, distance);
      const int columns_below = __shfl_up_sync(0xffffffff, column_sum, distance);
      if (lane >= distance) tile_sum += tiles_below, column_sum += columns_below;
    }
    deal.first_tile = tiles + tile_sum - deal.tiles;
    deal.first_column = columns + column_sum - deal.tiles * deal.columns;
    if (e <= args.expert_count) deals[e] = deal;
    tiles += __shfl_sync(0xffffffff, tile_sum, 31);
    columns += __shfl_sync(0xffffffff, column_sum, 31);
  }
  if (lane == 0) args.plan.counts[0] = tiles, args.plan.counts[1] = columns;
}

// One block. Which column a pair gets is left to chance: no bit of its result depends on it.
__global__ void __launch_bounds__(kPlanThreads) plan_experts(const __grid_constant__ PlanArgs args) {
  ONELANE_DYNAMIC_SHARED(Deal, deals);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  for (int e = threadIdx.x; e <= args.expert_count; e += kPlanThreads) deals[e].left = e == 0 ? args.rows : 0;
  __syncthreads();
  for_each_pair(args, [](int) { return 0.0f; }, [&](int, int id, float) { atomicAdd(&deals[1 + id].left, 1); });
  __syncthreads();
  if (threadIdx.x < 32) deal_tiles(args, deals);
  __syncthreads();
  for (int e = threadIdx.x; e <= args.expert_count; e += kPlanThreads) {
    const Deal& deal = deals[e];
    for (int i = 0; i < deal.tiles; ++i) {
      const int count = (deal.left - i + deal.tiles - 1) / deal.tiles, first = deal.first_column + i * deal.columns;
      args.plan.tiles[deal.first_tile + i] = {e == 0 ? args.shared : args.experts[e - 1], e == 0, count, deal.columns,
                                              first};
      for (int j = count; j < deal.columns; ++j) args.plan.columns[first + j] = {first, deal.columns, -1, 0};
    }
  }
  __syncthreads();
  // The pairs of an expert by turns to its tiles.
  const auto place = [&](int pair, const Deal& deal, int turn, float weight) {
    const int first = deal.first_column + turn % deal.tiles * deal.columns, at = first + turn / deal.tiles;
    args.plan.place[pair] = at;
    args.plan.columns[at] = {first, deal.columns, pair, weight};
  };
  for_each_pair(
      args, [&](int pair) { return __ldcg(args.weights + pair); },
      [&](int pair, int id, float weight) {
        Deal& deal = deals[1 + id];
        place(pair, deal, atomicSub(&deal.left, 1) - 1, weight);
      });
  for (int row = threadIdx.x; row < args.rows; row += kPlanThreads) {
    place(args.rows * args.topk + row, deals[0], row, 1.0f);
  }
}

// Eight neighbouring values of a lane, 128 of a column in 16 lanes, quantised.
struct QuantisedEight {
  uint2 codes[1];
  uint32_t scale;  // its code

  __device__ __forceinline__ void quantise(const uint4& values, int block) {
    const uint4 all[1] = {values};
    quantise_lane(all, block == 128 ? 7 : 5, codes, scale);
  }
  // The lane's 16 bytes of the image, once lanes have traded: those of a block of 32 are the even values' lower and
  // upper eight and then the odd ones'.
  __device__ __forceinline__ uint4 bytes(const ScaleFactors& factors) const {
    uint32_t even[2], odd[2];
    e4m3_to_f16(ptx::permute(codes[0].x, codes[0].y, 0x6420), even);
    e4m3_to_f16(ptx::permute(codes[0].x, codes[0].y, 0x7531), odd);
    const uint32_t factor = factors.twice(scale);
    // Of four lanes each has a word of four chunks: now each gets a chunk.
    uint32_t words[4] = {ptx::multiply_f16(even[0], factor), ptx::multiply_f16(even[1], factor),
                         ptx::multiply_f16(odd[0], factor), ptx::multiply_f16(odd[1], factor)};
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((i & distance) != 0) continue;
        const uint32_t other = __shfl_xor_sync(0xffffffff, upper ? words[i] : words[i + distance], distance);
        words[i] = upper ? other : words[i];
        words[i + distance] = upper ? words[i + distance] : other;
      }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

// Where a lane writes of a column: of the first quad, and how far on the next one is.
class LaneColumn {
 public:
  __device__ __forceinline__ LaneColumn(const Image& image, int first, int columns, int column)
      : quads_(image.quads), quad_(columns * image.column_bytes()) {
    const int lane = threadIdx.x % 16, chunk = lane % 8;
    std::byte* tile = image.tile(first);
    bytes_ = tile + (lane / 8 * columns + column) * 128 + (chunk ^ column % 8) * 16;
    unit_ = lane != 0 ? nullptr : tile + columns * 256 + column * 4;
  }
  // Nothing beyond the last quad.
  __device__ __forceinline__ void write(int quad, const uint4& bytes, float unit) const {
    if (quad >= quads_) return;
    const int64_t at = static_cast<int64_t>(quad) * quad_;
    *reinterpret_cast<uint4*>(bytes_ + at) = bytes;
    if (unit_ != nullptr) *reinterpret_cast<float*>(unit_ + at) = unit;
  }

 private:
  int quads_, quad_;
  std::byte *bytes_, *unit_;
};

// Quantises a row, whose quads the half warps of a block take by turns, and calls `write` with each quad, the lane's
// bytes of it and its unit. Lanes trade, so the halves of a warp go on together, if need be beyond the last quad.
// `largest`: kSegments in shared memory. kAtOnce: quads of a half warp; longer rows are read twice.
template <int kAtOnce, class Write>
__device__ __forceinline__ void quantise_row(const bf16* x, int64_t row, const Image& image, uint32_t* largest,
                                             const Write& write) {
  constexpr int kTurn = kAtOnce * kHalfWarps;
  const int quads = image.quads, half_warp = threadIdx.x / 16;
  const uint4* from = reinterpret_cast<const uint4*>(x + row * quads * 128) + threadIdx.x % 16;
  QuantisedEight eights[kAtOnce];
  const auto read = [&](int base) {
    uint4 values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) values[i] = __ldcg(from + min(base + half_warp + i * kHalfWarps, quads - 1) * 16);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) eights[i].quantise(values[i], image.block);
  };
  if (threadIdx.x < kSegments) largest[threadIdx.x] = 0;
  __syncthreads();
  for (int base = 0; base < quads; base += kTurn) {
    read(base);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int quad = min(base + half_warp + i * kHalfWarps, quads - 1);
      if (threadIdx.x * 8 % image.block == 0) atomicMax(largest + segment_of(quads, quad), eights[i].scale);
    }
  }
  __syncthreads();
  for (int base = 0; base < quads; base += kTurn) {
    if (quads > kTurn) read(base);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int quad = base + half_warp + i * kHalfWarps;
      const uint32_t of_segment = largest[segment_of(quads, min(quad, quads - 1))];
      write(quad, eights[i].bytes(ScaleFactors(of_segment, kFp8Top)), fp8_unit(of_segment));
    }
  }
}

struct GatherArgs {
  const bf16* x;
  int rows, topk;
  const int32_t* place;
  const Column* columns;
  Image to;
};

// A block a row.
__global__ void __launch_bounds__(kThreads) gather_rows(const __grid_constant__ GatherArgs args) {
  ONELANE_DYNAMIC_SHARED(int4, uses);  // of the row: first and number of its tile's columns, its column
  __shared__ uint32_t largest[kSegments];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int row = blockIdx.x;
  for (int slot = threadIdx.x; slot <= args.topk; slot += kThreads) {
    const int at = __ldcg(args.place + (slot < args.topk ? row * args.topk + slot : args.rows * args.topk + row));
    const Column column = load_column(args.columns + at);
    uses[slot] = make_int4(column.first, column.columns, at - column.first, 0);
  }
  quantise_row<2>(args.x, row, args.to, largest, [&](int quad, const uint4& bytes, float unit) {
    for (int slot = 0; slot <= args.topk; ++slot) {
      LaneColumn(args.to, uses[slot].x, uses[slot].y, uses[slot].z).write(quad, bytes, unit);
    }
  });
}

struct QuantiseArgs {
  const bf16* x;
  const Column* columns;
  const int32_t* counts;
  Image to;
};

// A block a column.
template <int kAtOnce>
__global__ void __launch_bounds__(kThreads) quantise_hidden(const __grid_constant__ QuantiseArgs args) {
  __shared__ uint32_t largest[kSegments];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int at = blockIdx.x;
  if (at >= __ldcg(args.counts + 1)) return;
  const Column of = load_column(args.columns + at);
  if (of.pair < 0) return;
  const LaneColumn to(args.to, of.first, of.columns, at - of.first);
  quantise_row<kAtOnce>(args.x, at, args.to, largest,
                        [&](int quad, const uint4& bytes, float unit) { to.write(quad, bytes, unit); });
}

ColumnPlan plan_columns(const ExpertsCall& call) {
  const Stage& stage = *call.stage;
  const ExpertsArgs& a = *call.args;
  const int most_tiles = std::min(call.routed_pairs(), a.expert_count + call.routed_pairs() / kMostColumns) + 1 +
                         call.rows() / kMostColumns;
  ColumnPlan plan = {};
  // An expert's tiles have at most 16 columns each that are left over, its only one 31.
  plan.most_columns = call.pairs() + 16 * (most_tiles + std::min(call.routed_pairs(), a.expert_count) + 1);
  plan.tiles = stage.workspace->take<ManyTile>(most_tiles);
  plan.columns = stage.workspace->take<Column>(plan.most_columns);
  plan.place = stage.workspace->take<int32_t>(call.pairs());
  plan.counts = stage.workspace->take<int32_t>(2);
  launch(stage, "plan_experts", plan_experts, dim3(1), dim3(kPlanThreads), (1 + a.expert_count) * sizeof(Deal),
         PlanArgs{a.ids, a.weights, call.rows(), a.topk, a.expert_count, call.experts, pointers_of(a.shared), plan});
  return plan;
}

// Of any plan's columns.
size_t image_bytes(const ColumnPlan& plan, const Image& image) {
  return static_cast<size_t>(plan.most_columns) * image.quads * image.column_bytes();
}

}  // namespace

bool many_rows(const ExpertsCall& call) {
  constexpr int kEnough = 8;  // pairs of an expert, on average: measured (docs/step.md)
  return call.stage->arch == 90 && call.routed_pairs() >= kEnough * call.args->expert_count;
}

bf16* many_experts(const ExpertsCall& call) {
  const Stage& stage = *call.stage;
  const ExpertsArgs& a = *call.args;
  const int block = a.shared.w1.act_block;
  Image x = {nullptr, a.dim / 128, block}, middle = {nullptr, a.inter / 128, block};
  const ColumnPlan plan = plan_columns(call);
  // When the results come, x is not wanted any more.
  const size_t results = static_cast<size_t>(call.pairs()) * a.dim * sizeof(bf16);
  x.data = stage.workspace->take<std::byte>(std::max(image_bytes(plan, x), results));
  middle.data = stage.workspace->take<std::byte>(image_bytes(plan, middle));
  bf16* hidden = stage.workspace->take<bf16>(static_cast<size_t>(plan.most_columns) * a.inter);
  bf16* y = reinterpret_cast<bf16*>(x.data);
  launch(stage, "gather_rows", gather_rows, dim3(call.rows()), dim3(kThreads), (a.topk + 1) * sizeof(int4),
         GatherArgs{a.x, call.rows(), a.topk, plan.place, plan.columns, x});
  multiply_up(call, plan, x, hidden);
  const bool one_turn = middle.quads <= kHalfWarps;
  launch(stage, "quantise_hidden", one_turn ? quantise_hidden<1> : quantise_hidden<2>, dim3(plan.most_columns),
         dim3(kThreads), 0, QuantiseArgs{hidden, plan.columns, plan.counts, middle});
  multiply_down(call, plan, middle, y);
  return y;
}

}  // namespace onelane::cuda::moe
