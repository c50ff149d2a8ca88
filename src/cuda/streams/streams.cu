// Embed, expand and tap: each value of the stream is read and written once, eight dims a thread.
#include "base/check.h"
#include "cuda/stages.h"
#include "cuda/streams/collapse.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 64;  // few, so that a step of few rows spreads over the processors

__global__ __launch_bounds__(kThreads) void embed_rows(const int32_t* tokens, const uint4* table, int eights,
                                                       uint4* stream) {
  ptx::let_next_kernel_start();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  const int64_t row = blockIdx.y;
  uint4 v = {};
  if (i < eights) v = __ldcg(table + static_cast<int64_t>(__ldcg(tokens + row)) * eights + i);
  ptx::wait_for_previous_kernel();
  if (i >= eights) return;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) stream[(row * kStreams + j) * eights + i] = v;
}

__global__ __launch_bounds__(kThreads) void expand_rows(bf16* streams, int dim, const bf16* ys, const float4* posts,
                                                        const float4* combs) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  const int64_t row = blockIdx.y;
  if (i >= dim / 8) return;
  bf16* stream = streams + row * kStreams * dim;
  const EightDims dims = load_eight(stream, dim, i);
  const uint4 y = __ldcg(reinterpret_cast<const uint4*>(ys + row * dim) + i);
  const float4 post_row = posts[row];
  const float post[kStreams] = {post_row.x, post_row.y, post_row.z, post_row.w};
  float comb[kStreams][kStreams];  // a copy's column in a row
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const float4 v = combs[row * kStreams + j];
    comb[0][j] = v.x, comb[1][j] = v.y, comb[2][j] = v.z, comb[3][j] = v.w;
  }
  uint32_t out[kStreams][4];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    uint32_t x[kStreams];
    words_of(dims, word, x);
#pragma unroll
    for (int k = 0; k < kStreams; ++k) out[k][word] = expand_words(x, word_of(y, word), post[k], comb[k]);
  }
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    reinterpret_cast<uint4*>(stream + static_cast<int64_t>(k) * dim)[i] =
        make_uint4(out[k][0], out[k][1], out[k][2], out[k][3]);
  }
}

__global__ __launch_bounds__(kThreads) void tap_rows(const bf16* streams, int dim, bf16* taps, int tap_width) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  const int64_t row = blockIdx.y;
  if (i >= dim / 8) return;
  const float mean[kStreams] = {0.25f, 0.25f, 0.25f, 0.25f};
  reinterpret_cast<uint4*>(taps + row * tap_width)[i] =
      collapse_eight(load_eight(streams + row * kStreams * dim, dim, i), mean);
}

dim3 grid_of(int rows, int dim) {
  ONELANE_CHECK(dim % 8 == 0, "a model's width is whole words");
  return dim3((dim / 8 + kThreads - 1) / kThreads, rows);
}

}  // namespace

void embed(const Stage& stage, const EmbedArgs& args) {
  launch(stage, "embed_rows", embed_rows, grid_of(stage.rows.count, args.dim), dim3(kThreads), 0, stage.rows.token,
         reinterpret_cast<const uint4*>(args.table), args.dim / 8, reinterpret_cast<uint4*>(args.stream));
}

void expand_streams(const Stage& stage, const ExpandArgs& args) {
  launch(stage, "expand_rows", expand_rows, grid_of(stage.rows.count, args.dim), dim3(kThreads), 0, args.stream,
         args.dim, args.y, reinterpret_cast<const float4*>(args.post), reinterpret_cast<const float4*>(args.comb));
}

void tap(const Stage& stage, const TapArgs& args) {
  ONELANE_CHECK(args.tap_width % 8 == 0 && args.column % 8 == 0, "taps are whole words");
  launch(stage, "tap_rows", tap_rows, grid_of(stage.rows.count, args.dim), dim3(kThreads), 0, args.stream, args.dim,
         args.taps + args.column, args.tap_width);
}

}  // namespace onelane::cuda
