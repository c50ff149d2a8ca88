// The oracle against values written down by hand, and against itself where two ways must agree.
#include "kernels/attention/reference.h"

#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "kernels/attention/plan.h"
#include "kernels/attention/random_call.h"
#include "numerics/formats.h"

namespace onelane::attention {
namespace {

using namespace testing;

constexpr int kDim = ONELANE_ATTENTION_DIM;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

onelane_attention_shape shape_of(int rows, int heads, int window, int extra, onelane_kv_format format) {
  onelane_attention_shape shape{};
  shape.rows = rows;
  shape.heads = heads;
  shape.window_width = window;
  shape.extra_width = extra;
  shape.window_format = shape.extra_format = format;
  return shape;
}

// One row of 8 heads with a window of two bf16 records: the first all `a` in dim 0, the second all `b` in dim 511.
struct TwoRecords {
  std::vector<uint16_t> q = std::vector<uint16_t>(8 * kDim);
  alignas(16) uint16_t pages[2 * kDim] = {};
  int32_t indices[2] = {0, 1};
  onelane_attention_shape shape = shape_of(1, 8, 2, 0, ONELANE_KV_BF16);
  onelane_attention_args args{};

  TwoRecords(float a, float b) {
    pages[0] = float_to_bf16(a);
    pages[2 * kDim - 1] = float_to_bf16(b);
    args.q = q.data();
    args.window = {.pages = pages,
                   .page_bytes = 2 * 1024,
                   .page_records = 2,
                   .pages_count = 1,
                   .indices = indices,
                   .index_stride = 2,
                   .lengths = nullptr};
    args.scale = 1;
  }
};

TEST(AttentionReference, WeighsTwoRecordsAsTheFormulaSays) {
  TwoRecords call(4, 2);
  call.q[0] = float_to_bf16(0.5f);          // head 0: scores 2 and 0
  call.q[2 * kDim - 1] = float_to_bf16(3);  // head 1: scores 0 and 6
  const double sink_log = std::log(3.0);
  std::vector<float> sink(8, -kInfinity);
  sink[2] = static_cast<float>(sink_log);  // head 2: scores 0 and 0, and 3 beside them
  sink[3] = kInfinity;
  call.args.sink = sink.data();
  const ReferenceResult result = reference_rows(call.shape, call.args);
  const double e2 = std::exp(2.0), e6 = std::exp(6.0);
  EXPECT_NEAR(result.out[0], 4 * e2 / (e2 + 1), 1e-14);
  EXPECT_NEAR(result.out[kDim - 1], 2 / (e2 + 1), 1e-14);
  EXPECT_NEAR(result.lse[0], std::log(e2 + 1), 1e-14);
  EXPECT_NEAR(result.out[kDim], 4 / (e6 + 1), 1e-14);
  EXPECT_NEAR(result.lse[1], std::log(e6 + 1), 1e-14);
  EXPECT_NEAR(result.out[2 * kDim], 4 / 5.0, 1e-6);
  EXPECT_NEAR(result.lse[2], std::log(2.0), 1e-14);  // without the sink
  EXPECT_EQ(result.out[3 * kDim], 0);
  EXPECT_NEAR(result.lse[3], std::log(2.0), 1e-14);
}

TEST(AttentionReference, TurnsBackTheLast64Dims) {
  TwoRecords call(0, 1);
  call.indices[0] = -1;  // one record: the output is it
  const int32_t position = 1;
  std::vector<float> angles(2 * ONELANE_ATTENTION_ROPE_DIM);
  angles[64 + 31] = 0.6f;  // cosine of the last pair at position 1
  angles[64 + 63] = 0.8f;  // its sine
  call.args.positions = &position;
  call.args.angles = angles.data();
  call.args.angles_count = 2;
  ReferenceResult result = reference_rows(call.shape, call.args);
  EXPECT_NEAR(result.out[kDim - 2], 0.8, 1e-7);  // x cos + y sin
  EXPECT_NEAR(result.out[kDim - 1], 0.6, 1e-7);  // y cos - x sin
  const int32_t outside = std::numeric_limits<int32_t>::max();
  call.args.positions = &outside;  // clamped to the last
  EXPECT_EQ(reference_rows(call.shape, call.args).out, result.out);
}

TEST(AttentionReference, ARowWithoutEntriesIsZero) {
  TwoRecords call(4, 2);
  for (const int32_t nothing : {-1, 2, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    call.indices[0] = call.indices[1] = nothing;
    const ReferenceResult result = reference_rows(call.shape, call.args);
    for (const double value : result.out) ASSERT_EQ(value, 0);
    for (const double lse : result.lse) ASSERT_EQ(lse, kInfinity);
  }
  call.indices[0] = 0;
  const int32_t length = 0;
  call.args.window.lengths = &length;
  EXPECT_EQ(reference_rows(call.shape, call.args).lse[0], kInfinity);
}

TEST(AttentionReference, HugeFiniteSinksDoNotOverflow) {
  TwoRecords call(4, 2);
  std::vector<float> sink(8, 3e38f);
  sink[1] = -3e38f;
  call.args.sink = sink.data();
  const ReferenceResult result = reference_rows(call.shape, call.args);
  EXPECT_EQ(result.out[0], 0);
  EXPECT_NEAR(result.out[kDim], 2, 1e-14);
}

// The entries of a row, cut anywhere into a window and an extra list, give the same.
TEST(AttentionReference, TwoListsAreOneListCutInTwo) {
  for (const auto format : {ONELANE_KV_BF16, ONELANE_KV_V4, ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP4}) {
    CallOptions options;
    options.shape = shape_of(3, 8, 60, 0, format);
    options.window.lengths = false;
    RandomCall call(options);
    const ReferenceResult whole = reference_rows(call.shape(), call.args());
    auto shape = call.shape();
    auto args = call.args();
    shape.window_width = 17;
    shape.extra_width = 43;
    args.extra = args.window;
    args.extra.indices += 17;
    const ReferenceResult cut = reference_rows(shape, args);
    EXPECT_EQ(cut.out, whole.out);
    EXPECT_EQ(cut.lse, whole.lse);
  }
}

TEST(AttentionReference, NothingUnnamedIsReadAndNothingIsNan) {
  for (const int records : {1, 2, 53, 64, 256}) {
    CallOptions options;
    options.shape = shape_of(5, 16, 40, 70, ONELANE_KV_V4);
    options.shape.extra_format = ONELANE_KV_V41_FP4;
    options.shape.output = ONELANE_OUT_FP8_GROUPED;
    options.window.page_records = options.extra.page_records = records;
    options.window.page_padding = 48;
    options.extra.stride_padding = 3;
    options.seed = static_cast<uint32_t>(records);
    RandomCall call(options);
    const auto plan = make_plan(call.shape(), {.arch = 0, .processors = 1, .shared_bytes = 0, .cluster_blocks = 1});
    ASSERT_TRUE(plan);
    ASSERT_EQ(run_reference(*plan, call.args()), ONELANE_ATTENTION_OK) << onelane_attention_message();
    for (const float value : output_values(call.shape(), call.args())) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(AttentionReference, Fp8OutputsAreTheRoundedBf16OnesAndTheLayoutsHoldTheSame) {
  CallOptions options;
  options.shape = shape_of(6, 32, 20, 0, ONELANE_KV_V41_FP8);
  std::vector<float> values[3];
  for (const auto output : {ONELANE_OUT_BF16, ONELANE_OUT_FP8, ONELANE_OUT_FP8_GROUPED}) {
    options.shape.output = output;
    RandomCall call(options);
    store_reference(call.shape(), call.args(), 0, reference_rows(call.shape(), call.args()));
    values[output] = output_values(call.shape(), call.args());
  }
  EXPECT_EQ(values[ONELANE_OUT_FP8], values[ONELANE_OUT_FP8_GROUPED]);
  for (size_t i = 0; i < values[0].size(); i += 32) {
    float amax = 0;
    for (size_t d = i; d < i + 32; ++d) amax = std::max(amax, std::fabs(values[0][d]));
    for (size_t d = i; d < i + 32; ++d) ASSERT_NEAR(values[1][d], values[0][d], amax / 16) << d;
  }
}

TEST(AttentionReference, TheGroupedLayoutIsWhatTheHeaderSays) {
  auto shape = shape_of(6, 16, 1, 0, ONELANE_KV_BF16);
  shape.output = ONELANE_OUT_FP8_GROUPED;
  // [rows, heads/8, 16, 8, 32] of row 1, head 11 (group 1, head 3), dim 70 (chunk 2, dim 6)
  EXPECT_EQ(value_offset(shape, 1, 11, 70), size_t{(((1 * 2 + 1) * 16 + 2) * 8 + 3) * 32 + 6});
  // Byte 2 * 8 + 3 = 19: byte 3 of word 4, rows innermost, padded to 8.
  EXPECT_EQ(scale_offset(shape, 1, 11, 2), size_t{((1 * 32 + 4) * 8 + 1) * 4 + 3});
  EXPECT_EQ(out_scale_bytes(shape), size_t{2 * 32 * 8 * 4});
  EXPECT_EQ(out_bytes(shape), size_t{6 * 16 * 512});
}

TEST(AttentionReference, ANanInARecordReachesTheRowsThatAttendToIt) {
  TwoRecords call(4, 2);
  call.pages[5] = 0x7fc0;
  EXPECT_TRUE(std::isnan(reference_rows(call.shape, call.args).out[0]));
  call.indices[0] = -1;
  EXPECT_FALSE(std::isnan(reference_rows(call.shape, call.args).out[0]));
}

}  // namespace
}  // namespace onelane::attention
