// The experts' products: weights are read once, whatever the number of columns (see experts.h, experts_units.h,
// experts_copy.h, experts_weights.h, and for few rows experts_few.h).
//
// Blocks stay, and have a stretch of units each. Each of a block's eight warps has a segment of k, which the shape
// fixes, and a ring of its own, so that it waits for nothing but its own copies; they run ahead into the next unit
// while sums of the last one meet in shared memory, in ascending order.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "cuda/moe/experts_copy.h"

namespace onelane::cuda::moe {
namespace {

constexpr int kWarps = kSegments;
constexpr int kThreads = 32 * kWarps;
constexpr int kTilesAtHand = 49;  // copied to shared memory if there are no more
static_assert(kTilesAtHand >= 1 + kFewPairs);
template <int kGroups>
constexpr int kBlocksAtOnce = kGroups == 1 ? 2 : 1;  // of a multiprocessor

// The row of the activations that a pair has.
template <bool kDown, int kWidth>
__device__ __forceinline__ int row_of(const ProductArgs<kWidth>& args, int pair) {
  if (kDown) return pair;
  return pair < args.routed_pairs ? static_cast<int>(static_cast<uint32_t>(pair) * args.row_magic >> 32)
                                  : pair - args.routed_pairs;
}

template <int kGroups>
constexpr int kSumFloats = kWarps * 2 * kGroups * 128;

template <int kGroups>
constexpr int kSumPlaces = kGroups == 1 ? 2 : 1;
template <int kGroups>
constexpr int kSumBytes = kSumPlaces<kGroups> * kSumFloats<kGroups> * sizeof(float);
// Tiles at hand; the ring that follows is aligned to 64.
template <int kGroups>
constexpr int kTileBytes = kGroups == 1 ? (kTilesAtHand * sizeof(Tile<8>) + 63) / 64 * 64 : 0;

// All, but for activations: sums, tiles, rings, scales as floats, of units.
template <int kGroups, int kSlots, int kQuads>
constexpr int kMemory = kSumBytes<kGroups> + kTileBytes<kGroups> +
                        kWarps * (kSlots * kSlotBytes<kQuads> + kFloatScaleBytes + 2 * kUnitScaleBytes<kQuads>);

template <int kGroups>
__device__ __forceinline__ float add_segments(const float* sums, int m, int row, int column) {
  const float* at = sums + (m * kGroups + column / 8) * 128 + row * 8 + column % 8;
  float sum = at[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) sum += at[warp * 2 * kGroups * 128];
  return sum;
}

// What becomes of the sums. `thread`: which of kThreads the caller is, in a numbering of its own.
template <bool kDown, int kGroups>
__device__ __forceinline__ void finish_unit(const ProductArgs<8 * kGroups>& args, const Tile<8 * kGroups>& tile,
                                            int part, const float* sums, int thread) {
  constexpr int kRows = kDown ? 2 * kTileRows : kTileRows;
  for (int i = thread; i < kRows * tile.count; i += kThreads) {
    const int row = i % kRows, column = i / kRows;
    const int pair = tile.pairs[column];
    float value;
    if constexpr (kDown) {
      value = add_segments<kGroups>(sums, row / kTileRows, row % kTileRows, column);
    } else {
      const float gate = add_segments<kGroups>(sums, 0, row, column);
      const float up = add_segments<kGroups>(sums, 1, row, column);
      value = activation(gate, up, pair < args.routed_pairs ? args.weights[pair] : 1.0f, args.limit);
    }
    args.out[static_cast<int64_t>(pair) * args.out_width + part * kRows + row] = float_to_bf16(value);
  }
}

__device__ __forceinline__ void prefetch_range(const std::byte* data, int64_t bytes, int64_t thread, int64_t threads) {
  for (int64_t at = thread * 128; at < bytes; at += threads * 128) ptx::prefetch(data + at);
}

// kActBlock: values that share a scale of the activations. kFew: tiles are made here, and the second product quantises
// the activations.
template <bool kDown, int kGroups, int kSlots, int kActBlock, bool kFew, int kQuads>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<kGroups>)
    multiply_experts(const __grid_constant__ ProductArgs<8 * kGroups> args) {
  using ThisTile = Tile<8 * kGroups>;
  constexpr bool kEach = kActBlock == 32, kOwn = kDown && kFew;
  ONELANE_DYNAMIC_SHARED(std::byte, memory);
  float* sums = reinterpret_cast<float*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if constexpr (!kDown) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
    const int64_t bytes = static_cast<int64_t>(args.out_width) * args.shared.row_bytes;
    prefetch_range(args.shared_expert.w1, bytes, thread, threads);
    prefetch_range(args.shared_expert.w3, bytes, thread, threads);
  }
  if constexpr (!kDown && !kFew) {
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
  }
  // The second product's tiles, or with few rows what both products' are made from, are there before the wait: a
  // product could not start before the kernel ahead of it, or the one before that, had seen the end of what made them.
  // Of `args.x` that is not so.
  int tile_count;
  const ThisTile* tiles = args.tiles;
  if constexpr (kFew) {
    ThisTile* own = reinterpret_cast<ThisTile*>(memory + kSumBytes<kGroups>);
    tile_count = make_few_tiles(args.few, args.shared_expert, own, reinterpret_cast<int32_t*>(sums));
    tiles = own;
  } else {
    tile_count = __ldcg(args.tile_count);
  }
  if constexpr (kGroups == 1 && !kFew) {
    if (tile_count <= kTilesAtHand) {
      uint2* to = reinterpret_cast<uint2*>(memory + kSumBytes<kGroups>);
      const uint2* from = reinterpret_cast<const uint2*>(args.tiles);
      const int words = tile_count * static_cast<int>(sizeof(ThisTile) / sizeof(uint2));
      for (int i = threadIdx.x; i < words; i += kThreads) to[i] = __ldcg(from + i);
      tiles = reinterpret_cast<const ThisTile*>(to);
      __syncthreads();
    }
  }
  static_assert(kMemory<kGroups, kSlots, kQuads> % 16 == 0, "where activations follow");
  constexpr int kSlot = kSlotBytes<kQuads>;
  const uint32_t rings = ptx::shared_address(memory) + kSumBytes<kGroups> + kTileBytes<kGroups>;
  const uint32_t ring = rings + warp * kSlots * kSlot;
  const uint32_t float_scales = rings + kWarps * kSlots * kSlot;
  const uint32_t unit_scales = float_scales + kWarps * kFloatScaleBytes + warp * 2 * kUnitScaleBytes<kQuads>;
  Walk walk = Walk::of_block<std::conditional_t<kFew, uint32_t, int64_t>>(args, tile_count);
  Copier<kDown, 8 * kGroups, kSlots, kQuads> copier(args, tiles, walk, ring, unit_scales);
  if constexpr (kDown || kFew) {
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
  }

  uint32_t slot = ring, last_slot = ring + (kSlots - 1) * kSlot;
  const LanePlaces at(float_scales + warp * kFloatScaleBytes);
  uint32_t scales = unit_scales + lane * 4 * kStages<kQuads>;
  OwnActivations<kActBlock> own_x(memory + kMemory<kGroups, kSlots, kQuads>, args.x.width, args.few.rows);
  const Activations& activations = kOwn ? own_x.all : args.x;
  const OwnBlock own_block;
  int of_tile = -1, live = 0;
  bool narrow = false;
  Segment segment;
  // Of the lane in args.x, at the segment: values of its column of each group, scales of its two columns.
  int x[kGroups], x_scales[kGroups][2];
  uint4 values[std::max(1, kStages<kQuads>)];  // of a narrow tile
  for (int turn = 0; walk.left > 0; walk.next(args), ++turn) {
    const ThisTile& tile = tiles[walk.tile];
    const Layout& layout = layout_of(args, tile);
    if (of_tile != walk.tile) {
      of_tile = walk.tile;
      live = (tile.count + 7) / 8;
      segment = Segment(layout, own_segment<kQuads>());
      const int first = segment.first * kStageBytes * (layout.fp4 ? 2 : 1);
      if constexpr (kOwn) own_x.quantise(args.plain_x, tile, first, segment.count / (layout.fp4 ? 1 : 2));
      // Columns that are not there take part as the last one.
      const auto row = [&](int column) {
        const int last = min(column, tile.count - 1);
        return kOwn ? last : row_of<kDown>(args, tile.pairs[last]);
      };
      const int stride = kOwn ? own_stride(args.x.width) : args.x.width;
      narrow = kGroups == 1 && layout.fp4 && tile.count <= kNarrow;
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        const int block = narrow ? lane / 8 : 0;
        x[n] = row(narrow ? lane / 4 % kNarrow : 8 * n + lane / 4) * stride + first + 32 * block + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          x_scales[n][i] = (row(narrow ? i : 8 * n + lane % 4 * 2 + i) * args.x.width + first) / kActBlock;
        }
      }
      if (narrow) {
#pragma unroll
        for (int stage = 0; stage < kStages<kQuads>; ++stage) values[stage] = narrow_values(activations, x[0], stage);
      }
    }
    const float unit = layout.fp4 ? kE2m1AsE4m3 : 1.0f;
    // With two places for sums the barrier below is enough: nobody passes that of the next unit before all have read
    // those of this one.
    float* of_unit = sums + (kSumPlaces<kGroups> == 2 ? turn % 2 * kSumFloats<kGroups> : 0);
    float* of_warp = of_unit + own_segment<kQuads>() * 2 * kGroups * 128;
    const auto store_totals = [&](const Totals<kGroups>& totals) {
      if constexpr (kSumPlaces<kGroups> == 1) __syncthreads();
      float* mine = of_warp + lane / 4 * 8 + lane % 4 * 2;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          const float(&of)[4] = totals.of[m][n];
          float* to = mine + (m * kGroups + n) * 128;
          *reinterpret_cast<float2*>(to) = make_float2(of[0] * unit, of[1] * unit);
          *reinterpret_cast<float2*>(to + 64) = make_float2(of[2] * unit, of[3] * unit);
        }
      }
    };
    // `load` is called before the wait for the stage's copies, and what it returns goes to `add`.
    const auto do_stage = [&](const auto& load, const auto& copy, const auto& add) {
      const auto loaded = load();
      __syncwarp();
      copy();
      ptx::copies_wait<kSlots - 1>();
      __syncwarp();
      add(loaded);
      last_slot = slot;
      slot += kSlot;
      if (slot == ring + kSlots * kSlot) slot = ring;
    };
    const auto scales_of = [&](int stage) {
      return kScalesByUnit<kQuads> ? scales + 4 * stage : slot + kWeightBytes + lane * 4;
    };
    if (narrow) {
      using Scales = NarrowScales<kEach>;
      float totals[kNarrow] = {};
      const auto do_fp4 = [&](int stage, const uint4& of_stage, const auto& copy) {
        do_stage([&] { return Scales(activations, x_scales[0], stage); }, copy,
                 [&](const Scales& own) {
                   add_fp4_narrow<kEach>(totals, slot, scales_of(stage), at, own_block, of_stage, own);
                 });
      };
      if constexpr (kStages<kQuads> > 0) {
        const auto all = [&]<int... kStage>(std::integer_sequence<int, kStage...>) {
          (do_fp4(kStage, values[kStage], [&] { copier.template copy_known<kStage + kSlots - 1>(last_slot); }), ...);
        };
        all(std::make_integer_sequence<int, kStages<kQuads>>());
      } else {
#pragma unroll 1
        for (int stage = 0; stage < segment.count; ++stage) {
          do_fp4(stage, narrow_values(activations, x[0], stage), [&] { copier.copy_next_fp4(last_slot); });
        }
      }
      *reinterpret_cast<float2*>(of_warp + lane * 8) = make_float2(totals[0] * unit, totals[1] * unit);
    } else if (layout.fp4) {
      using X = StageActivations<kGroups, 4, kEach>;
      Totals<kGroups> totals = {};
#pragma unroll 1
      for (int stage = 0; stage < segment.count; ++stage) {
        do_stage([&] { return X(activations, x, x_scales, stage, live); }, [&] { copier.copy_next_fp4(last_slot); },
                 [&](const X& own) { add_fp4<kGroups, kEach>(totals, slot, scales_of(stage), at, own, live); });
      }
      store_totals(totals);
    } else {
      using X = StageActivations<kGroups, 2, kEach>;
      Totals<kGroups> totals = {};
      struct Loaded {
        Fp8Scales scales;
        X x;
      };
      const Rows rows = rows_of<kDown>(args, tile, walk.part);
#pragma unroll 1
      for (int stage = 0; stage < segment.count; ++stage) {
        do_stage(
            [&] {
              return Loaded{Fp8Scales(rows.scale, (segment.first + stage) * kStageBytes, layout.block_shift),
                            X(activations, x, x_scales, stage, live)};
            },
            [&] { copier.copy_next(last_slot); },
            [&](const Loaded& own) { add_fp8<kGroups, kEach>(totals, slot, at, own.scales, own.x, live); });
      }
      store_totals(totals);
    }
    scales = 2 * (unit_scales + lane * 4 * kStages<kQuads>)+kUnitScaleBytes<kQuads> - scales;
    __syncthreads();
    // Few columns keep one warp busy; not always the same.
    finish_unit<kDown, kGroups>(args, tile, walk.part, of_unit, (warp + turn) % kWarps * 32 + lane);
  }
}

bool aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// Of all matrices that the product has.
template <bool kDown>
bool scales_aligned(const ExpertsArgs& args, uintptr_t bytes) {
  return std::all_of(args.experts, args.experts + args.expert_count, [&](const ExpertWeights& e) {
    return kDown ? aligned(e.w2.scale, bytes) : aligned(e.w1.scale, bytes) && aligned(e.w3.scale, bytes);
  });
}

struct Operands {
  Activations x;
  const bf16* plain_x;
  bf16* out;
};

template <bool kDown, int kGroups, int kSlots, bool kFew>
void multiply(const ExpertsCall& call, ProductArgs<8 * kGroups> args, const Operands& operands) {
  const ExpertsArgs& a = *call.args;
  args.x = operands.x;
  args.plain_x = operands.plain_x;
  args.routed = matrix_layout(kDown ? a.experts[0].w2 : a.experts[0].w1);
  args.shared = matrix_layout(kDown ? a.shared.w2 : a.shared.w1);
  args.out = operands.out;
  args.out_width = kDown ? a.dim : a.inter;
  args.units_per_tile = args.out_width / (kDown ? 2 * kTileRows : kTileRows);
  const int64_t most = static_cast<int64_t>(max_tiles<8 * kGroups>(call)) * args.units_per_tile;
  const int blocks = call.stage->processors * kBlocksAtOnce<kGroups>;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(most, blocks));
  const auto start = [&]<int kActBlock, int kQuads>() {
    const int own = kDown && kFew ? own_bytes(kActBlock, args.x.width, call.rows()) : 0;
    launch(*call.stage, kDown ? "multiply_experts down" : "multiply_experts up",
           multiply_experts<kDown, kGroups, kSlots, kActBlock, kFew, kQuads>, dim3(grid), dim3(kThreads),
           kMemory<kGroups, kSlots, kQuads> + own, args);
  };
  // Published shapes: 4096 and 2048 with blocks of 128, 5120 and 2304 with 32.
  const auto known = [&](int block, int quads) {
    return args.x.block == block && args.routed.fp4 && !args.shared.fp4 && args.routed.row_bytes == quads * kStageBytes;
  };
  if constexpr (kGroups == 1 && kSlots == 3) {
    constexpr int kV4 = kDown ? 16 : 32, kV41 = kDown ? 18 : 40;
    if (known(128, kV4) && scales_aligned<kDown>(a, kDown ? 8 : 16)) return start.template operator()<128, kV4>();
    if (known(32, kV41)) return start.template operator()<32, kV41>();
  }
  args.x.block == 128 ? start.template operator()<128, 0>() : start.template operator()<32, 0>();
}

template <int kGroups, int kSlots, bool kFew = false>
void stream(const ExpertsCall& call, bf16* y) {
  const Stage& stage = *call.stage;
  const ExpertsArgs& a = *call.args;
  auto* tiles = kFew ? nullptr : stage.workspace->take<Tile<8 * kGroups>>(max_tiles<8 * kGroups>(call));
  auto* tile_count = kFew ? nullptr : stage.workspace->take<int32_t>(1);
  auto* hidden = stage.workspace->take<bf16>(static_cast<size_t>(call.pairs()) * a.inter);
  const int block = a.shared.w1.act_block;
  const Activations x = take_activations(stage, call.rows(), a.dim, block);
  const Activations middle =
      kFew ? Activations{.width = a.inter, .block = block} : take_activations(stage, call.pairs(), a.inter, block);

  ProductArgs<8 * kGroups> args = {};
  args.few = {a.ids, call.experts, call.routed_pairs(), call.rows()};
  args.tiles = tiles;
  args.tile_count = tile_count;
  args.shared_expert = pointers_of(a.shared);
  args.shared_tiles = (call.rows() + 8 * kGroups - 1) / (8 * kGroups);
  args.row_magic = ((uint64_t{1} << 32) + a.topk - 1) / a.topk;
  args.routed_pairs = call.routed_pairs();
  args.weights = a.weights;
  args.limit = a.limit;
  if constexpr (kFew) {
    quantise(call, a.x, call.rows(), x, true);
  } else {
    prepare(call, x, tiles, tile_count);
  }
  multiply<false, kGroups, kSlots, kFew>(call, args, {x, nullptr, hidden});
  if constexpr (!kFew) quantise(call, hidden, call.pairs(), middle, false);
  multiply<true, kGroups, kSlots, kFew>(call, args, {middle, hidden, y});
}

// Whether blocks make their own tiles, and a multiprocessor has room for two that keep a tile's activations as well.
bool fits_few(const ExpertsCall& call) {
  constexpr int kRoom = 36 * 1024;
  const ExpertsArgs& args = *call.args;
  return call.rows() <= kFewRows && call.routed_pairs() <= kFewPairs &&
         own_bytes(args.shared.w1.act_block, args.inter, call.rows()) <= kRoom;
}

bool can_stream(const ExpertWeights& expert, const ExpertWeights& like, int act_block) {
  const auto fits = [&](const Matrix& w, const Matrix& first) {
    // Of fp4 the scales of four blocks are read as a word.
    const bool known = (w.kind == Matrix::Kind::kFp4 && aligned(w.scale, 4)) ||
                       (w.kind == Matrix::Kind::kFp8 && (w.block == 32 || w.block == 128));
    return known && w.kind == first.kind && w.block == first.block && w.act_block == act_block && aligned(w.data, 16);
  };
  return fits(expert.w1, like.w1) && fits(expert.w3, like.w1) && fits(expert.w2, like.w2);
}

}  // namespace

bool can_stream(const ExpertsArgs& args) {
  const int act_block = args.shared.w1.act_block;
  if ((act_block != 32 && act_block != 128) || args.dim % 128 != 0 || args.inter % 128 != 0) return false;
  return can_stream(args.shared, args.shared, act_block) &&
         std::all_of(args.experts, args.experts + args.expert_count,
                     [&](const ExpertWeights& e) { return can_stream(e, args.experts[0], act_block); });
}

void stream_experts(const ExpertsCall& call, bf16* y) {
  // Chips with at least 160 KB of shared memory a multiprocessor. Longer rings take from the first-level cache what the
  // activations need there.
  const int arch = call.stage->arch;
  const bool roomy = arch == 80 || (arch >= 90 && arch < 110);
  const double rows_per_expert = static_cast<double>(call.routed_pairs()) / call.args->expert_count;
  if (!roomy) {
    stream<1, 2>(call, y);
  } else if (arch >= 90 && fits_few(call)) {
    stream<1, 3, true>(call, y);
  } else if (rows_per_expert <= 4) {
    stream<1, 3>(call, y);
  } else if (rows_per_expert <= 12 || arch == 80) {
    stream<2, 3>(call, y);
  } else {
    stream<4, 3>(call, y);
  }
}

}  // namespace onelane::cuda::moe
