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

// grid: groups of `rows_a_block` rows x heads. Each warp sums its part of the head's weight; the first makes the query.
__global__ void __launch_bounds__(32 * kWarps)
    make_queries(const bf16* qi, const HeadWeights head_weights, const float* angles, int rows, int rows_a_block,
                 int heads, bool transforms, IndexQueries out) {
  __shared__ __align__(16) uint8_t record[kIndexDim / 2 + 16];
  __shared__ float parts[2][kWarps];
  ptx::let_next_kernel_start();
  const int first_row = blockIdx.x * rows_a_block, head = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int end_row = min(first_row + rows_a_block, rows);
  const int dim = head_weights.dim;
  const bf16* weights = head_weights.weights + static_cast<int64_t>(min(head, heads - 1)) * dim;
  const auto place = [&](int first, int j) { return first + ((j * kWarps + warp) * 32 + lane) * 8; };
  const auto load_weights = [&](int first, uint4(&of_lane)[kBatch]) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) of_lane[j] = load_eight(weights, place(first, j), dim, head_weights.aligned);
  };
  uint4 first_weights[kBatch];
  load_weights(0, first_weights);
  for (int k = place(kPass, 0); k < dim; k += kWarps * 32 * 8) ptx::prefetch(weights + k);
  ptx::wait_for_previous_kernel();
  for (int row = first_row; row < end_row; ++row) {
    const int64_t to = static_cast<int64_t>(row) * out.heads + head;
    // A lane's half of the operands of eight codes.
    const int word = lane / 2;
    uint2* operands =
        reinterpret_cast<uint2*>(out.operands + (to - head % 8) * 16 + word / 4 * 32 + head % 8 * 4 + word % 4) +
        lane % 2;
    if (head >= heads) {
      if (warp != 0) continue;
      *operands = make_uint2(0, 0);
      if (lane < 4) out.scales[to * 4 + lane] = 127;
      if (lane == 0) out.weights[to] = 0;
      continue;
    }
    uint2 pairs = {};
    if (warp == 0) {
      pairs = reinterpret_cast<const uint2*>(qi + (static_cast<int64_t>(row) * heads + head) * kIndexDim)[lane];
    }
    const bf16* x = head_weights.x + static_cast<int64_t>(row) * dim;
    float sums[4] = {};
#pragma unroll 1
    for (int first = 0; first < dim; first += kPass) {
      uint4 w[kBatch], values[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        w[j] = first_weights[j];
        values[j] = load_eight(x, place(first, j), dim, head_weights.aligned);
      }
      if (first > 0) load_weights(first, w);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        sums[0] = add_products(sums[0], w[j].x, values[j].x);
        sums[1] = add_products(sums[1], w[j].y, values[j].y);
        sums[2] = add_products(sums[2], w[j].z, values[j].z);
        sums[3] = add_products(sums[3], w[j].w, values[j].w);
      }
    }
    const float part = warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    // One barrier a row: the parts of the row after the next are the first to overwrite these.
    float* of_row = parts[(row - first_row) % 2];
    if (lane == 0) of_row[warp] = part;
    __syncthreads();
    if (warp != 0) continue;
    const float2 low = unpack_bf16(pairs.x), high = unpack_bf16(pairs.y);
    float v[4] = {low.x, low.y, high.x, high.y};
    rope_index_vector(v, lane, angles + static_cast<int64_t>(row) * kRopeDim);
    if (transforms) hadamard(v, lane);
    __syncwarp();
    encode_record<RecordFormat::kIndexMxfp4>(v, lane, record, record + kIndexDim / 2);
    __syncwarp();
    const uint32_t scales = *reinterpret_cast<const uint32_t*>(record + kIndexDim / 2);
    const uint4 both = index_operands(reinterpret_cast<const uint32_t*>(record)[word], scales, word / 4);
    *operands = lane % 2 == 0 ? make_uint2(both.x, both.y) : make_uint2(both.z, both.w);
    if (lane != 0) continue;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += of_row[i];
    reinterpret_cast<uint32_t*>(out.scales)[to] = scales;
    out.weights[to] = round_bf16(__fmul_rn(round_bf16(sum), head_weights.scale));
  }
}

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
  // Few rows are spread out; of many, each block's share its weights.
  const int rows_a_block = stage.rows.count <= 16 ? 1 : 8;
  launch(stage, "make_queries", make_queries, dim3((stage.rows.count + rows_a_block - 1) / rows_a_block, queries.heads),
         dim3(32 * kWarps), 0, qi, head_weights, angles, stage.rows.count, rows_a_block, args.heads, args.hadamard,
         queries);

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
