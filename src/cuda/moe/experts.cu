// The stage `experts` (see experts.h): which way it goes, and the sum at its end.
#include "base/check.h"
#include "cuda/lanes.h"
#include "cuda/moe/experts.h"
#include "cuda/streams/collapse.h"

namespace onelane::cuda {
namespace {

// y of eight neighbouring dims a thread.
__global__ void sum_rows(const PairSum sum, int rows) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int eights = sum.dim / 8;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<int64_t>(rows) * eights) return;
  reinterpret_cast<uint4*>(sum.y)[i] = sum_of_pairs(sum, rows, i / eights, static_cast<int>(i % eights));
}

}  // namespace

PairSum experts(const Stage& stage, const ExpertsArgs& args, const ExpertPointers* device_experts) {
  const moe::ExpertsCall call{&stage, &args, device_experts};
  PairSum sum = {.topk = args.topk, .dim = args.dim, .y = args.y, .stays = call.rows() <= kMostRecordedRows};
  if (call.rows() == 0) return sum;
  if (args.router != nullptr) route(stage, *args.router);
  ONELANE_CHECK(args.dim % 32 == 0 && args.inter % 32 == 0, "experts are whole blocks of 32 wide");
  const auto take_pairs = [&] {
    Workspace& of = sum.stays ? *stage.pairs : *stage.workspace;
    if (sum.stays) of.reset();
    bf16* pairs = of.take<bf16>(static_cast<size_t>(call.pairs()) * args.dim);
    sum.pairs = pairs;
    return pairs;
  };
  if (!moe::can_stream(args)) {
    moe::plain_experts(call, take_pairs());
  } else if (moe::many_rows(call)) {
    sum.pairs = moe::many_experts(call);
    sum.stays = false;
  } else {
    moe::stream_experts(call, take_pairs());
  }
  return sum;
}

void sum_pairs(const Stage& stage, const PairSum& sum) {
  if (stage.rows.count == 0) return;
  constexpr int kThreads = 128;
  const int64_t eights = static_cast<int64_t>(stage.rows.count) * (sum.dim / 8);
  launch(stage, "sum_rows", sum_rows, dim3(static_cast<unsigned>((eights + kThreads - 1) / kThreads)), dim3(kThreads),
         0, sum, stage.rows.count);
}

}  // namespace onelane::cuda
