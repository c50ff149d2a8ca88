// Experts of any matrices: what no published checkpoint has, such as activations that stay bf16. A warp takes one value
// of one pair, and quantises the row again for each: slow, and right.
#include "base/check.h"
#include "cuda/linear/decode.h"
#include "cuda/moe/experts.h"
#include "cuda/numerics.h"

namespace onelane::cuda::moe {
namespace {

constexpr int kThreads = 256;

// A matrix without its addresses.
struct Form {
  Matrix::Kind kind;
  int32_t in, block, act_block;
};

__device__ __forceinline__ float weight_at(const Form& form, const std::byte* data, const uint8_t* scale, int row,
                                           int k) {
  const int64_t at = static_cast<int64_t>(row) * form.in + k;
  const float value = code_value(form.kind, data, at);
  if (form.kind == Matrix::Kind::kBf16) return value;
  if (form.kind == Matrix::Kind::kFp4) return value * e8m0_to_float(scale[at / 32]);
  const int64_t tiles = (form.in + form.block - 1) / form.block;
  return value * e8m0_to_float(scale[row / form.block * tiles + k / form.block]);
}

// Of a row of weights and a row x of activations, in all lanes of the warp. kCount values a lane are an activation
// block.
template <int kCount>
__device__ __forceinline__ float dot_blocks(const Form& form, const std::byte* data, const uint8_t* scale, int row,
                                            const bf16* x) {
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int base = 0; base < form.in; base += 32 * kCount) {
    float v[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = bf16_to_float(x[base + 32 * i + lane]);
    if (form.act_block > 0) {
      const uint32_t code = fp8_scale(block_amax<32>(v));
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] = e4m3_to_float(fp8_code(v[i], code)) * e8m0_to_float(code);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum = fmaf(v[i], weight_at(form, data, scale, row, base + 32 * i + lane), sum);
  }
  return warp_sum(sum);
}
__device__ __forceinline__ float dot(const Form& form, const std::byte* data, const uint8_t* scale, int row,
                                     const bf16* x) {
  return form.act_block == 128 ? dot_blocks<4>(form, data, scale, row, x) : dot_blocks<1>(form, data, scale, row, x);
}

struct PlainArgs {
  const ExpertPointers* experts;
  ExpertPointers shared_expert;
  Form w1, w2, w3, shared_w1, shared_w2, shared_w3;
  const int32_t* ids;
  const float* weights;
  int pairs, routed_pairs, topk, dim, inter;
  float limit;
  const bf16* x;  // [rows, dim]
  bf16* hidden;   // [pairs, inter]
  bf16* y;        // [pairs, dim]
};

__global__ void __launch_bounds__(kThreads) plain_up(const __grid_constant__ PlainArgs args) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int64_t item = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int64_t pair = item / args.inter;
  const int row = static_cast<int>(item % args.inter);
  if (pair >= args.pairs) return;
  const bool routed = pair < args.routed_pairs;
  const ExpertPointers expert = routed ? args.experts[args.ids[pair]] : args.shared_expert;
  const bf16* x = args.x + (routed ? pair / args.topk : pair - args.routed_pairs) * args.dim;
  const float gate = dot(routed ? args.w1 : args.shared_w1, expert.w1, expert.w1_scale, row, x);
  const float up = dot(routed ? args.w3 : args.shared_w3, expert.w3, expert.w3_scale, row, x);
  if (threadIdx.x % 32 == 0) {
    args.hidden[item] = float_to_bf16(activation(gate, up, routed ? args.weights[pair] : 1.0f, args.limit));
  }
}

__global__ void __launch_bounds__(kThreads) plain_down(const __grid_constant__ PlainArgs args) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int64_t item = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int64_t pair = item / args.dim;
  const int row = static_cast<int>(item % args.dim);
  if (pair >= args.pairs) return;
  const bool routed = pair < args.routed_pairs;
  const ExpertPointers expert = routed ? args.experts[args.ids[pair]] : args.shared_expert;
  const float value =
      dot(routed ? args.w2 : args.shared_w2, expert.w2, expert.w2_scale, row, args.hidden + pair * args.inter);
  if (threadIdx.x % 32 == 0) args.y[item] = float_to_bf16(value);
}

Form form_of(const Matrix& w) {
  ONELANE_CHECK(w.act_block == 0 || ((w.act_block == 32 || w.act_block == 128) && w.in % w.act_block == 0),
                "activations are quantised in whole blocks of 32 or 128");
  return {w.kind, w.in, w.block, w.act_block};
}

}  // namespace

void plain_experts(const ExpertsCall& call, bf16* y) {
  const ExpertsArgs& a = *call.args;
  const ExpertWeights& routed = a.experts[0];
  PlainArgs args = {};
  args.experts = call.experts;
  args.shared_expert = pointers_of(a.shared);
  args.w1 = form_of(routed.w1), args.w2 = form_of(routed.w2), args.w3 = form_of(routed.w3);
  args.shared_w1 = form_of(a.shared.w1), args.shared_w2 = form_of(a.shared.w2), args.shared_w3 = form_of(a.shared.w3);
  args.ids = a.ids;
  args.weights = a.weights;
  args.pairs = call.pairs();
  args.routed_pairs = call.routed_pairs();
  args.topk = a.topk;
  args.dim = a.dim;
  args.inter = a.inter;
  args.limit = a.limit;
  args.x = a.x;
  args.hidden = call.stage->workspace->take<bf16>(static_cast<size_t>(call.pairs()) * a.inter);
  args.y = y;
  const auto blocks = [&](int width) {
    return dim3(static_cast<unsigned>((static_cast<int64_t>(call.pairs()) * width * 32 + kThreads - 1) / kThreads));
  };
  launch(*call.stage, "plain_up", plain_up, blocks(a.inter), dim3(kThreads), 0, args);
  launch(*call.stage, "plain_down", plain_down, blocks(a.dim), dim3(kThreads), 0, args);
}

}  // namespace onelane::cuda::moe
