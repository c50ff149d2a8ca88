// Activations to codes, pairs to tiles (see experts.h).
#include "cuda/moe/experts.h"
#include "cuda/numerics.h"

namespace onelane::cuda::moe {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct QuantiseArgs {
  const bf16* x;
  int count;
  Codes codes;
};

// A warp: 128 values of one row, four neighbouring ones a lane.
__device__ __forceinline__ void quantise_part(const QuantiseArgs& args, int part) {
  const int lane = threadIdx.x % 32;
  const int parts = (args.codes.width + 127) / 128;
  const int64_t row = part / parts;
  if (row >= args.count) return;
  const int first = part % parts * 128, column = first + 4 * lane;
  float v[4] = {};
  if (column < args.codes.width) {
    const uint2 four = *reinterpret_cast<const uint2*>(args.x + row * args.codes.width + column);
    const float2 low = unpack_bf16(four.x), high = unpack_bf16(four.y);
    v[0] = low.x, v[1] = low.y, v[2] = high.x, v[3] = high.y;
  }
  const float amax = args.codes.block == 128 ? block_amax<32>(v) : block_amax<8>(v);
  if (column >= args.codes.width) return;
  const uint32_t scale = fp8_scale(amax);
  // 8 l + 4 h + i of block b: lane l's, half h.
  const int block = lane / 8, of_lane = lane % 8 / 2, half = lane % 2;
  uint8_t* to = args.codes.codes + row * parts * 128 + first + of_lane * 32 + block * 8 + half * 2;
  *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(fp8_code(v[0], scale) | fp8_code(v[2], scale) << 8);
  *reinterpret_cast<uint16_t*>(to + 4) = static_cast<uint16_t>(fp8_code(v[1], scale) | fp8_code(v[3], scale) << 8);
  if (column % args.codes.block == 0) {
    args.codes.scales[row * (args.codes.width / args.codes.block) + column / args.codes.block] = e8m0_to_float(scale);
  }
}

__global__ void __launch_bounds__(kThreads) quantise_rows(QuantiseArgs args) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
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
  extern __shared__ int32_t expert_ints[];
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

int blocks_for(const Codes& codes, int count) {
  const int64_t parts = static_cast<int64_t>(count) * ((codes.width + 127) / 128);
  return static_cast<int>((parts + kWarps - 1) / kWarps);
}

}  // namespace

Codes take_codes(const Stage& stage, int count, int width, int block) {
  Codes codes{.width = width, .block = block};
  codes.codes = stage.workspace->take<uint8_t>(static_cast<size_t>(count) * codes.row_bytes());
  codes.scales = stage.workspace->take<float>(static_cast<size_t>(count) * (width / block));
  return codes;
}

void quantise(const ExpertsCall& call, const bf16* x, int count, const Codes& codes) {
  launch(*call.stage, "quantise_rows", quantise_rows, dim3(blocks_for(codes, count)), dim3(kThreads), 0,
         QuantiseArgs{x, count, codes});
}

template <int kWidth>
void prepare(const ExpertsCall& call, const Codes& codes, Tile<kWidth>* tiles, int32_t* tile_count) {
  const ExpertsArgs& args = *call.args;
  const PlanArgs<kWidth> plan{
      args.ids, call.rows(), args.topk, args.expert_count, call.experts, pointers_of(args.shared), tiles, tile_count};
  launch(*call.stage, "prepare_experts", prepare_experts<kWidth>, dim3(1 + blocks_for(codes, call.rows())),
         dim3(kThreads), 2 * sizeof(int32_t) * args.expert_count, QuantiseArgs{args.x, call.rows(), codes}, plan);
}

template void prepare(const ExpertsCall&, const Codes&, Tile<8>*, int32_t*);
template void prepare(const ExpertsCall&, const Codes&, Tile<16>*, int32_t*);
template void prepare(const ExpertsCall&, const Codes&, Tile<32>*, int32_t*);

}  // namespace onelane::cuda::moe
