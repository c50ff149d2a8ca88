// route in two kernels: the gate's products over segments of the width, then a block a row for scores, choice, weights.
#include <algorithm>

#include "base/check.h"
#include "cuda/numerics.h"
#include "cuda/stages.h"
#include "cuda/streams/row_tiles.h"

namespace onelane::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kTiles = 2;                                 // of columns, of a warp
constexpr int kSegment = kWarps * kTiles * kTileColumns;  // columns of a block
constexpr int kBlockExperts = 16;
constexpr int kMostExperts = 512, kMostTopk = 32;
static_assert(kTileRows * kBlockExperts == kWarps * 32, "a thread adds up one sum");

// partial [rows, segments, experts]. Grid: segments, groups of experts, and over the tiles of rows. A block reads its
// part of the gate once, before it waits.
__global__ __launch_bounds__(kWarps * 32) void gate_products(const bf16* xs, const bf16* gate, int dim, int experts,
                                                             int rows, float* partial) {
  __shared__ __align__(16) float sums[2][kWarps * kTileRows * kSumStride];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_column = blockIdx.x * kSegment + warp * kTiles * kTileColumns;
  const int first_expert = blockIdx.y * kBlockExperts;
  ptx::let_next_kernel_start();

  uint4 weights[kTiles][kBlockExperts / 8];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int column = first_column + tile * kTileColumns;
#pragma unroll
    for (int n = 0; n < kBlockExperts / 8; ++n) {
      const int expert = first_expert + 8 * n + lane / 4;
      weights[tile][n] = make_uint4(0, 0, 0, 0);
      if (column < dim && expert < experts) {
        weights[tile][n] =
            __ldcg(reinterpret_cast<const uint4*>(gate + static_cast<int64_t>(expert) * dim + column) + lane % 4);
      }
    }
  }

  ptx::wait_for_previous_kernel();
  const int step = gridDim.z * kTileRows;
  int first_row = blockIdx.z * kTileRows;
  RowTile next[kTiles];
  const auto load = [&](int row) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int column = first_column + tile * kTileColumns;
      next[tile] = load_row_tile(xs, dim, row, rows, column, column < dim, lane);
    }
  };
  load(first_row);
  for (int buffer = 0; first_row < rows; first_row += step, buffer ^= 1) {
    const RowTile x[kTiles] = {next[0], next[1]};
    load(first_row + step);
#pragma unroll
    for (int n = 0; n < kBlockExperts / 8; ++n) {
      float sum[4] = {};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) multiply_row_tile(sum, x[tile], weights[tile][n]);
      store_sums(sums[buffer] + warp * kTileRows * kSumStride, sum, 8 * n, lane);
    }
    // One barrier a tile: the buffer is written again only behind the next tile's.
    __syncthreads();
    const int row = threadIdx.x / kBlockExperts, output = threadIdx.x % kBlockExperts;
    const int expert = first_expert + output;
    if (first_row + row < rows && expert < experts) {
      float total = 0;
#pragma unroll
      for (int part = 0; part < kWarps; ++part) {
        total += sums[buffer][(part * kTileRows + row) * kSumStride + output];
      }
      partial[(static_cast<int64_t>(first_row + row) * gridDim.x + blockIdx.x) * experts + expert] = total;
    }
  }
}

// sqrt(softplus(z)). Far below zero softplus is exp(z), whose root is taken before it gets too small for a float.
__device__ __forceinline__ float router_score(float z) {
  if (z < -17.0f) return expf(0.5f * z);
  return sqrtf(z > 20.0f ? z : log1pf(expf(z)));
}

// Orders floats as unsigned integers, -inf the least; above 0 all of them. NaN counts as -inf.
__device__ __forceinline__ uint32_t order_key(float x) {
  const uint32_t bits = __float_as_uint(isnan(x) ? -INFINITY : x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// What a lane has of the experts: expert 32 i + lane in keys[i]; its best, of equals the lowest.
struct Best {
  uint32_t key, expert;
};
// A tree, because the warp waits for its depth alone.
template <int kKeys>
__device__ __forceinline__ Best best_of(const uint32_t (&keys)[kKeys], int lane) {
  Best best[kKeys];
#pragma unroll
  for (int i = 0; i < kKeys; ++i) best[i] = {keys[i], static_cast<uint32_t>(32 * i + lane)};
#pragma unroll
  for (int apart = 1; apart < kKeys; apart *= 2) {
#pragma unroll
    for (int i = 0; i + apart < kKeys; i += 2 * apart) {
      if (best[i + apart].key > best[i].key) best[i] = best[i + apart];
    }
  }
  return best[0];
}

// For a warp, of at most 32 kKeys experts: lane k gets the expert of place k.
template <int kKeys>
__device__ __forceinline__ int choose(const float* biased, int experts, int topk, int lane) {
  uint32_t keys[kKeys];
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const int expert = 32 * i + lane;
    keys[i] = expert < experts ? order_key(biased[expert]) : 0;
  }
  int mine = 0;
  for (int place = 0; place < topk; ++place) {
    const Best best = best_of(keys, lane);
    const uint32_t key = __reduce_max_sync(0xffffffff, best.key);
    const uint32_t expert = __reduce_min_sync(0xffffffff, best.key == key ? best.expert : 0xffffffffu);
    if (lane == place) mine = static_cast<int>(expert);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) keys[i] = expert == static_cast<uint32_t>(32 * i + lane) ? 0 : keys[i];
  }
  return mine;
}

struct ChooseArgs {
  const float* partial;
  int segments, experts, topk;
  const float* bias;
  const int64_t* tid2eid;
  const int32_t* tokens;
  bool normalise;
  float norm_eps, scale;
  int32_t* ids;
  float* weights;
};

template <int kKeys>
__global__ __launch_bounds__(32 * kKeys) void choose_experts(ChooseArgs args) {
  __shared__ float scores[32 * kKeys], biased[32 * kKeys];
  ptx::let_next_kernel_start();
  const int expert = threadIdx.x, lane = threadIdx.x % 32;
  const int64_t row = blockIdx.x;
  const bool exists = expert < args.experts;
  const float bias = exists && args.bias != nullptr ? __ldcg(args.bias + expert) : 0.0f;
  int mine = 0;
  if (args.tid2eid != nullptr && expert < args.topk) {  // the tokens are the host's, there since before the step
    mine = static_cast<int>(__ldcg(args.tid2eid + int64_t{__ldcg(args.tokens + row)} * args.topk + expert));
  }
  ptx::wait_for_previous_kernel();

  constexpr int kAtOnce = 12;  // segments asked for at once
  const float* partial = args.partial + row * args.segments * args.experts + expert;
  float z = 0;
  for (int first = 0; first < args.segments; first += kAtOnce) {
    float part[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      part[i] = exists && first + i < args.segments ? __ldcg(partial + (first + i) * args.experts) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) z += part[i];
  }
  scores[expert] = router_score(z);
  biased[expert] = scores[expert] + bias;
  __syncthreads();
  if (threadIdx.x >= 32) return;

  if (args.tid2eid == nullptr) mine = choose<kKeys>(biased, args.experts, args.topk, lane);
  const float score = lane < args.topk ? scores[mine] : 0.0f;
  float sum = 0;
  for (int place = 0; place < args.topk; ++place) sum += __shfl_sync(0xffffffff, score, place);
  if (lane >= args.topk) return;
  float weight = score;
  if (args.normalise) weight = sum == 0 ? 1.0f / args.topk : score / (sum + args.norm_eps);
  args.ids[row * args.topk + lane] = mine;
  args.weights[row * args.topk + lane] = weight * args.scale;
}

}  // namespace

void route(const Stage& stage, const RouteArgs& args) {
  ONELANE_CHECK((args.bias == nullptr) != (args.tid2eid == nullptr), "a router scores or looks up, one of the two");
  ONELANE_CHECK(args.topk <= args.experts, "more experts chosen than there are");
  ONELANE_CHECK(args.experts <= kMostExperts && args.topk <= kMostTopk, "more experts than the router is built for");
  ONELANE_CHECK(args.dim % kTileColumns == 0, "a model's width is whole blocks of 32");
  const int rows = stage.rows.count;
  const int segments = (args.dim + kSegment - 1) / kSegment;
  const int groups = (args.experts + kBlockExperts - 1) / kBlockExperts;
  float* partial = stage.workspace->take<float>(static_cast<size_t>(rows) * segments * args.experts);

  // With many rows a block keeps its part of the gate for several tiles: as many blocks as are there at once.
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  const int across = std::min(tiles, std::max(1, 4 * stage.processors / (segments * groups)));
  launch(stage, "gate_products", gate_products, dim3(segments, groups, across), dim3(kWarps * 32), 0, args.x,
         reinterpret_cast<const bf16*>(args.gate.data), args.dim, args.experts, rows, partial);

  const ChooseArgs choose = {.partial = partial,
                             .segments = segments,
                             .experts = args.experts,
                             .topk = args.topk,
                             .bias = args.bias,
                             .tid2eid = args.tid2eid,
                             .tokens = stage.rows.token,
                             .normalise = args.normalise,
                             .norm_eps = args.norm_eps,
                             .scale = args.scale,
                             .ids = args.ids,
                             .weights = args.weights};
  const auto kernel = args.experts <= 256   ? choose_experts<8>
                      : args.experts <= 384 ? choose_experts<12>
                                            : choose_experts<kMostExperts / 32>;
  launch(stage, "choose_experts", kernel, dim3(rows), dim3((args.experts + 31) / 32 * 32), 0, choose);
}

}  // namespace onelane::cuda
