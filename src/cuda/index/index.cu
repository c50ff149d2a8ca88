// The lightning indexer (spec/model.md 3.4, 3.5): queries in fp4, and the calls of what scores and chooses.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cuda/index/index.h"
#include "cuda/index/operands.h"
#include "cuda/index/vectors.h"
#include "cuda/stages.h"

namespace onelane::cuda {
namespace {

constexpr int kWarps = 4;

struct Queries {
  const bf16* products;      // [rows, heads, 128]
  const bf16* head_weights;  // [rows, heads]
  const float* angles;
  int rows, heads;
  bool transforms;
  float scale;  // of the weights
};

// A warp for a row and a head, of which it has four values a lane.
__global__ void __launch_bounds__(32 * kWarps) make_queries(const Queries queries, IndexQueries out) {
  __shared__ __align__(16) uint8_t records[kWarps][kIndexDim / 2 + 16];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int i = blockIdx.x * kWarps + warp;  // of [rows, out.heads]
  const int row = i / out.heads, head = i % out.heads;
  if (row >= queries.rows) return;
  // A lane's half of the operands of eight codes.
  const int word = lane / 2;
  uint2* operands =
      reinterpret_cast<uint2*>(out.operands + int64_t{i - head % 8} * 16 + word / 4 * 32 + head % 8 * 4 + word % 4) +
      lane % 2;
  uint32_t* out_scales = reinterpret_cast<uint32_t*>(out.scales) + i;
  if (head >= queries.heads) {  // which is there to make eight
    *operands = make_uint2(0, 0);
    if (lane == 0) {
      *out_scales = 0x7f7f7f7fu;
      out.weights[i] = 0;
    }
    return;
  }
  const int64_t at = int64_t{row} * queries.heads + head;
  const float weight = bf16_to_float(queries.head_weights[at]);
  const uint2 pairs = reinterpret_cast<const uint2*>(queries.products + at * kIndexDim)[lane];
  const float2 low = unpack_bf16(pairs.x), high = unpack_bf16(pairs.y);
  float v[4] = {low.x, low.y, high.x, high.y};
  rope_index_vector(v, lane, queries.angles + int64_t{row} * kRopeDim);
  if (queries.transforms) hadamard(v, lane);
  uint8_t* record = records[warp];
  encode_record<RecordFormat::kIndexMxfp4>(v, lane, record, record + kIndexDim / 2);
  __syncwarp();
  const uint32_t scales = *reinterpret_cast<const uint32_t*>(record + kIndexDim / 2);
  const uint4 both = index_operands(reinterpret_cast<const uint32_t*>(record)[word], scales, word / 4);
  *operands = lane % 2 == 0 ? make_uint2(both.x, both.y) : make_uint2(both.z, both.w);
  if (lane == 0) {
    *out_scales = scales;
    out.weights[i] = round_bf16(__fmul_rn(weight, queries.scale));
  }
}

}  // namespace

void index(const Stage& stage, const IndexArgs& args) {
  const size_t rows = stage.rows.count;
  Workspace& workspace = *stage.workspace;
  IndexQueries queries;
  queries.heads = (args.heads + 7) / 8 * 8;
  queries.operands = workspace.take<uint4>(rows * queries.heads * (kIndexDim / 8));
  queries.scales = workspace.take<uint8_t>(rows * queries.heads * 4);
  queries.weights = workspace.take<float>(rows * queries.heads);
  const Queries products = {.products = args.queries,
                            .head_weights = args.head_weights,
                            .angles = stage.angles(*args.rope),
                            .rows = stage.rows.count,
                            .heads = args.heads,
                            .transforms = args.hadamard,
                            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kIndexDim) * args.heads))};
  const auto warps = static_cast<unsigned>(rows) * queries.heads;
  launch(stage, "make_queries", make_queries, dim3((warps + kWarps - 1) / kWarps), dim3(32 * kWarps), 0, products,
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
