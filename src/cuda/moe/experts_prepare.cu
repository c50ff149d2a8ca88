// Activations to quantised ones, pairs to tiles (see experts.h).
#include "cuda/moe/experts.h"
#include "cuda/moe/experts_quantise.h"

namespace onelane::cuda::moe {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
static_assert(kWarps == kSegments, "a block quantises a row");

struct QuantiseArgs {
  const bf16* x;
  int count;
  Activations to;
};

// A warp: a segment of one row.
__device__ __forceinline__ void quantise_part(const QuantiseArgs& args, int part) {
  const int row = part / kSegments, segment = part % kSegments, quads = args.to.width / 128;
  if (row >= args.count) return;
  const int64_t at = static_cast<int64_t>(row) * args.to.width + first_quad(quads, segment) * 128;
  const uint2* from = reinterpret_cast<const uint2*>(args.x + at) + threadIdx.x % 32;
  quantise_segment<1, 5>(
      1, segment_quads(quads, segment), args.to.block, [&](int, int quad) { return from[quad * 32]; },
      [&](int) { return args.to.values + at; }, [&](int) { return args.to.units + part; });
}

template <bool kWaited>
__global__ void __launch_bounds__(kThreads) quantise_rows(QuantiseArgs args) {
  if (!kWaited) ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  if (kWaited) ptx::let_next_kernel_start();
  quantise_part(args, static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / 32);
}

template <int kWidth>
struct PlanArgs {
  const int32_t* ids;
  int rows, topk, expert_count;
  const ExpertPointers* experts;
  ExpertPointers shared;
  Tile<kWidth>* tiles;
  int32_t* tile_count;
};

// One block. Which column a pair gets is left to chance: no bit of its result depends on it.
template <int kWidth>
__device__ __forceinline__ void make_tiles(const PlanArgs<kWidth>& args) {
  ONELANE_DYNAMIC_SHARED(int32_t, expert_ints);
  int32_t* counts = expert_ints;                     // pairs of an expert; then: still to be placed
  int32_t* first = expert_ints + args.expert_count;  // its first tile
  const int pairs = args.rows * args.topk;
  const int shared_tiles = (args.rows + kWidth - 1) / kWidth;
  for (int e = threadIdx.x; e < args.expert_count; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (int p = threadIdx.x; p < pairs; p += kThreads) atomicAdd(counts + args.ids[p], 1);
  __syncthreads();
  if (threadIdx.x < 32) {
    int next = shared_tiles;
    for (int base = 0; base < args.expert_count; base += 32) {
      const int e = base + static_cast<int>(threadIdx.x);
      const int tiles = e < args.expert_count ? (counts[e] + kWidth - 1) / kWidth : 0;
      int sum = tiles;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int below = __shfl_up_sync(0xffffffff, sum, distance);
        if (static_cast<int>(threadIdx.x) >= distance) sum += below;
      }
      if (e < args.expert_count) first[e] = next + sum - tiles;
      next += __shfl_sync(0xffffffff, sum, 31);
    }
    if (threadIdx.x == 0) *args.tile_count = next;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < args.expert_count; e += kThreads) {
    for (int done = 0; done < counts[e]; done += kWidth) {
      Tile<kWidth>& tile = args.tiles[first[e] + done / kWidth];
      tile.expert = args.experts[e];
      tile.shared = 0;
      tile.count = min(kWidth, counts[e] - done);
    }
  }
  for (int t = threadIdx.x; t < shared_tiles; t += kThreads) {
    Tile<kWidth>& tile = args.tiles[t];
    tile.expert = args.shared;
    tile.shared = 1;
    tile.count = min(kWidth, args.rows - t * kWidth);
  }
  for (int row = threadIdx.x; row < args.rows; row += kThreads) {
    args.tiles[row / kWidth].pairs[row % kWidth] = pairs + row;
  }
  __syncthreads();
  for (int p = threadIdx.x; p < pairs; p += kThreads) {
    const int e = args.ids[p];
    const int column = atomicSub(counts + e, 1) - 1;
    args.tiles[first[e] + column / kWidth].pairs[column % kWidth] = p;
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) prepare_experts(QuantiseArgs quantise, PlanArgs<kWidth> plan) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  if (blockIdx.x == 0) {
    make_tiles(plan);
  } else {
    quantise_part(quantise, static_cast<int>(blockIdx.x - 1) * kWarps + threadIdx.x / 32);
  }
}

}  // namespace

Activations take_activations(const Stage& stage, int count, int width, int block) {
  const auto values = static_cast<size_t>(count) * width;
  const auto segments = static_cast<size_t>(count) * kSegments;
  return {stage.workspace->take<uint16_t>(values), stage.workspace->take<float>(segments), width, block};
}

void quantise(const ExpertsCall& call, const bf16* x, int count, const Activations& to, bool waited) {
  launch(*call.stage, "quantise_rows", waited ? quantise_rows<true> : quantise_rows<false>, dim3(count), dim3(kThreads),
         0, QuantiseArgs{x, count, to});
}

template <int kWidth>
void prepare(const ExpertsCall& call, const Activations& x, Tile<kWidth>* tiles, int32_t* tile_count) {
  const ExpertsArgs& args = *call.args;
  const PlanArgs<kWidth> plan{
      args.ids, call.rows(), args.topk, args.expert_count, call.experts, pointers_of(args.shared), tiles, tile_count};
  launch(*call.stage, "prepare_experts", prepare_experts<kWidth>, dim3(1 + call.rows()), dim3(kThreads),
         2 * sizeof(int32_t) * args.expert_count, QuantiseArgs{args.x, call.rows(), x}, plan);
}

template void prepare(const ExpertsCall&, const Activations&, Tile<8>*, int32_t*);
template void prepare(const ExpertsCall&, const Activations&, Tile<16>*, int32_t*);
template void prepare(const ExpertsCall&, const Activations&, Tile<32>*, int32_t*);

}  // namespace onelane::cuda::moe
