// The lightning indexer (spec/model.md 3.4, 3.5): products, queries in fp4, and the calls of what scores and chooses.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cuda/index/index.h"
#include "cuda/index/operands.h"
#include "cuda/index/vectors.h"
#include "cuda/linear/multiply.h"
#include "cuda/stages.h"

namespace onelane::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kBatch = 4;                        // of eight weights a lane
constexpr int kPass = kBatch * kWarps * 32 * 8;  // weights of a block

// A head's weight for each row: a product too small for a launch of its own.
struct HeadWeights {
  const bf16* x;        // [rows, dim]
  const bf16* weights;  // [heads, dim]
  int dim;
  bool aligned;  // all in whole 16 bytes
  float scale;
};

// Eight of `count` values from the i-th on, zeros from the end on.
__device__ __forceinline__ uint4 load_eight(const bf16* from, int i, int count, bool aligned) {
  if (aligned) return i < count ? *reinterpret_cast<const uint4*>(from + i) : make_uint4(0, 0, 0, 0);
  uint32_t words[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int at = i + 2 * j;
    words[j] = (at < count ? from[at] : 0u) | (at + 1 < count ? from[at + 1] : 0u) << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
__device__ __forceinline__ float add_products(float sum, uint32_t a, uint32_t b) {
  const float2 x = unpack_bf16(a), y = unpack_bf16(b);
  return fmaf(x.y, y.y, fmaf(x.x, y.x, sum));
}

// A query of a row and head, from its product: four values a lane. `record`: of the warp.
struct Query {
  const bf16* qi;  // [rows, heads, 128]
  const float* angles;
  int heads;
  bool transforms;

  __device__ __forceinline__ uint2 load(int row, int head, int lane) const {
    return reinterpret_cast<const uint2*>(qi + (static_cast<int64_t>(row) * heads + head) * kIndexDim)[lane];
  }
  __device__ __forceinline__ void store(const IndexQueries& out, int row, int head, int lane, const uint2& pairs,
                                        uint8_t* record) const {
    const float2 low = unpack_bf16(pairs.x), high = unpack_bf16(pairs.y);
    float v[4] = {low.x, low.y, high.x, high.y};
    rope_index_vector(v, lane, angles + static_cast<int64_t>(row) * kRopeDim);
    if (transforms) hadamard(v, lane);
    __syncwarp();
    encode_record<RecordFormat::kIndexMxfp4>(v, lane, record, record + kIndexDim / 2);
    __syncwarp();
    const uint32_t scales = *reinterpret_cast<const uint32_t*>(record + kIndexDim / 2);
    const int word = lane / 2;
    const uint4 both = index_operands(reinterpret_cast<const uint32_t*>(record)[word], scales, word / 4);
    *operands(out, row, head, lane) = lane % 2 == 0 ? make_uint2(both.x, both.y) : make_uint2(both.z, both.w);
    if (lane == 0) reinterpret_cast<uint32_t*>(out.scales)[place(out, row, head)] = scales;
  }
  // That of a head which is there to make eight.
  __device__ __forceinline__ void store_nothing(const IndexQueries& out, int row, int head, int lane) const {
    *operands(out, row, head, lane) = make_uint2(0, 0);
    if (lane < 4) out.scales[place(out, row, head) * 4 + lane] = 127;
    if (lane == 0) out.weights[place(out, row, head)] = 0;
  }
  static __device__ __forceinline__ int64_t place(const IndexQueries& out, int row, int head) {
    return static_cast<int64_t>(row) * out.heads + head;
  }

 private:
  // A lane's half of the operands of eight codes.
  static __device__ __forceinline__ uint2* operands(const IndexQueries& out, int row, int head, int lane) {
    const int word = lane / 2;
    const int64_t at = (place(out, row, head) - head % 8) * 16 + word / 4 * 32 + head % 8 * 4 + word % 4;
    return reinterpret_cast<uint2*>(out.operands + at) + lane % 2;
  }
};
constexpr int kRecordBytes = kIndexDim / 2 + 16;

// A lane's products of weights and values.
struct LaneSums {
  float of[4] = {};

  __device__ __forceinline__ void add(const uint4& w, const uint4& x) {
    of[0] = add_products(of[0], w.x, x.x);
    of[1] = add_products(of[1], w.y, x.y);
    of[2] = add_products(of[2], w.z, x.z);
    of[3] = add_products(of[3], w.w, x.w);
  }
  __device__ __forceinline__ float of_warp() const { return warp_sum((of[0] + of[1]) + (of[2] + of[3])); }
};
// The first of the j-th eight values of a lane, of those from `first` on.
__device__ __forceinline__ int lane_place(int first, int j) {
  return first + (j * kWarps * 32 + static_cast<int>(threadIdx.x)) * 8;
}
// A head's weight of a row, from the sums of the warps.
__device__ __forceinline__ float head_weight(const float (&parts)[kWarps], float scale) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += parts[i];
  return round_bf16(__fmul_rn(round_bf16(sum), scale));
}

// grid: rows x heads. Each warp sums its part of the head's weight; the first makes the query.
__global__ void __launch_bounds__(32 * kWarps)
    make_queries(const HeadWeights head_weights, const Query query, IndexQueries out) {
  __shared__ __align__(16) uint8_t record[kRecordBytes];
  __shared__ float parts[kWarps];
  ptx::let_next_kernel_start();
  const int row = blockIdx.x, head = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int dim = head_weights.dim;
  const bf16* weights = head_weights.weights + static_cast<int64_t>(min(head, query.heads - 1)) * dim;
  uint4 first_weights[kBatch];
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    first_weights[j] = load_eight(weights, lane_place(0, j), dim, head_weights.aligned);
  }
  for (int k = lane_place(kPass, 0); k < dim; k += kWarps * 32 * 8) ptx::prefetch(weights + k);
  ptx::wait_for_previous_kernel();
  if (head >= query.heads) {
    if (warp == 0) query.store_nothing(out, row, head, lane);
    return;
  }
  uint2 pairs = {};
  if (warp == 0) pairs = query.load(row, head, lane);
  const bf16* x = head_weights.x + static_cast<int64_t>(row) * dim;
  LaneSums sums;
#pragma unroll 1
  for (int first = 0; first < dim; first += kPass) {
    uint4 w[kBatch], values[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int at = lane_place(first, j);
      w[j] = first == 0 ? first_weights[j] : load_eight(weights, at, dim, head_weights.aligned);
      values[j] = load_eight(x, at, dim, head_weights.aligned);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) sums.add(w[j], values[j]);
  }
  const float part = sums.of_warp();
  if (lane == 0) parts[warp] = part;
  __syncthreads();
  if (warp != 0) return;
  query.store(out, row, head, lane, pairs, record);
  if (lane == 0) out.weights[Query::place(out, row, head)] = head_weight(parts, head_weights.scale);
}

// Many rows: the queries, a warp a row, then the weights of all heads. grid: groups of kWarps rows x heads.
__global__ void __launch_bounds__(32 * kWarps) make_many_queries(const Query query, int rows, IndexQueries out) {
  __shared__ __align__(16) uint8_t record[kWarps][kRecordBytes];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = blockIdx.x * kWarps + warp, head = blockIdx.y;
  if (row >= rows) return;
  if (head >= query.heads) {
    query.store_nothing(out, row, head, lane);
  } else {
    query.store(out, row, head, lane, query.load(row, head, lane), record[warp]);
  }
}

// The same sums as above of kRows rows, whose values stay in registers through all heads: x has at most kPasses times
// kPass of them, and all is in whole 16 bytes. `parts`: float [rows][heads][kWarps].
template <int kPasses, int kRows>
__global__ void __launch_bounds__(32 * kWarps)
    weigh_heads(const HeadWeights head_weights, int rows, int heads, IndexQueries out) {
  ONELANE_DYNAMIC_SHARED(float, parts);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int first_row = blockIdx.x * kRows, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int dim = head_weights.dim;
  uint4 x[kRows][kPasses * kBatch];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const bf16* from = head_weights.x + static_cast<int64_t>(min(first_row + r, rows - 1)) * dim;
#pragma unroll
    for (int j = 0; j < kPasses * kBatch; ++j) x[r][j] = load_eight(from, lane_place(0, j), dim, true);
  }
  for (int head = 0; head < heads; ++head) {
    const bf16* weights = head_weights.weights + static_cast<int64_t>(head) * dim;
    uint4 w[kPasses * kBatch];
#pragma unroll
    for (int j = 0; j < kPasses * kBatch; ++j) w[j] = load_eight(weights, lane_place(0, j), dim, true);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      LaneSums sums;
#pragma unroll
      for (int j = 0; j < kPasses * kBatch; ++j) sums.add(w[j], x[r][j]);
      const float part = sums.of_warp();
      if (lane == 0) parts[(r * heads + head) * kWarps + warp] = part;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * heads; i += 32 * kWarps) {
    const int row = first_row + i / heads;
    if (row >= rows) break;
    const float4 four = reinterpret_cast<const float4*>(parts)[i];
    out.weights[Query::place(out, row, i % heads)] = head_weight({four.x, four.y, four.z, four.w}, head_weights.scale);
  }
}
static_assert(kWarps == 4, "their parts are a float4");

}  // namespace

void index(const Stage& stage, const IndexArgs& args) {
  ONELANE_CHECK(args.wq_b.out == args.heads * kIndexDim, "wq_b must give 128 values per head");
  ONELANE_CHECK(args.weights_proj.kind == Matrix::Kind::kBf16 && args.weights_proj.act_block == 0,
                "weights_proj is bf16");
  const size_t rows = stage.rows.count;
  Workspace& workspace = *stage.workspace;
  const float* angles = stage.angles(*args.rope);
  bf16* qi = workspace.take<bf16>(rows * args.wq_b.out);
  multiply(stage, {{.weights = &args.wq_b,
                    .x = args.qr,
                    .x_stride = args.wq_b.in,
                    .rows = stage.rows.count,
                    .rounded = qi,
                    .y_stride = args.wq_b.out}});

  IndexQueries queries;
  queries.heads = (args.heads + 7) / 8 * 8;
  queries.operands = workspace.take<uint4>(rows * queries.heads * (kIndexDim / 8));
  queries.scales = workspace.take<uint8_t>(rows * queries.heads * 4);
  queries.weights = workspace.take<float>(rows * queries.heads);
  HeadWeights head_weights = {
      .x = args.x,
      .weights = reinterpret_cast<const bf16*>(args.weights_proj.data),
      .dim = args.dim,
      .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kIndexDim) * args.heads))};
  const auto in_whole_words = [](const bf16* data) { return reinterpret_cast<uintptr_t>(data) % sizeof(uint4) == 0; };
  head_weights.aligned = in_whole_words(head_weights.x) && in_whole_words(head_weights.weights) && args.dim % 8 == 0;
  const Query query = {qi, angles, args.heads, args.hadamard};
  constexpr int kFewRows = 16;
  const int count = stage.rows.count;
  if (count <= kFewRows || !head_weights.aligned || args.dim > 2 * kPass) {
    launch(stage, "make_queries", make_queries, dim3(count, queries.heads), dim3(32 * kWarps), 0, head_weights, query,
           queries);
  } else {
    launch(stage, "make_many_queries", make_many_queries, dim3((count + kWarps - 1) / kWarps, queries.heads),
           dim3(32 * kWarps), 0, query, count, queries);
    const auto weigh = [&]<int kPasses, int kRows>() {
      launch(stage, "weigh_heads", weigh_heads<kPasses, kRows>, dim3((count + kRows - 1) / kRows), dim3(32 * kWarps),
             sizeof(float) * kRows * args.heads * kWarps, head_weights, count, args.heads, queries);
    };
    args.dim <= kPass ? weigh.template operator()<1, 4>() : weigh.template operator()<2, 2>();
  }

  const IndexChoice choice = {.keys = args.keys,
                              .ratio = args.ratio,
                              .topk = args.topk,
                              .mode = args.mode,
                              .topk_blocks = args.topk_blocks,
                              .block_size = args.block_size,
                              .candidates = args.candidates,
                              .candidate_words = args.candidate_words};
  // Many rows of long sequences would want gigabytes: then some rows after the others.
  constexpr int kMostScores = 1 << 25;
  constexpr int kFewestRows = 8;
  IndexScores scores;
  scores.stride = (stage.rows.pages_per_slot * args.keys.per_page + 3) / 4 * 4;  // rows in whole 16 bytes
  const int at_once = std::min(stage.rows.count, std::max(kFewestRows, kMostScores / scores.stride));
  scores.values = workspace.take<float>(static_cast<size_t>(at_once) * scores.stride);
  uint32_t* block_keys = nullptr;
  if (args.mode == IndexArgs::Candidates::kPublish) {
    const size_t blocks = (scores.stride + args.block_size - 1) / args.block_size;
    block_keys = workspace.take<uint32_t>(at_once * blocks);
  }
  stage.await();
  for (scores.first_row = 0; scores.first_row < stage.rows.count; scores.first_row += at_once) {
    scores.rows = std::min(at_once, stage.rows.count - scores.first_row);
    score_entries(stage, queries, choice, scores);
    select_entries(stage, choice, scores, block_keys, args.picks);
  }
}

}  // namespace onelane::cuda
