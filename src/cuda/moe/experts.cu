// The stage `experts` (see experts.h): which way it goes, and the sum at its end.
#include "base/check.h"
#include "cuda/moe/experts.h"
#include "cuda/numerics.h"

namespace onelane::cuda {
namespace moe {
namespace {

// y[row] = round(sum of its pairs' y), four neighbouring values a thread.
__global__ void sum_pairs(const bf16* pairs, int rows, int topk, int dim, bf16* y) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int quarter = dim / 4;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<int64_t>(rows) * quarter) return;
  const int64_t row = i / quarter, column = i % quarter;
  const uint2* from = reinterpret_cast<const uint2*>(pairs);
  float sum[4] = {};
  for (int slot = 0; slot <= topk; ++slot) {
    const int64_t pair = slot < topk ? row * topk + slot : static_cast<int64_t>(rows) * topk + row;
    const uint2 four = from[pair * quarter + column];
    const float2 low = unpack_bf16(four.x), high = unpack_bf16(four.y);
    sum[0] += low.x;
    sum[1] += low.y;
    sum[2] += high.x;
    sum[3] += high.y;
  }
  reinterpret_cast<uint2*>(y)[i] = make_uint2(ptx::pack_bf16(sum[0], sum[1]), ptx::pack_bf16(sum[2], sum[3]));
}

}  // namespace

}  // namespace moe

void experts(const Stage& stage, const ExpertsArgs& args, const ExpertPointers* device_experts) {
  const moe::ExpertsCall call{&stage, &args, device_experts};
  if (call.rows() == 0) return;
  if (args.router != nullptr) route(stage, *args.router);
  ONELANE_CHECK(args.dim % 32 == 0 && args.inter % 32 == 0, "experts are whole blocks of 32 wide");
  const auto take_pairs = [&] { return stage.workspace->take<bf16>(static_cast<size_t>(call.pairs()) * args.dim); };
  bf16* pairs = nullptr;
  if (!moe::can_stream(args)) {
    moe::plain_experts(call, pairs = take_pairs());
  } else if (moe::many_rows(call)) {
    pairs = moe::many_experts(call);
  } else {
    moe::stream_experts(call, pairs = take_pairs());
  }
  constexpr int kThreads = 128;
  const int64_t count = static_cast<int64_t>(call.rows()) * (args.dim / 4);
  launch(stage, "sum_pairs", moe::sum_pairs, dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)),
         dim3(kThreads), 0, pairs, call.rows(), args.topk, args.dim, args.y);
}

}  // namespace onelane::cuda
