// The experts' products: weights stream through shared memory once, whatever the number of columns (see experts.h,
// experts_copy.h, experts_stream.h).
//
// Blocks stay, and have a stretch of units each: two times 16 rows of one tile's expert, over all of k. Each of a
// block's eight warps has a segment of k, which the shape fixes, and a ring of its own, so that it waits for nothing
// but its own copies; they run ahead into the next unit while sums of the last one meet in shared memory, in ascending
// order.
#include <algorithm>

#include "base/check.h"
#include "cuda/moe/experts_stream.h"
#include "cuda/ptx/cluster.h"

namespace onelane::cuda::moe {
namespace {

constexpr int kWarps = kSegments;
constexpr int kThreads = 32 * kWarps;
constexpr int kTilesAtHand = 49;  // copied to shared memory if there are no more

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

template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

template <bool kDown, int kWidth>
__device__ __forceinline__ Rows rows_of(const ProductArgs<kWidth>& args, const Tile<kWidth>& tile, int part) {
  Rows rows;
  rows.layout = tile.shared != 0 ? args.shared : args.routed;
  const int first = part * (kDown ? 2 * kTileRows : kTileRows);
  rows.first_row[0] = first;
  rows.first_row[1] = kDown ? first + kTileRows : first;
  rows.scale[0] = kDown ? tile.expert.w2_scale : tile.expert.w1_scale;
  rows.scale[1] = kDown ? tile.expert.w2_scale : tile.expert.w3_scale;
  rows.data[0] = (kDown ? tile.expert.w2 : tile.expert.w1) + static_cast<int64_t>(first) * rows.layout.row_bytes;
  rows.data[1] = kDown ? rows.data[0] + static_cast<int64_t>(kTileRows) * rows.layout.row_bytes
                       : tile.expert.w3 + static_cast<int64_t>(first) * rows.layout.row_bytes;
  return rows;
}

// The row of the activations that a column has; -1: none.
template <bool kDown, int kWidth>
__device__ __forceinline__ int row_of(const ProductArgs<kWidth>& args, const Tile<kWidth>& tile, int column) {
  if (column >= tile.count) return -1;
  const int pair = tile.pairs[column];
  if (kDown) return pair;
  return pair < args.routed_pairs ? static_cast<int>(static_cast<uint32_t>(pair) * args.row_magic >> 32)
                                  : pair - args.routed_pairs;
}

// The copying end of a warp's ring.
template <bool kDown, int kGroups, int kSlots>
class Copier {
 public:
  static constexpr int kWidth = 8 * kGroups;

  __device__ __forceinline__ Copier(const ProductArgs<kWidth>& args, const Tile<kWidth>* tiles, const Walk& walk,
                                    uint32_t ring)
      : args_(args), tiles_(tiles), ring_(ring), to_(ring), walk_(walk) {
    begin_unit();
#pragma unroll 1
    for (int i = 0; i < kSlots - 1; ++i) copy_next();
  }

  // For all lanes, which are done with what the slot had.
  __device__ __forceinline__ void copy_next() {
    if (left_ > 0) {
      if (quads_) {
        source_.copy_quad(to_);
      } else if (steady_) {
        source_.copy_pair(to_, last_stage_ - left_, args_.x);
      } else {
        const Tile<kWidth>& tile = tiles_[walk_.tile];
        int code_rows[kGroups], factor_rows[kGroups];
        find_rows(tile, code_rows, factor_rows);
        const Rows rows = rows_of<kDown>(args_, tile, walk_.part);
        copy_stage<kGroups>(to_, rows, args_.x, last_stage_ - left_, code_rows, factor_rows);
      }
      if (--left_ == 0) next_unit();
    }
    ptx::copies_commit();
    to_ += kSlotBytes<kGroups>;
    if (to_ == ring_ + kSlots * kSlotBytes<kGroups>) to_ = ring_;
  }

 private:
  __device__ __forceinline__ void next_unit() {
    const bool same_tile = walk_.next(args_);
    if (!same_tile || !steady_) {
      begin_unit();
    } else if (walk_.left > 0) {
      const Layout& layout = shared_ ? args_.shared : args_.routed;
      source_.next_rows(layout, kDown ? 2 * kTileRows : kTileRows, stages_);
      left_ = stages_;
    }
  }
  __device__ __forceinline__ void begin_unit() {
    if (walk_.left <= 0) return;
    const Tile<kWidth>& tile = tiles_[walk_.tile];
    const Rows rows = rows_of<kDown>(args_, tile, walk_.part);
    const Segment segment(rows.layout, args_.x.blocks, threadIdx.x / 32);
    last_stage_ = segment.last;
    left_ = stages_ = segment.last - segment.first;  // none: as in every other unit
    shared_ = tile.shared != 0;
    quads_ = rows.layout.quads;
    steady_ = quads_ || rows.layout.pairs;
    if (!steady_) return;
    int code_rows[kGroups], factor_rows[kGroups];
    find_rows(tile, code_rows, factor_rows);
    source_ = SteadySource<kGroups>(rows, args_.x, segment.first, code_rows, factor_rows);
  }
  __device__ __forceinline__ void find_rows(const Tile<kWidth>& tile, int (&code_rows)[kGroups],
                                            int (&factor_rows)[kGroups]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      code_rows[n] = row_of<kDown>(args_, tile, 8 * n + lane / 4);
      factor_rows[n] = row_of<kDown>(args_, tile, 8 * n + lane % 8);
    }
  }
  const ProductArgs<kWidth>& args_;
  const Tile<kWidth>* tiles_;
  uint32_t ring_, to_;
  Walk walk_;
  int left_ = 0, stages_ = 0, last_stage_ = 0;  // of the unit: to be copied, all, the last one's end
  bool quads_ = false, steady_ = false, shared_ = false;
  SteadySource<kGroups> source_;
};

template <int kGroups>
constexpr int kSumFloats = kWarps * 2 * kGroups * 128;

template <int kGroups>
constexpr int kSumPlaces = kGroups == 1 ? 2 : 1;
template <int kGroups>
constexpr int kSumBytes = kSumPlaces<kGroups> * kSumFloats<kGroups> * sizeof(float);

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

template <bool kDown, int kGroups, int kSlots>
__global__ void __launch_bounds__(kThreads, kGroups == 1 ? 2 : 1)
    multiply_experts(const __grid_constant__ ProductArgs<8 * kGroups> args) {
  using ThisTile = Tile<8 * kGroups>;
  extern __shared__ __align__(128) std::byte memory[];
  float* sums = reinterpret_cast<float*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t ring = ptx::shared_address(memory) + kSumBytes<kGroups> + warp * kSlots * kSlotBytes<kGroups>;
  if constexpr (!kDown) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
    const int64_t bytes = static_cast<int64_t>(args.out_width) * args.shared.row_bytes;
    prefetch_range(args.shared_expert.w1, bytes, thread, threads);
    prefetch_range(args.shared_expert.w3, bytes, thread, threads);
  } else {
    // The tiles are there: this kernel could not start before the one ahead, which quantises, had seen the end of all
    // that came earlier. Of `args.x` that is not so.
    const Walk walk(args, __ldcg(args.tile_count));
    if (walk.left > 0) {
      const ThisTile& tile = args.tiles[walk.tile];
      const int64_t bytes = (__ldcg(&tile.shared) != 0 ? args.shared : args.routed).row_bytes * int64_t{2 * kTileRows};
      const auto* data =
          reinterpret_cast<const std::byte*>(__ldcg(reinterpret_cast<const unsigned long long*>(&tile.expert.w2)));
      prefetch_range(data + walk.part * bytes, bytes, threadIdx.x, kThreads);
    }
  }
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();

  const int tile_count = *args.tile_count;
  const ThisTile* tiles = args.tiles;
  if constexpr (kGroups == 1) {
    if (tile_count <= kTilesAtHand) {
      uint2* to = reinterpret_cast<uint2*>(memory + kSumBytes<kGroups> + kWarps * kSlots * kSlotBytes<kGroups>);
      const uint2* from = reinterpret_cast<const uint2*>(args.tiles);
      const int words = tile_count * static_cast<int>(sizeof(ThisTile) / sizeof(uint2));
      for (int i = threadIdx.x; i < words; i += kThreads) to[i] = from[i];
      tiles = reinterpret_cast<const ThisTile*>(to);
      __syncthreads();
    }
  }
  Walk walk(args, tile_count);
  Copier<kDown, kGroups, kSlots> copier(args, tiles, walk, ring);
  const LanePlaces at;
  uint32_t slot = ring;
  int of_tile = -1, live = 0;
  Segment segment;
  const uint8_t* codes = nullptr;  // of the lane's column
  for (int turn = 0; walk.left > 0; walk.next(args), ++turn) {
    const ThisTile& tile = tiles[walk.tile];
    const Layout& layout = tile.shared != 0 ? args.shared : args.routed;
    if (of_tile != walk.tile) {
      of_tile = walk.tile;
      live = (tile.count + 7) / 8;
      segment = Segment(layout, args.x.blocks, warp);
      if constexpr (kCodeBytes<kGroups> == 0) {
        // Columns that are not there take part as the first one.
        const int column = lane / 4 < tile.count ? lane / 4 : 0;
        codes = args.x.codes + row_of<kDown>(args, tile, column) * args.x.code_row + lane % 4 * 32;
      }
    }
    Totals<kGroups> totals = {};
    const Rows rows = layout.quads ? Rows() : rows_of<kDown>(args, tile, walk.part);
    // `load` is called before the wait for the stage's copies, and what it returns goes to `add`.
    const auto stages = [&](const auto& load, const auto& add) {
      for (int stage = segment.first; stage < segment.last; ++stage) {
        const auto loaded = load(stage);
        __syncwarp();
        copier.copy_next();
        wait_for_copies<kSlots - 1>();
        __syncwarp();
        add(stage, loaded);
        slot += kSlotBytes<kGroups>;
        if (slot == ring + kSlots * kSlotBytes<kGroups>) slot = ring;
      }
    };
    if (layout.quads) {
      const auto load = [&](int stage) { return QuadCodes<kGroups>(codes + stage * 128); };
      if (args.x.factor_shift == 2) {
        stages(load, [&](int, const auto& own) { add_quad<kGroups, true>(totals, slot, live, at, own.of); });
      } else {
        stages(load, [&](int, const auto& own) { add_quad<kGroups, false>(totals, slot, live, at, own.of); });
      }
    } else if (layout.pairs) {
      stages([&](int stage) { return PairOperands<kGroups>(codes + (stage / 2 * 128 + stage % 2 * 16), rows, stage); },
             [&](int, const auto& own) { add_pair<kGroups>(totals, slot, live, at, own.codes, own.scale); });
    } else {
      stages([](int) { return 0; },
             [&](int stage, int) {
               if (layout.fp4) {
                 add_stage<kGroups, true>(totals, slot, rows, stage, args.x.blocks, live, codes);
               } else {
                 add_stage<kGroups, false>(totals, slot, rows, stage, args.x.blocks, live, codes);
               }
             });
    }
    const float scale = layout.fp4 ? kE2m1AsE4m3 : 1.0f;
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
        *reinterpret_cast<float2*>(to) = make_float2(of[0] * scale, of[1] * scale);
        *reinterpret_cast<float2*>(to + 64) = make_float2(of[2] * scale, of[3] * scale);
      }
    }
    __syncthreads();
    // Few columns keep one warp busy; not always the same.
    finish_unit<kDown, kGroups>(args, tile, walk.part, of_unit, (warp + turn) % kWarps * 32 + lane);
  }
}

Layout layout_of(const Matrix& w, bool quads) {
  Layout layout = {};
  layout.fp4 = w.kind == Matrix::Kind::kFp4;
  layout.quads = layout.fp4 && quads && w.in % 128 == 0;
  layout.pairs = w.kind == Matrix::Kind::kFp8 && w.in % 128 == 0;
  layout.row_bytes = layout.fp4 ? w.in / 2 : w.in;
  const int edge = layout.fp4 ? 32 : w.block;
  layout.scale_row = (w.in + edge - 1) / edge;
  layout.block_shift = edge == 128 ? 2 : 0;
  layout.row_shift = layout.fp4 ? 0 : edge == 128 ? 7 : 5;
  layout.scales = layout.scale_row * ((w.out + (1 << layout.row_shift) - 1) >> layout.row_shift);
  return layout;
}

bool aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// Scales of four blocks of fp4 can be read as a word.
bool scales_in_words(const ExpertWeights& e) {
  return aligned(e.w1.scale, 4) && aligned(e.w2.scale, 4) && aligned(e.w3.scale, 4);
}

struct Operands {
  Codes codes;
  bf16* out;
};

template <bool kDown, int kGroups, int kSlots>
void multiply(const ExpertsCall& call, ProductArgs<8 * kGroups> args, const Operands& operands, bool quads) {
  const ExpertsArgs& a = *call.args;
  const Codes& codes = operands.codes;
  args.x = {codes.codes,     codes.scales, codes.row_bytes(), codes.width / codes.block, codes.block == 128 ? 2 : 0,
            codes.width / 32};
  args.routed = layout_of(kDown ? a.experts[0].w2 : a.experts[0].w1, quads);
  args.shared = layout_of(kDown ? a.shared.w2 : a.shared.w1, scales_in_words(a.shared));
  args.out = operands.out;
  args.out_width = kDown ? a.dim : a.inter;
  args.units_per_tile = args.out_width / (kDown ? 2 * kTileRows : kTileRows);
  constexpr size_t kBytes =
      kSumBytes<kGroups> + kWarps * kSlots * kSlotBytes<kGroups> + (kGroups == 1 ? kTilesAtHand * sizeof(Tile<8>) : 0);
  const int64_t most = static_cast<int64_t>(max_tiles<8 * kGroups>(call)) * args.units_per_tile;
  const int blocks = call.stage->processors * (kGroups == 1 ? 2 : 1);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(most, blocks));
  launch(*call.stage, kDown ? "multiply_experts down" : "multiply_experts up", multiply_experts<kDown, kGroups, kSlots>,
         dim3(grid), dim3(kThreads), kBytes, args);
}

template <int kGroups, int kSlots>
void stream(const ExpertsCall& call, bf16* y) {
  const Stage& stage = *call.stage;
  const ExpertsArgs& a = *call.args;
  auto* tiles = stage.workspace->take<Tile<8 * kGroups>>(max_tiles<8 * kGroups>(call));
  auto* tile_count = stage.workspace->take<int32_t>(1);
  auto* hidden = stage.workspace->take<bf16>(static_cast<size_t>(call.pairs()) * a.inter);
  const int block = a.shared.w1.act_block;
  const Codes x = take_codes(stage, call.rows(), a.dim, block);
  const Codes middle = take_codes(stage, call.pairs(), a.inter, block);
  const bool quads = std::all_of(a.experts, a.experts + a.expert_count, scales_in_words);

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
  multiply<false, kGroups, kSlots>(call, args, {x, hidden}, quads);
  quantise(call, hidden, call.pairs(), middle);
  multiply<true, kGroups, kSlots>(call, args, {middle, y}, quads);
}

bool can_stream(const ExpertWeights& expert, const ExpertWeights& like, int act_block) {
  const auto fits = [&](const Matrix& w, const Matrix& first) {
    const bool known =
        w.kind == Matrix::Kind::kFp4 || (w.kind == Matrix::Kind::kFp8 && (w.block == 32 || w.block == 128));
    return known && w.kind == first.kind && w.block == first.block && w.act_block == act_block && aligned(w.data, 16);
  };
  return fits(expert.w1, like.w1) && fits(expert.w3, like.w1) && fits(expert.w2, like.w2);
}

}  // namespace

bool can_stream(const ExpertsArgs& args) {
  const int act_block = args.shared.w1.act_block;
  if ((act_block != 32 && act_block != 128) || args.dim % act_block != 0 || args.inter % act_block != 0) return false;
  return can_stream(args.shared, args.shared, act_block) &&
         std::all_of(args.experts, args.experts + args.expert_count,
                     [&](const ExpertWeights& e) { return can_stream(e, args.experts[0], act_block); });
}

void stream_experts(const ExpertsCall& call, bf16* y) {
  // Chips with at least 160 KB of shared memory a multiprocessor.
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
