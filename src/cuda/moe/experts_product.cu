// The experts' products: weights are read once, whatever the number of columns (see experts.h, experts_units.h,
// experts_weights.h).
//
// Blocks stay, and have a stretch of units each. Each of a block's eight warps has a segment of k, which the shape
// fixes, and a ring of its own, so that it waits for nothing but its own copies; they run ahead into the next unit
// while sums of the last one meet in shared memory, in ascending order.
#include <algorithm>

#include "base/check.h"
#include "cuda/moe/experts_weights.h"
#include "cuda/ptx/cluster.h"

namespace onelane::cuda::moe {
namespace {

constexpr int kWarps = kSegments;
constexpr int kThreads = 32 * kWarps;
constexpr int kTilesAtHand = 49;  // copied to shared memory if there are no more
template <int kGroups>
constexpr int kBlocksAtOnce = kGroups == 1 ? 2 : 1;  // of a multiprocessor

template <int kWidth>
struct ProductArgs {
  const Tile<kWidth>* tiles;
  const int32_t* tile_count;
  Activations x;
  Layout routed, shared;
  ExpertPointers shared_expert;
  int units_per_tile;
  int shared_tiles;
  int routed_pairs;
  uint64_t row_magic;  // pair / topk = pair * row_magic >> 32
  // up: of a pair
  const float* weights;
  float limit;
  bf16* out;  // [pairs, out_width]
  int out_width;
};

template <class Tile, class Args>
__device__ __forceinline__ const Layout& layout_of(const Args& args, const Tile& tile) {
  return tile.shared != 0 ? args.shared : args.routed;
}

template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// The row of the activations that a pair has.
template <bool kDown, int kWidth>
__device__ __forceinline__ int row_of(const ProductArgs<kWidth>& args, int pair) {
  if (kDown) return pair;
  return pair < args.routed_pairs ? static_cast<int>(static_cast<uint32_t>(pair) * args.row_magic >> 32)
                                  : pair - args.routed_pairs;
}

// The two times 16 rows of a unit, from the same matrix or from two.
struct Rows {
  const std::byte* data[2];  // at the first row
  const uint8_t* scale[2];   // at the first row's
};
template <bool kDown>
inline constexpr int kUnitRows = kDown ? 2 * kTileRows : kTileRows;  // of a matrix
template <bool kDown, int kWidth>
__device__ __forceinline__ Rows rows_of(const ProductArgs<kWidth>& args, const Tile<kWidth>& tile, int part) {
  const Layout& layout = layout_of(args, tile);
  const ExpertPointers& expert = tile.expert;
  const int first = part * kUnitRows<kDown>, second = first + (kDown ? kTileRows : 0);
  const auto row = [&](const std::byte* data, int at) { return data + static_cast<int64_t>(at) * layout.row_bytes; };
  const auto scales = [&](const uint8_t* scale, int at) {
    return scale + static_cast<int64_t>(at >> layout.row_shift) * layout.scale_row;
  };
  return {{row(kDown ? expert.w2 : expert.w1, first), row(kDown ? expert.w2 : expert.w3, second)},
          {scales(kDown ? expert.w2_scale : expert.w1_scale, first),
           scales(kDown ? expert.w2_scale : expert.w3_scale, second)}};
}

// The copying end of a warp's ring.
template <bool kDown, int kWidth, int kSlots>
class Copier {
 public:
  __device__ __forceinline__ Copier(const ProductArgs<kWidth>& args, const Tile<kWidth>* tiles, const Walk& walk,
                                    uint32_t ring)
      : args_(args),
        tiles_(tiles),
        ring_(ring + piece_place(threadIdx.x % 32 / 4, threadIdx.x % 4)),
        to_(ring_),
        scale_place_(kWeightBytes - (ring_ - ring) + threadIdx.x % 32 * 4),
        walk_(walk) {
    enter();
#pragma unroll 1
    for (int i = 0; i < kSlots - 1; ++i) copy_next();
  }

  // For all lanes, which are done with what the slot had.
  __device__ __forceinline__ void copy_next() {
    if (left_ > 0) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        ptx::copy_async<16>(to_ + m * 1024, weights_[m]);
        ptx::copy_async<16>(to_ + m * 1024 + 512, weights_[m] + half_);
        weights_[m] += kStageBytes;
      }
      if (fp4_) {
        ptx::copy_async<4>(to_ + scale_place_, scale_);
        scale_ += 4;
      }
      if (--left_ == 0) next_unit();
    }
    ptx::copies_commit();
    to_ += kSlotBytes;
    if (to_ >= ring_ + kSlots * kSlotBytes) to_ = ring_;
  }

 private:
  __device__ __forceinline__ void next_unit() {
    if (walk_.next(args_) && fp4_ && walk_.left > 0) {
      const Layout& layout = layout_of(args_, tiles_[walk_.tile]);
#pragma unroll
      for (int m = 0; m < 2; ++m) weights_[m] += kUnitRows<kDown> * layout.row_bytes - stages_ * kStageBytes;
      scale_ += kUnitRows<kDown> * layout.scale_row - stages_ * 4;
      left_ = stages_;
    } else {
      enter();
    }
  }
  __device__ __forceinline__ void enter() {
    if (walk_.left <= 0) return;
    const Tile<kWidth>& tile = tiles_[walk_.tile];
    const Layout& layout = layout_of(args_, tile);
    const Segment segment(layout, threadIdx.x / 32);
    const Rows rows = rows_of<kDown>(args_, tile, walk_.part);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    left_ = stages_ = segment.count;  // none: as in every other unit
    fp4_ = layout.fp4;
    half_ = 8 * layout.row_bytes;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      weights_[m] = rows.data[m] + static_cast<int64_t>(g) * layout.row_bytes + (segment.first * kStageBytes + 16 * t);
    }
    const int row = threadIdx.x % 32;
    scale_ = (row < kTileRows ? rows.scale[0] : rows.scale[1]) + row % kTileRows * layout.scale_row + 4 * segment.first;
  }

  const ProductArgs<kWidth>& args_;
  const Tile<kWidth>* tiles_;
  uint32_t ring_, to_, scale_place_;
  Walk walk_;
  int left_ = 0, stages_ = 0;  // of the unit: to be copied, all
  bool fp4_ = false;
  uint32_t half_ = 0;  // bytes of 8 rows
  const std::byte* weights_[2] = {};
  const uint8_t* scale_ = nullptr;
};

template <int kGroups>
constexpr int kSumFloats = kWarps * 2 * kGroups * 128;

template <int kGroups>
constexpr int kSumPlaces = kGroups == 1 ? 2 : 1;
template <int kGroups>
constexpr int kSumBytes = kSumPlaces<kGroups> * kSumFloats<kGroups> * sizeof(float);
// Tiles at hand; the ring that follows is aligned to 64.
template <int kGroups>
constexpr int kTileBytes = kGroups == 1 ? (kTilesAtHand * sizeof(Tile<8>) + 63) / 64 * 64 : 0;

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

// kActBlock: values that share a scale of the activations.
template <bool kDown, int kGroups, int kSlots, int kActBlock>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<kGroups>)
    multiply_experts(const __grid_constant__ ProductArgs<8 * kGroups> args) {
  using ThisTile = Tile<8 * kGroups>;
  constexpr bool kEach = kActBlock == 32;
  extern __shared__ __align__(128) std::byte memory[];
  float* sums = reinterpret_cast<float*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if constexpr (!kDown) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
    const int64_t bytes = static_cast<int64_t>(args.out_width) * args.shared.row_bytes;
    prefetch_range(args.shared_expert.w1, bytes, thread, threads);
    prefetch_range(args.shared_expert.w3, bytes, thread, threads);
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
  }
  // The second product's tiles are there before the wait: it could not start before the kernel ahead, which quantises,
  // had seen the end of all that came earlier. Of `args.x` that is not so.
  const int tile_count = __ldcg(args.tile_count);
  const ThisTile* tiles = args.tiles;
  if constexpr (kGroups == 1) {
    if (tile_count <= kTilesAtHand) {
      uint2* to = reinterpret_cast<uint2*>(memory + kSumBytes<kGroups>);
      const uint2* from = reinterpret_cast<const uint2*>(args.tiles);
      const int words = tile_count * static_cast<int>(sizeof(ThisTile) / sizeof(uint2));
      for (int i = threadIdx.x; i < words; i += kThreads) to[i] = __ldcg(from + i);
      tiles = reinterpret_cast<const ThisTile*>(to);
      __syncthreads();
    }
  }
  const uint32_t ring =
      ptx::shared_address(memory) + kSumBytes<kGroups> + kTileBytes<kGroups> + warp * kSlots * kSlotBytes;
  Walk walk(args, tile_count);
  Copier<kDown, 8 * kGroups, kSlots> copier(args, tiles, walk, ring);
  if constexpr (kDown) {
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
  }

  uint32_t slot = ring;
  const LanePlaces at(ptx::shared_address(memory) + kSumBytes<kGroups> + kTileBytes<kGroups> +
                      kWarps * kSlots * kSlotBytes + warp * kFloatScaleBytes);
  int of_tile = -1, live = 0;
  Segment segment;
  // Of the lane in args.x, at the segment: values of its column of each group, scales of its two columns.
  int x[kGroups], x_scales[kGroups][2];
  for (int turn = 0; walk.left > 0; walk.next(args), ++turn) {
    const ThisTile& tile = tiles[walk.tile];
    const Layout& layout = layout_of(args, tile);
    if (of_tile != walk.tile) {
      of_tile = walk.tile;
      live = (tile.count + 7) / 8;
      segment = Segment(layout, warp);
      const int first = segment.first * kStageBytes * (layout.fp4 ? 2 : 1);
      // Columns that are not there take part as the last one.
      const auto row = [&](int column) {
        return row_of<kDown>(args, tile.pairs[min(column, tile.count - 1)]) * args.x.width + first;
      };
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        x[n] = row(8 * n + lane / 4) + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < 2; ++i) x_scales[n][i] = row(8 * n + lane % 4 * 2 + i) / kActBlock;
      }
    }
    Totals<kGroups> totals = {};
    // `load` is called before the wait for the stage's copies, and what it returns goes to `add`.
    const auto stages = [&](const auto& load, const auto& add) {
#pragma unroll 1
      for (int stage = 0; stage < segment.count; ++stage) {
        const auto loaded = load(stage);
        __syncwarp();
        copier.copy_next();
        wait_for_copies<kSlots - 1>();
        __syncwarp();
        add(loaded);
        slot += kSlotBytes;
        if (slot == ring + kSlots * kSlotBytes) slot = ring;
      }
    };
    if (layout.fp4) {
      using X = StageActivations<kGroups, 4, kEach>;
      stages([&](int stage) { return X(args.x, x, x_scales, stage, live); },
             [&](const X& own) { add_fp4<kGroups, kEach>(totals, slot, at, own, live); });
    } else {
      using X = StageActivations<kGroups, 2, kEach>;
      struct Loaded {
        Fp8Scales scales;
        X x;
      };
      const Rows rows = rows_of<kDown>(args, tile, walk.part);
      stages(
          [&](int stage) {
            return Loaded{Fp8Scales(rows.scale, (segment.first + stage) * kStageBytes, layout.block_shift),
                          X(args.x, x, x_scales, stage, live)};
          },
          [&](const Loaded& own) { add_fp8<kGroups, kEach>(totals, slot, at, own.scales, own.x, live); });
    }
    const float unit = layout.fp4 ? kE2m1AsE4m3 : 1.0f;
    // With two places for sums the barrier below is enough: nobody passes that of the next unit before all have read
    // those of this one.
    float* of_unit = sums + (kSumPlaces<kGroups> == 2 ? turn % 2 * kSumFloats<kGroups> : 0);
    if constexpr (kSumPlaces<kGroups> == 1) __syncthreads();
    float* mine = of_unit + warp * 2 * kGroups * 128 + lane / 4 * 8 + lane % 4 * 2;
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
    __syncthreads();
    // Few columns keep one warp busy; not always the same.
    finish_unit<kDown, kGroups>(args, tile, walk.part, of_unit, (warp + turn) % kWarps * 32 + lane);
  }
}

bool aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

struct Operands {
  Activations x;
  bf16* out;
};

template <bool kDown, int kGroups, int kSlots>
void multiply(const ExpertsCall& call, ProductArgs<8 * kGroups> args, const Operands& operands) {
  const ExpertsArgs& a = *call.args;
  args.x = operands.x;
  args.routed = matrix_layout(kDown ? a.experts[0].w2 : a.experts[0].w1);
  args.shared = matrix_layout(kDown ? a.shared.w2 : a.shared.w1);
  args.out = operands.out;
  args.out_width = kDown ? a.dim : a.inter;
  args.units_per_tile = args.out_width / (kDown ? 2 * kTileRows : kTileRows);
  constexpr size_t kBytes =
      kSumBytes<kGroups> + kTileBytes<kGroups> + kWarps * (kSlots * kSlotBytes + kFloatScaleBytes);
  const int64_t most = static_cast<int64_t>(max_tiles<8 * kGroups>(call)) * args.units_per_tile;
  const int blocks = call.stage->processors * kBlocksAtOnce<kGroups>;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(most, blocks));
  const auto kernel = operands.x.block == 32 ? multiply_experts<kDown, kGroups, kSlots, 32>
                                             : multiply_experts<kDown, kGroups, kSlots, 128>;
  launch(*call.stage, kDown ? "multiply_experts down" : "multiply_experts up", kernel, dim3(grid), dim3(kThreads),
         kBytes, args);
}

template <int kGroups, int kSlots>
void stream(const ExpertsCall& call, bf16* y) {
  const Stage& stage = *call.stage;
  const ExpertsArgs& a = *call.args;
  auto* tiles = stage.workspace->take<Tile<8 * kGroups>>(max_tiles<8 * kGroups>(call));
  auto* tile_count = stage.workspace->take<int32_t>(1);
  auto* hidden = stage.workspace->take<bf16>(static_cast<size_t>(call.pairs()) * a.inter);
  const int block = a.shared.w1.act_block;
  const Activations x = take_activations(stage, call.rows(), a.dim, block);
  const Activations middle = take_activations(stage, call.pairs(), a.inter, block);

  ProductArgs<8 * kGroups> args = {};
  args.tiles = tiles;
  args.tile_count = tile_count;
  args.shared_expert = pointers_of(a.shared);
  args.shared_tiles = (call.rows() + 8 * kGroups - 1) / (8 * kGroups);
  args.row_magic = ((uint64_t{1} << 32) + a.topk - 1) / a.topk;
  args.routed_pairs = call.routed_pairs();
  args.weights = a.weights;
  args.limit = a.limit;
  prepare(call, x, tiles, tile_count);
  multiply<false, kGroups, kSlots>(call, args, {x, hidden});
  quantise(call, hidden, call.pairs(), middle);
  multiply<true, kGroups, kSlots>(call, args, {middle, y});
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
  } else if (rows_per_expert <= 4) {
    stream<1, 3>(call, y);
  } else if (rows_per_expert <= 12 || arch == 80) {
    stream<2, 3>(call, y);
  } else {
    stream<4, 3>(call, y);
  }
}

}  // namespace onelane::cuda::moe
