#include "kernels/attention/validate.h"

#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "kernels/attention/plan.h"
#include "kernels/attention/random_call.h"

namespace onelane::attention {
namespace {

using namespace testing;

constexpr onelane_attention_device kCpu = {.arch = 0, .processors = 2, .shared_bytes = 0, .cluster_blocks = 1};
constexpr onelane_attention_device kRtx = {.arch = 120, .processors = 188, .shared_bytes = 101376, .cluster_blocks = 8};

class Validate : public ::testing::Test {
 protected:
  Validate() : call_(options()), args_(call_.args()) {}

  static CallOptions options() {
    CallOptions options;
    options.shape = {.rows = 4,
                     .heads = 16,
                     .window_width = 32,
                     .extra_width = 96,
                     .window_format = ONELANE_KV_V4,
                     .extra_format = ONELANE_KV_V41_FP4,
                     .output = ONELANE_OUT_FP8_GROUPED,
                     .splits = 4};
    return options;
  }

  void expect_refused(const std::string& names, bool cpu = true) {
    const auto plan = make_plan(call_.shape(), cpu ? kCpu : kRtx);
    ASSERT_TRUE(plan);
    expect_refused(*plan, names, cpu);
  }
  void expect_refused(const onelane_attention_plan& plan, const std::string& names, bool cpu = true) {
    const auto checked = check_run(plan, args_, cpu);
    ASSERT_FALSE(checked) << "nothing said about " << names;
    EXPECT_EQ(checked.error().message.rfind(names, 0), 0u) << "'" << checked.error().message << "', not " << names;
    args_ = call_.args();
  }

  RandomCall call_;
  onelane_attention_args args_;
};

const void* moved(const void* pointer, int bytes) { return static_cast<const char*>(pointer) + bytes; }
template <class T>
T* moved(T* pointer, int bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + static_cast<uintptr_t>(bytes));
}

TEST_F(Validate, TakesWhatIsRight) {
  for (const auto& device : {kCpu, kRtx}) {
    const auto plan = make_plan(call_.shape(), device);
    ASSERT_TRUE(plan);
    args_ = call_.args();
    alignas(16) float workspace[4] = {};
    args_.workspace = workspace;
    const auto checked = check_run(*plan, args_, device.arch == 0);
    EXPECT_TRUE(checked) << checked.error().message;
  }
}

TEST_F(Validate, TensorsAreThereAndAligned) {
  args_.q = nullptr;
  expect_refused("q");
  args_.q = moved(args_.q, 2);
  expect_refused("q");
  args_.out = nullptr;
  expect_refused("out ");
  args_.out = moved(static_cast<char*>(args_.out), 8);
  expect_refused("out ");
  args_.out_scales = nullptr;
  expect_refused("out_scales");
  args_.out_scales = moved(static_cast<char*>(args_.out_scales), 2);
  expect_refused("out_scales");
  args_.lse = moved(args_.lse, 1);
  expect_refused("lse");
  args_.sink = moved(args_.sink, 2);
  expect_refused("sink");
  args_.scale = std::numeric_limits<float>::quiet_NaN();
  expect_refused("scale");
}

TEST_F(Validate, ListsHoldTogether) {
  const auto refused = [&](const std::string& names, const std::function<void(onelane_attention_list&)>& change) {
    change(args_.window);
    expect_refused("window." + names);
    change(args_.extra);
    expect_refused("extra." + names);
  };
  refused("pages", [](auto& list) { list.pages = nullptr; });
  refused("pages", [](auto& list) { list.pages = moved(list.pages, 8); });
  refused("page_records", [](auto& list) { list.page_records = 0; });
  refused("pages_count", [](auto& list) { list.pages_count = 0; });
  refused("page_records * pages_count", [](auto& list) { list.pages_count = 0x7fffffff; });
  refused("page_records", [](auto& list) {
    list.pages_count = 1;
    list.page_records = 1 << 23;
    list.page_bytes = int64_t{1} << 40;
  });
  refused("page_bytes", [](auto& list) { list.page_bytes -= 16; });
  refused("page_bytes", [](auto& list) { list.page_bytes += 8; });
  refused("page_bytes", [](auto& list) { list.page_bytes = -16; });
  refused("indices", [](auto& list) { list.indices = nullptr; });
  refused("indices", [](auto& list) { list.indices = moved(list.indices, 2); });
  refused("index_stride", [](auto& list) { list.index_stride -= 1; });
  refused("lengths", [](auto& list) { list.lengths = moved(list.lengths, 1); });
}

TEST_F(Validate, AListThatIsNotThereIsNotLookedAt) {
  auto shape = call_.shape();
  shape.extra_width = 0;
  const auto plan = make_plan(shape, kCpu);
  ASSERT_TRUE(plan);
  args_.extra = {};
  EXPECT_TRUE(check_run(*plan, args_, true));
}

TEST_F(Validate, RopeIsWholeOrAbsent) {
  args_.angles = nullptr;
  expect_refused("positions without angles");
  args_.angles_count = 0;
  expect_refused("angles_count");
  args_.positions = moved(args_.positions, 2);
  expect_refused("positions");
  args_.positions = nullptr;
  args_.angles = nullptr;
  const auto plan = make_plan(call_.shape(), kCpu);
  EXPECT_TRUE(check_run(*plan, args_, true));
}

TEST_F(Validate, ABf16OutputHasNoScales) {
  auto shape = call_.shape();
  shape.output = ONELANE_OUT_BF16;
  const auto plan = make_plan(shape, kCpu);
  ASSERT_TRUE(plan);
  expect_refused(*plan, "out_scales");
}

TEST_F(Validate, APlanForSomethingElseIsRefused) {
  const auto cpu = make_plan(call_.shape(), kCpu);
  const auto gpu = make_plan(call_.shape(), kRtx);
  ASSERT_TRUE(cpu && gpu);
  expect_refused(*cpu, "the plan is for the CPU", false);
  expect_refused(*gpu, "the plan is for a GPU", true);
  ASSERT_EQ(gpu->splits, 4);
  expect_refused(*gpu, "workspace", false);
  auto plan = *gpu;
  plan.shape.rows += 1;  // its workspace is the old one's
  expect_refused(plan, "plan.workspace_bytes", false);
  plan = *gpu;
  plan.splits = 0;
  expect_refused(plan, "plan.splits", false);
  plan = *gpu;
  plan.block_heads = 24;
  expect_refused(plan, "plan.block_heads", false);
  plan = *gpu;
  plan.chunks_as_few = 2;
  expect_refused(plan, "plan.chunks_as_few", false);
  plan = *gpu;
  plan.shape.heads = 7;
  expect_refused(plan, "plan.shape: heads", false);
  plan = *gpu;
  plan.device.arch = 0;
  expect_refused(plan, "plan.path", false);
  expect_refused(onelane_attention_plan{}, "plan.shape: rows", true);
}

}  // namespace
}  // namespace onelane::attention
