// route in two kernels: the gate's products over segments of the width, then a block a row for scores, choice, weights.
#include <algorithm>

#include "base/check.h"
#include "cuda/numerics.h"
#include "cuda/stages.h"
#include "cuda/streams/row_tiles.h"

namespace onelane::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kSegment = kWarps * kTileColumns;  // columns of a block
constexpr int kBlockExperts = 32;
constexpr int kMostExperts = 512, kMostTopk = 32;

// partial [rows, segments, experts]. Grid: segments, groups of experts, and over the tiles of rows. A block reads its
// part of the gate once, before it waits.
__global__ __launch_bounds__(kWarps * 32) void gate_products(const bf16* xs, const bf16* gate, int dim, int experts,
                                                             int rows, float* partial) {
  __shared__ __align__(16) float sums[2][kWarps * kTileRows * kSumStride];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int column = blockIdx.x * kSegment + warp * kTileColumns;
  const int first_expert = blockIdx.y * kBlockExperts;
  const bool wanted = column < dim;

  uint4 weights[kBlockExperts / 8];
#pragma unroll
  for (int n = 0; n < kBlockExperts / 8; ++n) {
    const int expert = first_expert + 8 * n + lane / 4;
    weights[n] = make_uint4(0, 0, 0, 0);
    if (wanted && expert < experts) {
      weights[n] =
          __ldcg(reinterpret_cast<const uint4*>(gate + static_cast<int64_t>(expert) * dim + column) + lane % 4);
    }
  }

  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int step = gridDim.z * kTileRows;
  int first_row = blockIdx.z * kTileRows;
  RowTile next = load_row_tile(xs, dim, first_row, rows, column, wanted, lane);
  for (int buffer = 0; first_row < rows; first_row += step, buffer ^= 1) {
    const RowTile x = next;
    next = load_row_tile(xs, dim, first_row + step, rows, column, wanted, lane);
#pragma unroll
    for (int n = 0; n < kBlockExperts / 8; ++n) {
      float sum[4] = {};
      multiply_row_tile(sum, x, weights[n]);
      store_sums(sums[buffer] + warp * kTileRows * kSumStride, sum, 8 * n, lane);
    }
    // One barrier a tile: the buffer is written again only behind the next tile's.
    __syncthreads();
    const int row = threadIdx.x / 8, output = threadIdx.x % 8 * 4;
    if (row < kTileRows && first_row + row < rows) {
      const float4 total = add_sums<kWarps>(sums[buffer], row, output);
      const float values[4] = {total.x, total.y, total.z, total.w};
      const int expert = first_expert + output;
      float* to = partial + (static_cast<int64_t>(first_row + row) * gridDim.x + blockIdx.x) * experts + expert;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (expert + i < experts) to[i] = values[i];
      }
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
__device__ __forceinline__ Best best_of(const uint32_t (&keys)[kMostExperts / 32], int lane) {
  Best best = {0, 0};
#pragma unroll
  for (int i = 0; i < kMostExperts / 32; ++i) {
    if (keys[i] > best.key) best = {keys[i], static_cast<uint32_t>(32 * i + lane)};
  }
  return best;
}

// For a warp: lane k gets the expert of place k.
__device__ __forceinline__ int choose(const float* biased, int experts, int topk, int lane) {
  uint32_t keys[kMostExperts / 32];
#pragma unroll
  for (int i = 0; i < kMostExperts / 32; ++i) {
    const int expert = 32 * i + lane;
    keys[i] = expert < experts ? order_key(biased[expert]) : 0;
  }
  Best best = best_of(keys, lane);
  int mine = 0;
  for (int place = 0; place < topk; ++place) {
    const uint32_t key = __reduce_max_sync(0xffffffff, best.key);
    const uint32_t expert = __reduce_min_sync(0xffffffff, best.key == key ? best.expert : 0xffffffffu);
    if (lane == place) mine = static_cast<int>(expert);
    if (best.key == key && best.expert == expert) {
#pragma unroll
      for (int i = 0; i < kMostExperts / 32; ++i) {
        keys[i] = expert == static_cast<uint32_t>(32 * i + lane) ? 0 : keys[i];
      }
      best = best_of(keys, lane);
    }
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

__global__ __launch_bounds__(kMostExperts) void choose_experts(ChooseArgs args) {
  __shared__ float scores[kMostExperts], biased[kMostExperts];
  const int expert = threadIdx.x, lane = threadIdx.x % 32;
  const int64_t row = blockIdx.x;
  const bool exists = expert < args.experts;
  const float bias = exists && args.bias != nullptr ? __ldcg(args.bias + expert) : 0.0f;
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();

  constexpr int kAtOnce = 24;  // segments asked for at once
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

  int mine = 0;
  if (args.tid2eid == nullptr) {
    mine = choose(biased, args.experts, args.topk, lane);
  } else if (lane < args.topk) {
    mine = static_cast<int>(args.tid2eid[int64_t{args.tokens[row]} * args.topk + lane]);
  }
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
  launch(stage, "choose_experts", choose_experts, dim3(rows), dim3((args.experts + 31) / 32 * 32), 0, choose);
}

}  // namespace onelane::cuda
