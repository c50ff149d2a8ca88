// Logits, and what the drafter reads and adds: head, main_input, markov.
#include "base/check.h"
#include "cuda/linear/multiply.h"
#include "cuda/linear/rms_norm.h"
#include "cuda/stages.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 512;

// V4's learned merge of the copies (reference/mix.cc mix_products, head_mix), in every thread.
__device__ void head_mix(const bf16* stream, int dim, const MixWeights& mix, float norm_eps, float mix_eps,
                         float* partial, float (&w)[kStreams]) {
  const int width = kStreams * dim;
  float squares = 0;
  float dot[kStreams] = {};
  for (int i = threadIdx.x; i < width / 2; i += kThreads) {
    const float2 x = unpack_bf16(reinterpret_cast<const uint32_t*>(stream)[i]);
    squares = fmaf(x.x, x.x, fmaf(x.y, x.y, squares));
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const float2 f = reinterpret_cast<const float2*>(mix.fn + static_cast<int64_t>(j) * width)[i];
      dot[j] = fmaf(f.x, x.x, fmaf(f.y, x.y, dot[j]));
    }
  }
  const float scale = rms_scale(block_sum(squares, partial), width, norm_eps);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const float m = block_sum(dot[j], partial) * scale;
    w[j] = 1.0f / (1.0f + expf(-fmaf(m, mix.scale[0], mix.base[j]))) + mix_eps;
  }
}

// A block for a chosen row: its collapsed copies, rounded, to `hidden` (unless null), and normed.
__global__ void __launch_bounds__(kThreads) collapse_and_norm(const HeadArgs args, const int32_t* rows, bf16* out) {
  ONELANE_DYNAMIC_SHARED(uint32_t, collapsed);  // [dim / 2]
  __shared__ float partial[32];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int64_t row = rows[blockIdx.x];
  const bf16* stream = args.stream + row * kStreams * args.dim;
  float w[kStreams];
  if (args.collapse_with != nullptr) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) w[j] = args.collapse_with[row * kStreams + j];
  } else {
    head_mix(stream, args.dim, args.mix, args.norm_eps, args.mix_eps, partial, w);
  }
  const int64_t at = static_cast<int64_t>(blockIdx.x) * args.dim / 2;
  float squares = 0;
  for (int i = threadIdx.x; i < args.dim / 2; i += kThreads) {
    const float2 h = collapse_two(stream, args.dim, w, i);
    squares = fmaf(h.x, h.x, fmaf(h.y, h.y, squares));
    collapsed[i] = ptx::pack_bf16(h.x, h.y);
    if (args.hidden != nullptr) reinterpret_cast<uint32_t*>(args.hidden)[at + i] = collapsed[i];
  }
  const float scale = rms_scale(block_sum(squares, partial), args.dim, args.norm_eps);
  for (int i = threadIdx.x; i < args.dim / 2; i += kThreads) {
    const float2 h = unpack_bf16(collapsed[i]);
    reinterpret_cast<uint32_t*>(out)[at + i] =
        ptx::pack_bf16(normed(h.x, scale, args.norm[2 * i]), normed(h.y, scale, args.norm[2 * i + 1]));
  }
}

// A block for a row.
__global__ void __launch_bounds__(kThreads)
    norm_row(const bf16* x, const bf16* weight, int width, float eps, bf16* out) {
  __shared__ float partial[32];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * width;
  rms_norm_row(x + at, weight, width, eps, out + at, partial);
}

// proj . [first; second], one block.
__global__ void __launch_bounds__(kThreads) confidence_dot(const bf16* proj, const bf16* first, int first_width,
                                                           const bf16* second, int second_width, float* out) {
  __shared__ float partial[32];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  float sum = 0;
  for (int i = threadIdx.x; i < first_width + second_width; i += kThreads) {
    const bf16 x = i < first_width ? first[i] : second[i - first_width];
    sum = fmaf(bf16_to_float(proj[i]), bf16_to_float(x), sum);
  }
  sum = block_sum(sum, partial);
  if (threadIdx.x == 0) *out = sum;
}

// The drafter's embedding of a token that only the device knows.
__global__ void __launch_bounds__(kThreads)
    look_up_previous(const bf16* w1, int rank, const int32_t* previous, bf16* embedded) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int token = *previous;
  const bf16* row = w1 + static_cast<int64_t>(token) * rank;
  for (int i = threadIdx.x; i < rank; i += kThreads) embedded[i] = token < 0 ? 0 : row[i];
}

}  // namespace

void head(const Stage& stage, const HeadArgs& args, const int32_t* device_rows) {
  if (args.count == 0) return;
  ONELANE_CHECK(args.dim % 2 == 0, "the stream is read in pairs");
  bf16* x = stage.workspace->take<bf16>(static_cast<size_t>(args.count) * args.dim);
  launch(stage, "collapse_and_norm", collapse_and_norm, dim3(args.count), dim3(kThreads), sizeof(bf16) * args.dim, args,
         device_rows, x);
  multiply(stage, {{.weights = &args.head,
                    .x = x,
                    .x_stride = args.dim,
                    .rows = args.count,
                    .exact = args.logits,
                    .y_stride = args.head.out}});
}

void main_input(const Stage& stage, const MainInputArgs& args) {
  const int rows = stage.rows.count, dim = args.main_proj.out;
  if (rows == 0) return;
  bf16* projected = stage.workspace->take<bf16>(static_cast<size_t>(rows) * dim);
  multiply(stage, {{.weights = &args.main_proj,
                    .x = args.taps,
                    .x_stride = args.main_proj.in,
                    .rows = rows,
                    .rounded = projected,
                    .y_stride = dim}});
  launch(stage, "norm_row", norm_row, dim3(rows), dim3(kThreads), 0, projected, args.norm, dim, args.norm_eps,
         args.main_x);
}

void markov(const Stage& stage, const MarkovArgs& args) {
  const int32_t* previous = args.prev != nullptr ? args.prev : stage.rows.token + args.row;
  bf16* embedded = stage.workspace->take<bf16>(args.rank);
  launch(stage, "look_up_previous", look_up_previous, dim3(1), dim3(kThreads), 0, args.w1, args.rank, previous,
         embedded);
  multiply(stage, {{.weights = &args.w2,
                    .x = embedded,
                    .x_stride = args.rank,
                    .rows = 1,
                    .exact = args.logits,
                    .y_stride = args.w2.out,
                    .add = true}});
  if (args.confidence_out == nullptr) return;
  ONELANE_CHECK(args.confidence.in == args.dim + args.rank, "the confidence head reads hidden and embedding");
  launch(stage, "confidence_dot", confidence_dot, dim3(1), dim3(kThreads), 0,
         reinterpret_cast<const bf16*>(args.confidence.data), args.hidden, args.dim, embedded, args.rank,
         args.confidence_out);
}

}  // namespace onelane::cuda
