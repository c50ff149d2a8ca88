// The experts' products: weights are read once, whatever the number of columns (see experts.h, experts_units.h,
// experts_copy.h, experts_weights.h, and for few rows experts_few.h).
//
// Blocks stay, and have a stretch of units each. Each of a block's eight warps has a segment of k, which the shape
// fixes, and a ring of its own, so that it waits for nothing but its own copies, which run ahead into the next unit.
// Sums meet in shared memory, where warps by turns add them up, in ascending order; the others go on.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "cuda/moe/experts_copy.h"
#include "cuda/ptx/mbarrier.h"

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

// Sums of all warps, then what those of their 32 rows are units of.
template <int kGroups>
constexpr int kUnitsAt = kWarps * 2 * kGroups * 128;
template <int kGroups>
constexpr int kSumFloats = kUnitsAt<kGroups> + kWarps * 2 * kTileRows;

template <int kGroups>
constexpr int kSumPlaces = kGroups == 1 ? 2 : 1;
template <int kGroups>
constexpr int kSumBytes = kSumPlaces<kGroups> * kSumFloats<kGroups> * sizeof(float);
// Tiles at hand; the ring that follows is aligned to 64.
template <int kGroups>
constexpr int kTileBytes = kGroups == 1 ? (kTilesAtHand * sizeof(Tile<8>) + 63) / 64 * 64 : 0;

// Barriers of the places for sums, of which a unit has the next one: full when all threads have stored theirs, empty
// when all have read what they add up, which they do `kLate` units later. Every thread arrives for itself: a lane that
// arrives for its warp would do, but racecheck does not see what the other lanes hand on that way.
template <int kGroups>
struct SumPlaces {
  static constexpr uint32_t kPlaces = kSumPlaces<kGroups>, kBytes = 2 * kPlaces * 8, kLate = kPlaces - 1;
  uint32_t barriers;

  __device__ __forceinline__ void init() const {
    for (uint32_t i = 0; i < 2 * kPlaces; ++i) ptx::mbarrier_init(barriers + 8 * i, kThreads);
  }
  __device__ __forceinline__ void wait_until_empty(uint32_t unit) const {
    ptx::mbarrier_wait_in_block(empty(unit), parity(unit) ^ 1);
  }
  __device__ __forceinline__ void wait_until_full(uint32_t unit) const {
    ptx::mbarrier_wait_in_block(full(unit), parity(unit));
  }
  __device__ __forceinline__ void stored(uint32_t unit) const { ptx::mbarrier_arrive(full(unit)); }
  // Behind an instruction that took what was read: an arrival does not wait for loads.
  __device__ __forceinline__ void read(uint32_t unit) const { ptx::mbarrier_arrive(empty(unit)); }

 private:
  __device__ __forceinline__ uint32_t full(uint32_t unit) const { return barriers + unit % kPlaces * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t unit) const { return barriers + (kPlaces + unit % kPlaces) * 8; }
  static __device__ __forceinline__ uint32_t parity(uint32_t unit) { return unit / kPlaces & 1; }
};

// All, but for activations: sums, tiles, rings, factors, scales of units, barriers.
template <int kGroups, int kSlots>
constexpr __host__ __device__ int memory_bytes(int most_stages) {
  return kSumBytes<kGroups> + kTileBytes<kGroups> +
         kWarps * (kSlots * kWeightBytes + kFactorBytes + ScalePlaces<kSlots>::bytes(most_stages)) +
         SumPlaces<kGroups>::kBytes;
}

template <int kGroups>
__device__ __forceinline__ float add_segments(const float* sums, uint32_t m, uint32_t row, uint32_t column) {
  const float* at = sums + (m * kGroups + column / 8) * 128 + row * 8 + column % 8;
  const float* unit = sums + kUnitsAt<kGroups> + m * kTileRows + row;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    const float of_warp = __fmul_rn(at[warp * 2 * kGroups * 128], unit[warp * 2 * kTileRows]);
    sum = warp == 0 ? of_warp : sum + of_warp;
  }
  return sum;
}

// What becomes of the sums. `thread`: which of kThreads the caller is, in a numbering of its own.
template <bool kDown, int kGroups>
__device__ __forceinline__ void finish_unit(const ProductArgs<8 * kGroups>& args, const Tile<8 * kGroups>& tile,
                                            int part, const float* sums, uint32_t thread) {
  constexpr uint32_t kRows = kDown ? 2 * kTileRows : kTileRows;
  for (uint32_t i = thread; i < kRows * tile.count; i += kThreads) {
    const uint32_t row = i % kRows, column = i / kRows;
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

// kFew: tiles are made here, and the second product quantises the activations.
template <bool kDown, int kGroups, int kSlots, bool kFew, int kQuads>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<kGroups>)
    multiply_experts(const __grid_constant__ ProductArgs<8 * kGroups> args) {
  using ThisTile = Tile<8 * kGroups>;
  constexpr bool kOwn = kDown && kFew;
  ONELANE_DYNAMIC_SHARED(std::byte, memory);
  float* sums = reinterpret_cast<float*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int words = most_stages<kQuads>(args);  // of a row's scales, in a unit
  using Places = SumPlaces<kGroups>;
  const Places places = {
      ptx::hold(ptx::shared_address(memory) + memory_bytes<kGroups, kSlots>(words) - Places::kBytes)};
  if (threadIdx.x == 0) places.init();
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
  if constexpr (!kFew) __syncthreads();  // for the barriers' sake
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
  constexpr int kSlot = kWeightBytes;
  const uint32_t rings = ptx::shared_address(memory) + kSumBytes<kGroups> + kTileBytes<kGroups>;
  const uint32_t ring = ptx::hold(rings + warp * kSlots * kSlot), ring_end = ptx::hold(ring + kSlots * kSlot);
  const uint32_t factors = rings + kWarps * kSlots * kSlot;
  ScalePlaces<kSlots> scales(factors + kWarps * kFactorBytes + warp * ScalePlaces<kSlots>::bytes(words), words);
  Walk walk = Walk::of_block<std::conditional_t<kFew, uint32_t, int64_t>>(args, tile_count);
  Copier<kDown, 8 * kGroups, kSlots, kQuads> copier(args, tiles, walk, ring, scales);
  if constexpr (kDown || kFew) {
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
  }

  uint32_t slot = ring, last_slot = ring + (kSlots - 1) * kSlot;
  const LanePlaces at(factors + warp * kFactorBytes);
  OwnActivations own_x(memory + memory_bytes<kGroups, kSlots>(words), args.x.width, args.x.block, args.few.rows);
  const Activations& activations = kOwn ? own_x.all : args.x;
  int of_tile = -1, live = 0;
  Segment segment;
  const uint16_t* x[kGroups];      // the lane's activations at the segment: of its column of each group
  float column_units[kGroups][2];  // of its two columns
  // The part of `unit`'s sums that is this warp's.
  const auto finish = [&](uint32_t unit, const ThisTile& tile, int count, int part) {
    // Few columns keep one warp busy; not always the same.
    const uint32_t first = (static_cast<uint32_t>(warp) + unit) % kWarps * 32;
    if (first < (kDown ? 2 * kTileRows : kTileRows) * static_cast<uint32_t>(count)) {
      places.wait_until_full(unit);
      finish_unit<kDown, kGroups>(args, tile, part, sums + unit % Places::kPlaces * kSumFloats<kGroups>, first + lane);
    }
    places.read(unit);
  };
  const uint32_t own_sums =
      ptx::hold(ptx::shared_address(sums + own_segment<kQuads>() * 2 * kGroups * 128 + lane / 4 * 8 + lane % 4 * 2));
  const uint32_t own_unit =
      ptx::hold(ptx::shared_address(sums + kUnitsAt<kGroups> + own_segment<kQuads>() * 2 * kTileRows + lane));
  uint32_t turn = 0;
  int count = 0, last_count = 0, last_part = 0;  // columns of this unit's tile, and of the last one's
  const ThisTile* last_tile = nullptr;
  for (; walk.left > 0; walk.next(args), ++turn) {
    const ThisTile& tile = tiles[walk.tile];
    const Layout& layout = layout_of(args, tile);
    if (of_tile != walk.tile) {
      of_tile = walk.tile;
      count = tile.count;
      live = (count + 7) / 8;
      segment = Segment(layout, own_segment<kQuads>());
      const int first = segment.first * kStageBytes * (layout.fp4 ? 2 : 1);
      if constexpr (kOwn) own_x.quantise(args.plain_x, tile, own_segment<kQuads>());
      // Columns that are not there take part as the last one.
      const auto row = [&](int column) {
        const int last = min(column, count - 1);
        return kOwn ? last : row_of<kDown>(args, tile.pairs[last]);
      };
      const int stride = kOwn ? own_stride(args.x.width) : args.x.width;
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        x[n] = activations.values + row(8 * n + lane / 4) * stride + first + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          column_units[n][i] = activations.units[row(8 * n + lane % 4 * 2 + i) * kSegments + own_segment<kQuads>()];
        }
      }
    }
    Sums<kGroups> segment_sums = {};
    // `unit`: of the sums of row `lane`.
    const auto store_sums = [&](float unit) {
      places.wait_until_empty(turn);
      const uint32_t place = turn % Places::kPlaces * (kSumFloats<kGroups> * sizeof(float));
      ptx::store_shared(own_unit + place, __float_as_uint(unit));
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          const float(&of)[4] = segment_sums.of[m][n];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            ptx::store_shared(own_sums + place + ((m * kGroups + n) * 128 + half * 64) * sizeof(float),
                              make_float2(of[2 * half] * column_units[n][0], of[2 * half + 1] * column_units[n][1]));
          }
        }
      }
    };
    // `copy` asks for a stage, `add` takes this one.
    const auto do_stage = [&](const auto& copy, const auto& add) {
      __syncwarp();
      copy();
      ptx::copies_wait<kSlots - 1>();
      __syncwarp();
      add();
      last_slot = slot;
      slot += kSlot;
      if (slot == ring_end) slot = ring;
    };
    if (layout.fp4) {
      uint32_t largest = 0;
      uint32_t words[kStages<kQuads> > 0 ? kStages<kQuads> : 1] = {};  // of the lane's row, where all are known
      ScaleFactors own(0, 0);
      const auto do_fp4 = [&](int stage, const auto& copy) {
        const ColumnValues<kGroups, 4> values(x, stage);
        do_stage(copy, [&] {
          if (stage == 0) {
            // Those of all stages came with the first one's weights.
            if constexpr (kStages<kQuads> > 0) {
#pragma unroll
              for (int i = 0; i < kStages<kQuads>; ++i) {
                words[i] = ptx::load_shared(scales.at() + 4 * i);
                largest = __vmaxu2(largest, larger_codes(words[i]));
              }
            } else {
#pragma unroll 1
              for (int i = 0; i < segment.count; ++i) {
                largest = __vmaxu2(largest, larger_codes(ptx::load_shared(scales.at() + 4 * i)));
              }
            }
            largest = largest_code(largest);
            own = ScaleFactors(largest, kFp4Top);
          }
          const uint32_t word = kStages<kQuads> > 0 ? words[stage] : ptx::load_shared(scales.at() + 4 * stage);
          add_fp4(segment_sums, slot, own, word, at, values, live);
        });
      };
      if constexpr (kStages<kQuads> > 0) {
        const auto all = [&]<int... kStage>(std::integer_sequence<int, kStage...>) {
          (do_fp4(kStage, [&] { copier.template copy_known<kStage + kSlots - 1>(last_slot); }), ...);
        };
        all(std::make_integer_sequence<int, kStages<kQuads>>());
      } else {
#pragma unroll 1
        for (int stage = 0; stage < segment.count; ++stage) do_fp4(stage, [&] { copier.copy_next(last_slot); });
      }
      store_sums(fp4_unit(largest));
    } else {
      const Rows rows = rows_of<kDown>(args, tile, walk.part);
      const int first = segment.first * kStageBytes;
      const Fp8Scales fp8(rows.scale, first, segment.count * kStageBytes, layout.block_shift);
#pragma unroll 1
      for (int stage = 0; stage < segment.count; ++stage) {
        const Fp8Factors of_stage(fp8, first + stage * kStageBytes);
        const ColumnValues<kGroups, 2> values(x, stage);
        do_stage([&] { copier.copy_next(last_slot); },
                 [&] { add_fp8(segment_sums, slot, at, of_stage, values, live); });
      }
      store_sums(fp8_unit(lane < kTileRows ? fp8.largest[0] : fp8.largest[1]));
    }
    scales.next();
    places.stored(turn);
    if constexpr (Places::kLate == 0) {
      finish(turn, tile, count, walk.part);
    } else {
      if (turn > 0) finish(turn - 1, *last_tile, last_count, last_part);
      last_tile = &tile;
      last_count = count;
      last_part = walk.part;
    }
  }
  if (Places::kLate > 0 && turn > 0) finish(turn - 1, *last_tile, last_count, last_part);
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
  args.most_stages = (args.x.width / 128 + kSegments - 1) / kSegments;
  const auto start = [&]<int kQuads>() {
    const int own = kDown && kFew ? own_bytes(args.x.width, call.rows()) : 0;
    launch(*call.stage, kDown ? "multiply_experts down" : "multiply_experts up",
           multiply_experts<kDown, kGroups, kSlots, kFew, kQuads>, dim3(grid), dim3(kThreads),
           memory_bytes<kGroups, kSlots>(args.most_stages) + own, args);
  };
  // Published shapes: 4096 and 2048, 5120 and 2304.
  const auto known = [&](int quads) {
    return args.routed.fp4 && !args.shared.fp4 && args.routed.row_bytes == quads * kStageBytes;
  };
  if constexpr (kGroups == 1 && kSlots == 3) {
    constexpr int kV4 = kDown ? 16 : 32, kV41 = kDown ? 18 : 40;
    if (known(kV4) && scales_aligned<kDown>(a, kDown ? 8 : 16)) return start.template operator()<kV4>();
    if (known(kV41)) return start.template operator()<kV41>();
  }
  start.template operator()<0>();
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
  return call.rows() <= kFewRows && call.routed_pairs() <= kFewPairs && own_bytes(args.inter, call.rows()) <= kRoom;
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
  constexpr int kWidest = 16384;  // a row's scales of a segment are in shared memory
  if ((act_block != 32 && act_block != 128) || args.dim % 128 != 0 || args.inter % 128 != 0 || args.dim > kWidest ||
      args.inter > kWidest) {
    return false;
  }
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
