// The lightning indexer (spec/model.md 3.4, 3.5): products, queries in fp4, and the calls of what scores and chooses.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cuda/index/index.h"
#include "cuda/index/vectors.h"
#include "cuda/linear/multiply.h"
#include "cuda/stages.h"

namespace onelane::cuda {
namespace {

constexpr int kWarps = 4;

// grid: rows x heads / kWarps. A warp a head.
__global__ void __launch_bounds__(32 * kWarps)
    make_queries(const bf16* qi, const bf16* projected, const float* angles, int heads, float head_scale,
                 bool transforms, IndexQueries out) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int row = blockIdx.x, head = blockIdx.y * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= out.heads) return;
  const int64_t to = static_cast<int64_t>(row) * out.heads + head;
  if (head >= heads) {
    reinterpret_cast<uint16_t*>(out.codes + to * (kIndexDim / 2))[lane] = 0;
    if (lane < 4) out.scales[to * 4 + lane] = 127;
    if (lane == 0) out.weights[to] = 0;
    return;
  }
  const int64_t from = static_cast<int64_t>(row) * heads + head;
  const uint2 pairs = reinterpret_cast<const uint2*>(qi + from * kIndexDim)[lane];
  const float2 low = unpack_bf16(pairs.x), high = unpack_bf16(pairs.y);
  float v[4] = {low.x, low.y, high.x, high.y};
  rope_index_vector(v, lane, angles + static_cast<int64_t>(row) * kRopeDim);
  if (transforms) hadamard(v, lane);
  encode_record<RecordFormat::kIndexMxfp4>(v, lane, out.codes + to * (kIndexDim / 2), out.scales + to * 4);
  if (lane == 0) out.weights[to] = round_bf16(__fmul_rn(bf16_to_float(projected[from]), head_scale));
}

}  // namespace

void index(const Stage& stage, const IndexArgs& args) {
  ONELANE_CHECK(args.wq_b.out == args.heads * kIndexDim, "wq_b must give 128 values per head");
  const size_t rows = stage.rows.count;
  Workspace& workspace = *stage.workspace;
  const float* angles = stage.angles(*args.rope);
  bf16* qi = workspace.take<bf16>(rows * args.wq_b.out);
  bf16* projected = workspace.take<bf16>(rows * args.heads);
  multiply(stage, {{.weights = &args.wq_b,
                    .x = args.qr,
                    .x_stride = args.wq_b.in,
                    .rows = stage.rows.count,
                    .rounded = qi,
                    .y_stride = args.wq_b.out},
                   {.weights = &args.weights_proj,
                    .x = args.x,
                    .x_stride = args.dim,
                    .rows = stage.rows.count,
                    .rounded = projected,
                    .y_stride = args.heads}});

  IndexQueries queries;
  queries.heads = (args.heads + 7) / 8 * 8;
  queries.codes = workspace.take<uint8_t>(rows * queries.heads * (kIndexDim / 2));
  queries.scales = workspace.take<uint8_t>(rows * queries.heads * 4);
  queries.weights = workspace.take<float>(rows * queries.heads);
  const auto head_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kIndexDim) * args.heads));
  launch(stage, "make_queries", make_queries, dim3(stage.rows.count, (queries.heads + kWarps - 1) / kWarps),
         dim3(32 * kWarps), 0, qi, projected, angles, args.heads, head_scale, args.hadamard, queries);

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
  scores.stride = stage.rows.pages_per_slot * args.keys.per_page;
  const int at_once = std::min(stage.rows.count, std::max(kFewestRows, kMostScores / scores.stride));
  scores.values = workspace.take<float>(static_cast<size_t>(at_once) * scores.stride);
  uint32_t* block_keys = nullptr;
  if (args.mode == IndexArgs::Candidates::kPublish) {
    const size_t blocks = (scores.stride + args.block_size - 1) / args.block_size;
    block_keys = workspace.take<uint32_t>(at_once * blocks);
  }
  for (scores.first_row = 0; scores.first_row < stage.rows.count; scores.first_row += at_once) {
    scores.rows = std::min(at_once, stage.rows.count - scores.first_row);
    score_entries(stage, queries, choice, scores);
    select_entries(stage, choice, scores, block_keys, args.picks);
  }
}

}  // namespace onelane::cuda
