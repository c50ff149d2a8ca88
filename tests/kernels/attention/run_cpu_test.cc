// The CPU run against the oracle, on random and hostile calls.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "kernels/attention/plan.h"
#include "kernels/attention/random_call.h"
#include "kernels/attention/reference.h"

namespace onelane::attention {
namespace {

using namespace testing;

onelane_attention_plan cpu_plan(const onelane_attention_shape& shape, int threads) {
  auto plan = make_plan(shape, {.arch = 0, .processors = threads, .shared_bytes = 0, .cluster_blocks = 1});
  EXPECT_TRUE(plan) << plan.error().message;
  return *plan;
}

void expect_lse(float got, double wanted, const std::string& where) {
  if (std::isinf(wanted)) {
    ASSERT_EQ(got, static_cast<float>(wanted)) << where;
  } else {
    ASSERT_NEAR(got, wanted, 1e-6 + std::fabs(wanted) * 1e-6) << where;
  }
}

// Share of outputs that are not the oracle's to the bit; each within one rounding of it.
double compare(const RandomCall& call, const onelane_attention_args& args, const std::string& name) {
  const auto& shape = call.shape();
  const ReferenceResult wanted = reference_rows(shape, args);
  RandomCall::Outputs stored = call.outputs();
  const onelane_attention_args exact = call.args_with(stored);
  store_reference(shape, exact, 0, wanted);
  const std::vector<float> got = output_values(shape, args);
  const std::vector<float> rounded = output_values(shape, exact);
  size_t differ = 0;
  for (size_t i = 0; i < got.size(); i += 32) {
    double amax = 0;
    for (size_t d = i; d < i + 32; ++d) amax = std::max(amax, std::fabs(wanted.out[d]));
    for (size_t d = i; d < i + 32; ++d) {
      const double step = shape.output == ONELANE_OUT_BF16 ? std::fabs(wanted.out[d]) / 128 : amax / 8;
      EXPECT_NEAR(got[d], wanted.out[d], step + 2e-6 * amax) << name << ": value " << d;
      differ += got[d] == rounded[d] ? 0 : 1;
      if (::testing::Test::HasFailure()) return 1;
    }
  }
  for (size_t i = 0; i < wanted.lse.size() && args.lse != nullptr; ++i) {
    expect_lse(args.lse[i], wanted.lse[i], name + ": lse " + std::to_string(i));
  }
  return static_cast<double>(differ) / static_cast<double>(got.size());
}

double run_and_compare(const CallOptions& options, int threads, const std::string& name) {
  RandomCall call(options);
  const auto plan = cpu_plan(call.shape(), threads);
  EXPECT_EQ(onelane_attention_run_cpu(&plan, &call.args()), ONELANE_ATTENTION_OK) << onelane_attention_message();
  return compare(call, call.args(), name);
}

CallOptions options_of(int rows, int heads, int window, int extra) {
  CallOptions options;
  options.shape.rows = rows;
  options.shape.heads = heads;
  options.shape.window_width = window;
  options.shape.extra_width = extra;
  options.shape.window_format = options.shape.extra_format = ONELANE_KV_V4;
  options.seed = static_cast<uint32_t>(rows * 1000 + heads + window + extra);
  return options;
}

TEST(AttentionCpu, EveryPairOfFormatsAndEveryOutput) {
  constexpr int kPages[] = {1, 2, 53, 64, 256};
  int number = 0;
  for (int window = 0; window < 4; ++window) {
    for (int extra = 0; extra < 4; ++extra) {
      for (int output = 0; output < 3; ++output, ++number) {
        CallOptions options = options_of(5, 8, 67, 90);
        options.shape.window_format = static_cast<onelane_kv_format>(window);
        options.shape.extra_format = static_cast<onelane_kv_format>(extra);
        options.shape.output = static_cast<onelane_attention_output>(output);
        options.window.page_records = kPages[number % 5];
        options.extra.page_records = kPages[(number + 2) % 5];
        options.window.page_padding = 16 * (number % 3);
        options.extra.stride_padding = number % 4;
        options.window.lengths = number % 2 == 0;
        options.sink = number % 5 != 0;
        options.rope = number % 3 != 0;
        options.lse = number % 7 != 0;
        options.seed = static_cast<uint32_t>(number);
        const double differ = run_and_compare(options, 1 + number % 3, "call " + std::to_string(number));
        EXPECT_LT(differ, 1e-3) << number;
        if (HasFailure()) return;
      }
    }
  }
}

TEST(AttentionCpu, EveryInstructionSetOfThisMachine) {
  hwy::SetSupportedTargetsForTest(0);
  for (const int64_t target : {HWY_SSE4, HWY_AVX2, HWY_AVX3, HWY_NEON}) {
    if ((hwy::SupportedTargets() & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    for (int format = 0; format < 4; ++format) {
      CallOptions options = options_of(4, 8, 70, 75);
      options.shape.window_format = options.shape.extra_format = static_cast<onelane_kv_format>(format);
      options.shape.output = ONELANE_OUT_FP8;
      EXPECT_LT(run_and_compare(options, 2, hwy::TargetName(target)), 1e-3);
    }
    hwy::SetSupportedTargetsForTest(0);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(AttentionCpu, EveryNumberOfHeads) {
  for (const int heads : {8, 16, 32, 64, 128}) {
    CallOptions options = options_of(3, heads, 40, 100);
    options.shape.output = ONELANE_OUT_FP8_GROUPED;
    EXPECT_LT(run_and_compare(options, 2, std::to_string(heads) + " heads"), 1e-3);
  }
}

TEST(AttentionCpu, FromOneRowToMore) {
  for (const int rows : {1, 2, 3, 7, 8, 31, 130}) {
    EXPECT_LT(run_and_compare(options_of(rows, 8, 20, 40), 2, std::to_string(rows) + " rows"), 1e-3);
  }
}

TEST(AttentionCpu, EveryWidthAroundABlock) {
  for (const int width : {0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
    CallOptions options = options_of(3, 8, width, 0);
    options.window.lengths = false;
    EXPECT_LT(run_and_compare(options, 2, std::to_string(width) + " wide"), 2e-3);
    options = options_of(3, 8, 0, width);
    EXPECT_LT(run_and_compare(options, 2, std::to_string(width) + " extra"), 2e-3);
  }
}

// More records than are decoded at once, so that rows are cut into batches; one row alone is longer than a batch.
TEST(AttentionCpu, LongRowsAndSeveralBatches) {
  CallOptions options = options_of(4, 8, 128, 8192);
  options.extra.records = 3000;
  options.extra.lengths = false;
  EXPECT_LT(run_and_compare(options, 2, "long"), 1e-3);
}

TEST(AttentionCpu, RowsWithoutEntriesAreZeroWhateverTheRestSays) {
  CallOptions options = options_of(6, 8, 32, 32);
  options.window.invalid = options.extra.invalid = 1;
  for (const auto output : {ONELANE_OUT_BF16, ONELANE_OUT_FP8, ONELANE_OUT_FP8_GROUPED}) {
    options.shape.output = output;
    RandomCall call(options);
    const auto plan = cpu_plan(call.shape(), 2);
    ASSERT_EQ(onelane_attention_run_cpu(&plan, &call.args()), ONELANE_ATTENTION_OK);
    for (const float value : output_values(call.shape(), call.args())) ASSERT_EQ(value, 0);
    for (int i = 0; i < 6 * 8; ++i) ASSERT_EQ(call.args().lse[i], std::numeric_limits<float>::infinity());
  }
}

TEST(AttentionCpu, TheSameBitsOnAnyNumberOfThreadsAndBesideAnyRows) {
  CallOptions options = options_of(9, 16, 70, 130);
  options.shape.output = ONELANE_OUT_FP8;
  RandomCall call(options);
  const auto plan = cpu_plan(call.shape(), 1);
  ASSERT_EQ(onelane_attention_run_cpu(&plan, &call.args()), ONELANE_ATTENTION_OK);
  const size_t bytes = out_bytes(call.shape());
  for (const int threads : {2, 3, 5}) {
    RandomCall::Outputs outputs = call.outputs();
    const auto args = call.args_with(outputs);
    const auto other = cpu_plan(call.shape(), threads);
    ASSERT_EQ(onelane_attention_run_cpu(&other, &args), ONELANE_ATTENTION_OK);
    EXPECT_EQ(std::memcmp(args.out, call.args().out, bytes), 0) << threads;
    EXPECT_EQ(std::memcmp(args.lse, call.args().lse, 9 * 16 * sizeof(float)), 0) << threads;
  }
  auto shape = call.shape();  // the first rows alone
  shape.rows = 2;
  const auto fewer = cpu_plan(shape, 2);
  RandomCall::Outputs outputs = call.outputs();
  const auto args = call.args_with(outputs);
  ASSERT_EQ(onelane_attention_run_cpu(&fewer, &args), ONELANE_ATTENTION_OK);
  EXPECT_EQ(std::memcmp(args.out, call.args().out, out_bytes(shape)), 0);
  const auto* untouched = static_cast<const uint8_t*>(args.out);
  for (size_t i = out_bytes(shape); i < bytes; ++i) ASSERT_EQ(untouched[i], 0xff) << i;
}

TEST(AttentionCpu, CallersOnSeveralThreadsTakeTurns) {
  const CallOptions options = options_of(3, 8, 30, 60);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&, i] {
      for (int run = 0; run < 5; ++run) {
        RandomCall call(options);
        const auto plan = cpu_plan(call.shape(), 1 + i % 2);
        if (onelane_attention_run_cpu(&plan, &call.args()) != ONELANE_ATTENTION_OK) ++wrong;
        if (compare(call, call.args(), "caller") > 1e-2) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(AttentionCpu, WhatIsOffIsSaid) {
  CallOptions options = options_of(3, 8, 30, 60);
  RandomCall call(options);
  auto plan = cpu_plan(call.shape(), 2);
  EXPECT_EQ(onelane_attention_run_cpu(nullptr, &call.args()), ONELANE_ATTENTION_INVALID);
  EXPECT_EQ(onelane_attention_run_cpu(&plan, nullptr), ONELANE_ATTENTION_INVALID);
  auto args = call.args();
  args.q = nullptr;
  EXPECT_EQ(onelane_attention_run_cpu(&plan, &args), ONELANE_ATTENTION_INVALID);
  EXPECT_EQ(std::string(onelane_attention_message()), "q is null");
  plan.device.processors = 1 << 20;
  EXPECT_EQ(onelane_attention_run_cpu(&plan, &call.args()), ONELANE_ATTENTION_INVALID);
  EXPECT_EQ(std::string(onelane_attention_message()).rfind("plan: device.processors", 0), 0u);
}

}  // namespace
}  // namespace onelane::attention
