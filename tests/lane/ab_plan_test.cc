#include "lane/ab_plan.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lane/ab_support.h"

namespace onelane {
namespace {

using testing::HasSubstr;

TEST(AbPlan, ReadsWhatItWrote) {
  AbPlan plan = test_plan(AbQuestion::kMicro);
  const std::string text = plan_json(plan);
  const auto back = parse_plan(text);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(plan_json(*back), text);
  EXPECT_EQ(back->quads, 6);
  EXPECT_EQ(back->order.size(), 24u);
}

// In every quad the arms have the same mean place in time, so what is linear in time cancels.
TEST(AbPlan, QuadsAreBalancedInTimeAndDrawn) {
  std::set<std::vector<ArmRole>> orders;
  for (int64_t seed = 1; seed <= 20; ++seed) {
    AbPlan plan = test_plan();
    plan.order.clear();
    plan.quads = 7;
    plan.seed = seed;
    const std::vector<ArmRole> order = complete_plan(plan)->order;
    orders.insert(order);
    int mirrored = 0;
    for (size_t quad = 0; quad < 7; ++quad) {
      std::vector<double> time(4);
      for (size_t i = 0; i < 4; ++i) time[i] = static_cast<double>(4 * quad + i);
      EXPECT_EQ(group_effect(time, std::span(order).subspan(4 * quad, 4)), 0);
      mirrored += order[4 * quad] == ArmRole::kCandidate;
    }
    EXPECT_TRUE(mirrored == 3 || mirrored == 4);
  }
  EXPECT_GT(orders.size(), 10u);
  EXPECT_EQ(test_plan(AbQuestion::kBroken).order,
            (std::vector{ArmRole::kControl, ArmRole::kCandidate, ArmRole::kControl}));
}

TEST(AbPlan, TheExtensionIsDrawnBeforehandAndCostsLevel) {
  AbPlan plan = test_plan();
  plan.order.clear();
  plan.extension_quads = 6;
  const auto extended = complete_plan(plan);
  ASSERT_TRUE(extended);
  EXPECT_EQ(extended->order.size(), 24u);
  EXPECT_EQ(plan_level(*extended), 0.975);
  EXPECT_EQ(plan_level(test_plan()), 0.95);
}

TEST(AbPlan, AQuietNullRunAllowsThreeQuads) {
  AbPlan plan = test_plan();
  plan.order.clear();
  plan.quads = 3;
  EXPECT_THAT(complete_plan(plan).error().message, HasSubstr("quads: must be 4"));
  plan.null_quad_sd_percent = 0.35;
  EXPECT_TRUE(complete_plan(plan));
}

TEST(AbPlan, RefusalsNameTheField) {
  const auto refusal = [](const std::function<void(AbPlan&)>& change, AbQuestion question = AbQuestion::kPromotion) {
    AbPlan plan = test_plan(question);
    plan.order.clear();
    change(plan);
    const auto made = complete_plan(plan);
    return made ? "" : made.error().message;
  };
  EXPECT_THAT(refusal([](AbPlan& p) { p.control.command = ""; }), HasSubstr("control.command: is missing"));
  EXPECT_THAT(refusal([](AbPlan& p) { p.candidate.command = "bench"; }), HasSubstr("candidate.command: must say"));
  EXPECT_THAT(refusal([](AbPlan& p) { p.may_differ = {"mood"}; }), HasSubstr("may_differ: 'mood'"));
  EXPECT_THAT(refusal([](AbPlan& p) { p.extension_quads = 4; }), HasSubstr("extension_quads"));
  EXPECT_THAT(refusal([](AbPlan& p) { p.extension_quads = 9; }, AbQuestion::kNull), HasSubstr("only a promotion"));
  EXPECT_THAT(refusal([](AbPlan& p) { p.inert_cells.clear(); }, AbQuestion::kMicro), HasSubstr("inert_cells"));
  EXPECT_THAT(refusal([](AbPlan& p) { p.null_percent.reset(); }, AbQuestion::kMicro), HasSubstr("null_percent"));
  nlohmann::json document = nlohmann::json::parse(plan_json(test_plan()));
  std::swap(document["order"][0], document["order"][1]);
  EXPECT_THAT(parse_plan(document.dump()).error().message, HasSubstr("order: is not what seed 1 gives"));
  document["bars"]["promotion"] = 1;
  EXPECT_THAT(parse_plan(document.dump()).error().message, HasSubstr("bars.promotion: is not a field"));
  document["schema"] = "other";
  EXPECT_THAT(parse_plan(document.dump()).error().message, HasSubstr("schema"));
}

}  // namespace
}  // namespace onelane
