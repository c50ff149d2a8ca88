// Queries and window records: the products, and what is done to their rows between and after them.
#include <vector>

#include "base/check.h"
#include "cuda/linear/multiply.h"
#include "cuda/linear/rms_norm.h"
#include "cuda/stages.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLaneValues = kHeadDim / 32;              // lane l of a warp has dims [16 l, 16 l + 16) of a head
constexpr int kRopeLane = 32 - kRopeDim / kLaneValues;  // the first with dims that are rotated

__device__ __forceinline__ void load_lane(const bf16* head, int lane, float (&v)[kLaneValues]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 eight = reinterpret_cast<const uint4*>(head)[2 * lane + i];
    const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 pair = unpack_bf16(words[j]);
      v[8 * i + 2 * j] = pair.x;
      v[8 * i + 2 * j + 1] = pair.y;
    }
  }
}

__device__ __forceinline__ float sum_of_squares(const float (&v)[kLaneValues]) {
  float squares = 0;
#pragma unroll
  for (const float value : v) squares = fmaf(value, value, squares);
  return warp_sum(squares);
}

// Rotates a lane's dims, rounded before and after, if they are among the last 64. `angles`: a row's 32 cosines and
// sines.
__device__ __forceinline__ void rope_lane(const float* angles, int lane, float (&v)[kLaneValues]) {
  if (lane < kRopeLane) return;
#pragma unroll
  for (int i = 0; i < kLaneValues; i += 2) {
    const int pair = (lane - kRopeLane) * (kLaneValues / 2) + i / 2;
    const float c = angles[pair], s = angles[kRopeDim / 2 + pair];
    const float even = v[i], odd = v[i + 1];
    v[i] = round_bf16(__fsub_rn(__fmul_rn(even, c), __fmul_rn(odd, s)));
    v[i + 1] = round_bf16(__fadd_rn(__fmul_rn(even, s), __fmul_rn(odd, c)));
  }
}

struct NormArgs {
  bf16* qr;  // [rows, q_lora], in place; null: records alone
  const bf16* q_norm;
  int q_lora;
  const bf16* kv;  // [rows, 512]
  const bf16* kv_norm;
  const float* angles;
  float eps;
  uint8_t* data;  // of the records
  uint8_t* scales;
};

// Block (row, 0) makes a row's record, block (row, 1) norms its low-rank query.
template <RecordFormat kFormat>
__global__ void __launch_bounds__(kThreads) norm_rows(const NormArgs args) {
  __shared__ float partial[32];
  const bf16* norm = blockIdx.y == 1 ? args.q_norm : args.kv_norm;
  const int line = threadIdx.x * 64;
  ptx::let_next_kernel_start();
  if (line < (blockIdx.y == 1 ? args.q_lora : kHeadDim)) ptx::prefetch(norm + line);
  ptx::wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  if (blockIdx.y == 1) {
    bf16* qr = args.qr + row * args.q_lora;
    rms_norm_row(qr, args.q_norm, args.q_lora, args.eps, qr, partial);
    return;
  }
  if (threadIdx.x >= 32) return;
  const int lane = threadIdx.x;
  float v[kLaneValues];
  uint16_t weights[kLaneValues];
  load_lane(args.kv + row * kHeadDim, lane, v);
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) weights[i] = args.kv_norm[lane * kLaneValues + i];
  const float scale = rms_scale(sum_of_squares(v), kHeadDim, args.eps);
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) v[i] = round_bf16(normed(v[i], scale, weights[i]));
  rope_lane(args.angles + row * kRopeDim, lane, v);
  encode_record<kFormat>(v, lane, args.data + row * record_data_bytes(kFormat),
                         args.scales + row * record_scale_bytes(kFormat));
}

// A warp for a head of a row, in place.
__global__ void __launch_bounds__(kThreads)
    finish_queries(bf16* q, int64_t warps, int heads, bool head_norm, float eps, const float* angles) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (i >= warps) return;
  // Without a norm most lanes have nothing to do.
  if (!head_norm && lane < kRopeLane) return;
  bf16* head = q + i * kHeadDim;
  float v[kLaneValues];
  load_lane(head, lane, v);
  if (head_norm) {
    const float scale = rms_scale(sum_of_squares(v), kHeadDim, eps);
#pragma unroll
    for (float& value : v) value = round_bf16(__fmul_rn(value, scale));
  }
  rope_lane(angles + i / heads * kRopeDim, lane, v);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* w = v + 8 * half;
    reinterpret_cast<uint4*>(head)[2 * lane + half] = make_uint4(
        ptx::pack_bf16(w[0], w[1]), ptx::pack_bf16(w[2], w[3]), ptx::pack_bf16(w[4], w[5]), ptx::pack_bf16(w[6], w[7]));
  }
}

void launch_norms(const Stage& stage, RecordFormat format, int rows, const NormArgs& args) {
  const dim3 grid(rows, args.qr != nullptr ? 2 : 1);
  if (format == RecordFormat::kV4Fp8) {
    launch(stage, "norm_rows", norm_rows<RecordFormat::kV4Fp8>, grid, dim3(kThreads), 0, args);
  } else {
    ONELANE_CHECK(format == RecordFormat::kV41Fp8, "window records are fp8");
    launch(stage, "norm_rows", norm_rows<RecordFormat::kV41Fp8>, grid, dim3(kThreads), 0, args);
  }
}

Product product_of(const Matrix& w, const bf16* x, int rows, bf16* rounded, float* exact = nullptr) {
  return {.weights = &w, .x = x, .x_stride = w.in, .rows = rows, .rounded = rounded, .exact = exact, .y_stride = w.out};
}

void make_queries(const Stage& stage, const QkvArgs& args, const float* angles) {
  ONELANE_CHECK(args.wq_b.out == args.heads * kHeadDim, "wq_b must give 512 values per head");
  const int rows = stage.rows.count;
  // Blocks of this product stay until it ends. Some multiprocessors are left to the kernels between the indexer's
  // queries and its picks, which are short and wait for each other. Those of one row need next to none.
  Stage shared = stage;
  if (rows > 1 && args.of_qr.weights && stage.reached != nullptr) shared.processors -= stage.processors / 8;
  multiply(shared, {product_of(args.wq_b, args.qr, rows, args.q)});
  const int64_t warps = static_cast<int64_t>(rows) * args.heads;
  launch(stage, "finish_queries", finish_queries, dim3(static_cast<unsigned>((32 * warps + kThreads - 1) / kThreads)),
         dim3(kThreads), 0, args.q, warps, args.heads, args.q_head_norm, args.norm_eps, angles);
}

}  // namespace

void project_qkv(const Stage& stage, const Stage& beside, const QkvArgs& args) {
  const int rows = stage.rows.count;
  if (rows == 0) return;
  const float* angles = stage.angles(*args.rope);
  std::vector<Product> sides, of_x;
  for (const SideProduct& side : args.of_x) {
    if (side.weights) sides.push_back(product_of(side.weights, args.x, rows, side.rounded, side.exact));
  }
  const bool queries = static_cast<bool>(args.wq_a), records = static_cast<bool>(args.wkv);
  bf16* kv = stage.workspace->take<bf16>(records ? static_cast<size_t>(rows) * kHeadDim : 0);
  if (queries) of_x.push_back(product_of(args.wq_a, args.x, rows, args.qr));
  if (records) of_x.push_back(product_of(args.wkv, args.x, rows, kv));
  multiply_all(stage, of_x);
  ONELANE_CHECK(records || !queries, "queries come with records");
  if (records) {
    launch_norms(stage, args.kv.format, rows,
                 {.qr = queries ? args.qr : nullptr,
                  .q_norm = args.q_norm,
                  .q_lora = args.wq_a.out,
                  .kv = kv,
                  .kv_norm = args.kv_norm,
                  .angles = angles,
                  .eps = args.norm_eps,
                  .data = args.kv.data(0),
                  .scales = args.kv.scales(0)});
  }
  // Ahead of the queries: the indexer has a way to go with them, and attention waits for both.
  if (args.of_qr.weights) {
    multiply(stage, {product_of(args.of_qr.weights, args.qr, rows, args.of_qr.rounded, args.of_qr.exact)});
  }
  stage.reach();
  if (queries) make_queries(stage, args, angles);
  // Last, so that they take what room the others leave: nobody needs them soon.
  multiply_all(beside, sides);
  beside.reach();
}

}  // namespace onelane::cuda
