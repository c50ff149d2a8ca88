#include "kernels/attention/plan.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "kernels/attention/validate.h"

namespace onelane::attention {
namespace {

// Places as the kernels met them there: a cluster must lie in one of some 8 parts of the chip, of 14 to 18 processors.
constexpr onelane_attention_device kH200 = {.arch = 90,
                                            .processors = 132,
                                            .shared_bytes = 232448,
                                            .cluster_blocks = 8,
                                            .cluster_places = {132, 66, 42, 30, 22, 20, 15, 14}};
constexpr onelane_attention_device kRtx = {.arch = 120, .processors = 188, .shared_bytes = 101376, .cluster_blocks = 8};
constexpr onelane_attention_device kCpu = {.arch = 0, .processors = 2, .shared_bytes = 0, .cluster_blocks = 1};

onelane_attention_shape shape_of(int rows, int heads, int window, int extra) {
  onelane_attention_shape shape{};
  shape.rows = rows;
  shape.heads = heads;
  shape.window_width = window;
  shape.extra_width = extra;
  shape.window_format = shape.extra_format = ONELANE_KV_V4;
  return shape;
}

onelane_attention_shape any_shape() {
  auto shape = shape_of(*rc::gen::inRange(1, 300), *rc::gen::element(8, 16, 32, 64, 128), *rc::gen::inRange(0, 200),
                        *rc::gen::element(0, 1, 15, 64, 512, 1024, 1025, 8192));
  shape.window_format = static_cast<onelane_kv_format>(*rc::gen::inRange(0, 4));
  shape.extra_format = static_cast<onelane_kv_format>(*rc::gen::inRange(0, 4));
  shape.output = static_cast<onelane_attention_output>(*rc::gen::inRange(0, 3));
  shape.splits = *rc::gen::weightedElement<int>({{4, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 8}, {1, 1000}});
  return shape;
}

onelane_attention_device any_device() {
  auto device = *rc::gen::element(kH200, kRtx);
  device.arch = *rc::gen::element(80, 89, 90, 100, 103, 120);
  device.processors = *rc::gen::inRange(1, 200);
  device.cluster_blocks = *rc::gen::element(1, 2, 4, 8, 16);
  return device;
}

onelane_attention_plan planned(const onelane_attention_shape& shape, const onelane_attention_device& device) {
  auto plan = make_plan(shape, device);
  if (!plan) RC_FAIL(plan.error().message);
  return *plan;
}

int blocks_of(const onelane_attention_plan& plan) {
  return plan.shape.rows * (plan.shape.heads / plan.block_heads) * plan.splits;
}

TEST(Plan, StaysWithinTheLimitsOfShapeAndDevice) {
  EXPECT_TRUE(rc::check("limits", [] {
    const auto shape = any_shape();
    const auto device = any_device();
    const auto plan = planned(shape, device);
    const int entries = shape.window_width + shape.extra_width;
    const bool cluster = device.arch == 90 && device.cluster_blocks >= 2 && cluster_takes(formats_of(shape)) &&
                         block_shared_bytes(ONELANE_PATH_CLUSTER, 8, 1) <= device.shared_bytes;
    RC_ASSERT(plan.path == (cluster ? ONELANE_PATH_CLUSTER : ONELANE_PATH_COMBINE));
    RC_ASSERT(plan.splits >= 1 && plan.splits <= 32);
    if (!cluster) RC_ASSERT((plan.splits & (plan.splits - 1)) == 0);
    RC_ASSERT(plan.splits <= std::max(1, entries / 16));
    if (cluster) RC_ASSERT(plan.splits <= std::min({device.cluster_blocks, device.processors, 8}));
    if (shape.splits > 0) RC_ASSERT(plan.splits <= shape.splits);
    RC_ASSERT(plan.block_heads == 8 || plan.block_heads == 16 || plan.block_heads == 32 ||
              (cluster && plan.block_heads == 64));
    RC_ASSERT(shape.heads % plan.block_heads == 0);
    RC_ASSERT(plan.shared_bytes <= device.shared_bytes);
    RC_ASSERT((plan.workspace_bytes > 0) == (plan.splits > 1 && !cluster));
    RC_ASSERT(check_plan(plan).has_value());
  }));
}

TEST(Plan, IsAPureFunctionAndEveryByteOfItIsSet) {
  EXPECT_TRUE(rc::check("purity", [] {
    const auto shape = any_shape();
    const auto device = any_device();
    onelane_attention_plan first, second;
    std::memset(&first, 0xff, sizeof(first));
    std::memset(&second, 0x55, sizeof(second));
    RC_ASSERT(onelane_attention_make_plan(&shape, &device, &first) == ONELANE_ATTENTION_OK);
    planned(any_shape(), any_device());
    RC_ASSERT(onelane_attention_make_plan(&shape, &device, &second) == ONELANE_ATTENTION_OK);
    RC_ASSERT(std::memcmp(&first, &second, sizeof(first)) == 0);
    RC_ASSERT(std::memcmp(&first.shape, &shape, sizeof(shape)) == 0);
    RC_ASSERT(std::memcmp(&first.device, &device, sizeof(device)) == 0);
  }));
}

TEST(Plan, GrantsAWishForPartsAsFarAsPossible) {
  for (const auto& device : {kH200, kRtx}) {
    for (const int wish : {1, 2, 3, 4, 5, 8, 31}) {
      auto shape = shape_of(6, 64, 128, 512);
      shape.splits = wish;
      const int possible = device.arch == 90 ? std::min(wish, 8)
                           : wish >= 16      ? 16
                           : wish >= 8       ? 8
                           : wish >= 4       ? 4
                                             : std::min(wish, 2);
      EXPECT_EQ(planned(shape, device).splits, possible) << device.arch << ": " << wish;
    }
  }
  auto shape = shape_of(6, 64, 128, 512);
  shape.splits = 1;
  EXPECT_EQ(planned(shape, kRtx).workspace_bytes, 0u);
  shape.extra_width = 0;
  shape.window_width = 33;  // 16 entries a part at least
  shape.splits = 8;
  EXPECT_EQ(planned(shape, kH200).splits, 2);
  shape.window_width = 0;
  EXPECT_EQ(planned(shape, kH200).splits, 1);
}

TEST(Plan, WorkspaceGrowsWithRowsHeadsAndParts) {
  EXPECT_TRUE(rc::check("monotone", [] {
    auto shape = shape_of(*rc::gen::inRange(1, 200), *rc::gen::element(8, 16, 32, 64), 128, 8192);
    shape.splits = *rc::gen::inRange(1, 33);
    const size_t bytes = planned(shape, kRtx).workspace_bytes;
    auto larger = shape;
    larger.rows += *rc::gen::inRange(0, 5);
    larger.heads *= *rc::gen::element(1, 2);
    larger.splits += *rc::gen::inRange(0, 5);
    RC_ASSERT(planned(larger, kRtx).workspace_bytes >= bytes);
  }));
  auto shape = shape_of(3, 64, 128, 512);
  shape.splits = 4;
  EXPECT_EQ(planned(shape, kRtx).workspace_bytes, size_t{3} * 4 * 64 * (512 + 2) * sizeof(float));
}

// Half but for what a last whole cluster would be too much.
// 6 parts of 32 heads are faster than 8 of them or more groups of fewer (4 rows of 1,152 entries): a third it is.
TEST(Plan, AFewRowsUseAThirdOfTheChipWhenTheirEntriesAllowIt) {
  for (const auto& device : {kH200, kRtx}) {
    for (const int heads : {8, 16, 32, 64, 128}) {
      for (const int extra : {512, 1024, 8192}) {
        for (int rows = 1; rows <= 8; ++rows) {
          const auto plan = planned(shape_of(rows, heads, 128, extra), device);
          int parts = 1;  // of at least 32 entries
          while (2 * parts <= std::min(device.arch == 90 ? 8 : 32, (128 + extra) / 32)) parts *= 2;
          const int most = rows * (heads / 8) * parts;
          EXPECT_GE(blocks_of(plan), std::min(device.processors / 3, most))
              << device.arch << ": " << rows << " rows, " << heads << " heads, 128 + " << extra << ": " << plan.splits
              << " parts of blocks of " << plan.block_heads;
        }
      }
    }
  }
}

// What was fastest in the sweep that the costs are fitted to.
TEST(Plan, ReproducesTheBestOfTheSweep) {
  const auto expect = [](int rows, int splits, int block_heads) {
    const auto plan = planned(shape_of(rows, 64, 128, 512), kH200);
    EXPECT_EQ(plan.splits, splits) << rows;
    EXPECT_EQ(plan.block_heads, block_heads) << rows;
  };
  expect(1, 8, 8);
  expect(4, 6, 16);
  expect(8, 6, 32);
  expect(16, 5, 64);
  expect(32, 2, 32);
  expect(64, 2, 64);
  expect(128, 1, 64);
}

TEST(Plan, ManyRowsOfNarrowListsAreNotCut) {
  EXPECT_EQ(planned(shape_of(128, 64, 128, 512), kH200).splits, 1);
  EXPECT_EQ(planned(shape_of(512, 64, 128, 512), kH200).splits, 1);
}

// 14 rows of the ratio-128 list fill the chip uncut; the one that is really long must not be walked by one block.
TEST(Plan, WideListsAreCutForTheSakeOfTheLongRow) {
  for (const int rows : {14, 33}) {
    const auto shape = shape_of(rows, 128, 128, 8192);
    const auto plan = planned(shape, kH200);
    EXPECT_GE(plan.splits, 2) << rows;
    const Candidate uncut{1, plan.block_heads};
    EXPECT_LT(estimate(shape, kH200, plan.path, {plan.splits, plan.block_heads}).block_us,
              estimate(shape, kH200, plan.path, uncut).block_us * 0.6);
  }
}

TEST(Plan, TheCpuIsNotCut) {
  const auto plan = planned(shape_of(6, 64, 128, 512), kCpu);
  EXPECT_EQ(plan.path, ONELANE_PATH_CPU);
  EXPECT_EQ(plan.splits, 1);
  EXPECT_EQ(plan.workspace_bytes, 0u);
}

TEST(Plan, FallsBackWhenTheClusterKernelDoesNotFit) {
  auto device = kH200;
  device.shared_bytes = 101376;
  EXPECT_EQ(planned(shape_of(6, 64, 128, 512), device).path, ONELANE_PATH_COMBINE);
  device = kH200;
  device.cluster_blocks = 1;
  EXPECT_EQ(planned(shape_of(6, 64, 128, 512), device).path, ONELANE_PATH_COMBINE);
}

TEST(Plan, TheClusterKernelTakesThePairsOfFormatsThatModelsUse) {
  constexpr auto kBf16 = ONELANE_KV_BF16, kV4 = ONELANE_KV_V4, kFp8 = ONELANE_KV_V41_FP8, kFp4 = ONELANE_KV_V41_FP4;
  const auto path = [](int window_width, int extra_width, onelane_kv_format window, onelane_kv_format extra) {
    auto shape = shape_of(6, 64, window_width, extra_width);
    shape.window_format = window;
    shape.extra_format = extra;
    return planned(shape, kH200).path;
  };
  for (const auto window : {kBf16, kV4, kFp8, kFp4}) {
    for (const auto extra : {kBf16, kV4, kFp8, kFp4}) {
      const bool together = (window == extra && window != kFp4) || (window == kFp8 && extra == kFp4);
      EXPECT_EQ(path(128, 512, window, extra), together ? ONELANE_PATH_CLUSTER : ONELANE_PATH_COMBINE)
          << window << " + " << extra;
      // Of a list that is not there the format does not matter.
      EXPECT_EQ(path(128, 0, window, extra), window != kFp4 ? ONELANE_PATH_CLUSTER : ONELANE_PATH_COMBINE) << window;
      EXPECT_EQ(path(0, 512, window, extra), ONELANE_PATH_CLUSTER) << extra;
      EXPECT_EQ(path(0, 0, window, extra), ONELANE_PATH_CLUSTER);
    }
  }
}

TEST(Plan, ACombineBlockOfEverySizeFitsTheSmallestDevice) {
  for (const int heads : {8, 16, 32}) {
    EXPECT_EQ(block_shared_bytes(ONELANE_PATH_COMBINE, heads, 1), 33792 + 1620 * heads);
    EXPECT_LE(block_shared_bytes(ONELANE_PATH_COMBINE, heads, 1), kRtx.shared_bytes);
  }
}

void expect_refused(const onelane_attention_shape& shape, const onelane_attention_device& device, int status,
                    const std::string& names) {
  onelane_attention_plan plan;
  EXPECT_EQ(onelane_attention_make_plan(&shape, &device, &plan), status) << names;
  const std::string message = onelane_attention_message();
  EXPECT_NE(message.find(names), std::string::npos) << "'" << message << "' does not name " << names;
}

template <class Enum>
Enum enum_of(int code) {
  Enum value;
  std::memcpy(&value, &code, sizeof(value));
  return value;
}

TEST(Plan, ABadShapeIsRefusedByTheNameOfItsField) {
  constexpr int kInvalid = ONELANE_ATTENTION_INVALID;
  const auto refused = [&](auto change, const std::string& names) {
    auto shape = shape_of(6, 64, 128, 512);
    change(shape);
    expect_refused(shape, kH200, kInvalid, names);
  };
  for (const int rows : {0, -1, 1 << 30}) refused([&](auto& shape) { shape.rows = rows; }, "rows");
  for (const int heads : {0, -8, 1, 24, 256}) refused([&](auto& shape) { shape.heads = heads; }, "heads");
  refused([](auto& shape) { shape.window_width = -1; }, "window_width");
  refused([](auto& shape) { shape.extra_width = -1; }, "extra_width");
  refused([](auto& shape) { shape.extra_width = 65536; }, "extra_width");
  refused([](auto& shape) { shape.window_width = shape.extra_width = 0x7fffffff; }, "window_width");
  refused([](auto& shape) { shape.splits = -1; }, "splits");
  for (const int code : {-1, 4}) {
    refused([&](auto& shape) { shape.window_format = enum_of<onelane_kv_format>(code); }, "window_format");
    refused([&](auto& shape) { shape.extra_format = enum_of<onelane_kv_format>(code); }, "extra_format");
    refused([&](auto& shape) { shape.output = enum_of<onelane_attention_output>(code == -1 ? -1 : 3); }, "output");
  }
}

TEST(Plan, ABadDeviceIsRefusedByTheNameOfItsField) {
  const auto shape = shape_of(6, 64, 128, 512);
  const auto refused = [&](auto change, int status, const std::string& names) {
    auto device = kH200;
    change(device);
    expect_refused(shape, device, status, names);
  };
  refused([](auto& device) { device.arch = -1; }, ONELANE_ATTENTION_INVALID, "device.arch");
  refused([](auto& device) { device.arch = 75; }, ONELANE_ATTENTION_UNSUPPORTED, "device.arch");
  refused([](auto& device) { device.processors = 0; }, ONELANE_ATTENTION_INVALID, "device.processors");
  refused([](auto& device) { device.arch = 0, device.processors = 1025; }, ONELANE_ATTENTION_INVALID,
          "device.processors");
  refused([](auto& device) { device.cluster_blocks = 0; }, ONELANE_ATTENTION_INVALID, "device.cluster_blocks");
  refused([](auto& device) { device.shared_bytes = -1; }, ONELANE_ATTENTION_INVALID, "device.shared_bytes");
  refused([](auto& device) { device.shared_bytes = 1024; }, ONELANE_ATTENTION_UNSUPPORTED, "device.shared_bytes");
  onelane_attention_plan plan;
  EXPECT_EQ(onelane_attention_make_plan(nullptr, &kH200, &plan), ONELANE_ATTENTION_INVALID);
  EXPECT_NE(std::string(onelane_attention_message()), "");
  EXPECT_EQ(onelane_attention_make_plan(&shape, &kH200, &plan), ONELANE_ATTENTION_OK);
  EXPECT_EQ(std::string(onelane_attention_message()), "");
}

}  // namespace
}  // namespace onelane::attention
