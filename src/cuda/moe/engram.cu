// engram: the rows' table entries to bf16, their product with wkv, then the gated write, a block a copy of a row.
#include "base/check.h"
#include "cuda/linear/multiply.h"
#include "cuda/stages.h"
#include "cuda/streams/collapse.h"

namespace onelane::cuda {
namespace {

constexpr int kTableBlock = 32;
constexpr int kLookUpThreads = 128;
constexpr int kWriteThreads = 256;

// values [rows, columns * width], 16 a thread. Grid: over the 16s of a row, rows.
__global__ __launch_bounds__(kLookUpThreads) void look_up(const int32_t* table_rows, int columns, const uint8_t* table,
                                                          const uint8_t* table_scale, int width, bf16* values) {
  ptx::let_next_kernel_start();
  const int i = (blockIdx.x * kLookUpThreads + threadIdx.x) * 16;
  const int64_t row = blockIdx.y;
  const bool exists = i < columns * width;
  uint4 codes = {};
  uint32_t scale_code = 0;
  if (exists) {  // weights, and numbers that the host wrote before the step: all of it before the wait
    const int64_t at = int64_t{__ldcg(table_rows + row * columns + i / width)} * width + i % width;
    codes = ptx::load_stream(reinterpret_cast<const uint4*>(table + at));
    scale_code = ptx::load_byte(table_scale + at / kTableBlock);
  }
  ptx::wait_for_previous_kernel();
  if (!exists) return;
  const float scale = e8m0_to_float(scale_code);
  uint32_t out[8];
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) {
    const uint32_t two = word_of(codes, pair / 2) >> (pair % 2 * 16);
    out[pair] = ptx::pack_bf16(e4m3_to_float(two & 0xff) * scale, e4m3_to_float(two >> 8 & 0xff) * scale);
  }
  auto* to = reinterpret_cast<uint4*>(values + row * columns * width + i);
  to[0] = make_uint4(out[0], out[1], out[2], out[3]);
  to[1] = make_uint4(out[4], out[5], out[6], out[7]);
}

// The sigmoid of the signed root of the normalised product; a product of exactly 0 gives 0.5.
__device__ __forceinline__ float gate_of(float dot) {
  if (dot == 0) return 0.5f;
  const float magnitude = fabsf(dot);
  const float root = copysignf(sqrtf(magnitude < 1e-6f ? 1e-6f : magnitude), dot);  // a NaN stays one
  return 1.0f / (1.0f + expf(-root));
}

// projected [rows, 5, dim]: 4 keys, the value. Grid: copies, rows.
__global__ __launch_bounds__(kWriteThreads) void write_gated(bf16* stream, int dim, const bf16* projected,
                                                             const bf16* q_weight, const bf16* k_weight, float eps) {
  __shared__ float partial[32];
  ptx::let_next_kernel_start();
  const int copy = blockIdx.x;
  const int64_t row = blockIdx.y;
  auto* x = reinterpret_cast<uint4*>(stream + (row * kStreams + copy) * dim);
  const auto* key = reinterpret_cast<const uint4*>(projected + (row * (kStreams + 1) + copy) * dim);
  const auto* value = reinterpret_cast<const uint4*>(projected + (row * (kStreams + 1) + kStreams) * dim);
  const auto* q_weights = reinterpret_cast<const uint4*>(q_weight + static_cast<int64_t>(copy) * dim);
  const auto* k_weights = reinterpret_cast<const uint4*>(k_weight + static_cast<int64_t>(copy) * dim);
  for (int i = threadIdx.x; i < dim / 8; i += kWriteThreads) {
    ptx::prefetch(q_weights + i);
    ptx::prefetch(k_weights + i);
  }
  ptx::wait_for_previous_kernel();
  float x_squares = 0, key_squares = 0, product = 0;
  for (int i = threadIdx.x; i < dim / 8; i += kWriteThreads) {
    const uint4 x_words = x[i], key_words = key[i], q_words = q_weights[i], k_words = k_weights[i];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const float2 a = unpack_bf16(word_of(x_words, word)), b = unpack_bf16(word_of(key_words, word));
      const float2 q = unpack_bf16(word_of(q_words, word)), k = unpack_bf16(word_of(k_words, word));
      x_squares += a.x * a.x;
      x_squares += a.y * a.y;
      key_squares += b.x * b.x;
      key_squares += b.y * b.y;
      product += a.x * q.x * (k.x * b.x);
      product += a.y * q.y * (k.y * b.y);
    }
  }
  x_squares = block_sum(x_squares, partial);
  key_squares = block_sum(key_squares, partial);
  product = block_sum(product, partial);
  const float width = static_cast<float>(dim);
  const float norms = sqrtf(x_squares / width + eps) * sqrtf(key_squares / width + eps);
  const float gate = gate_of(product / norms / sqrtf(width));
  for (int i = threadIdx.x; i < dim / 8; i += kWriteThreads) {
    const uint4 x_words = x[i], value_words = value[i];
    uint32_t out[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const float2 a = unpack_bf16(word_of(x_words, word)), v = unpack_bf16(word_of(value_words, word));
      // Product and sum are rounded to float one after the other, as the reference's.
      out[word] = ptx::pack_bf16(__fadd_rn(a.x, __fmul_rn(gate, v.x)), __fadd_rn(a.y, __fmul_rn(gate, v.y)));
    }
    x[i] = make_uint4(out[0], out[1], out[2], out[3]);
  }
}

}  // namespace

void engram(const Stage& stage, const EngramArgs& args) {
  ONELANE_CHECK(args.width % kTableBlock == 0 && args.dim % 8 == 0, "table rows are whole blocks");
  const int rows = stage.rows.count;
  const int wide = args.columns * args.width;
  bf16* values = stage.workspace->take<bf16>(static_cast<size_t>(rows) * wide);
  bf16* projected = stage.workspace->take<bf16>(static_cast<size_t>(rows) * (kStreams + 1) * args.dim);
  const int across = (wide / 16 + kLookUpThreads - 1) / kLookUpThreads;
  launch(stage, "look_up", look_up, dim3(across, rows), dim3(kLookUpThreads), 0, args.table_rows, args.columns,
         args.table, args.table_scale, args.width, values);
  multiply(stage, {{.weights = &args.wkv,
                    .x = values,
                    .x_stride = wide,
                    .rows = rows,
                    .rounded = projected,
                    .y_stride = (kStreams + 1) * args.dim}});
  launch(stage, "write_gated", write_gated, dim3(kStreams, rows), dim3(kWriteThreads), 0, args.stream, args.dim,
         projected, args.q_weight, args.k_weight, args.norm_eps);
}

}  // namespace onelane::cuda
