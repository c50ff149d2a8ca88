#include "lane/ab_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lane/ab_support.h"

namespace onelane {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Quads of one campaign, as compare_arms sees them, without the receipts.
std::vector<double> simulated_quads(std::span<const ArmRole> order, double effect, double block_sd, double drift,
                                    std::mt19937_64& random) {
  std::normal_distribution<double> noise(0, block_sd);
  std::vector<double> y, quads;
  for (size_t i = 0; i < order.size(); ++i) {
    y.push_back(noise(random) + drift * static_cast<double>(i) + (order[i] == ArmRole::kCandidate ? effect : 0));
  }
  for (size_t i = 0; i < order.size(); i += 4) {
    quads.push_back(group_effect(std::span(y).subspan(i, 4), order.subspan(i, 4)));
  }
  return quads;
}

// 40,000 campaigns: the error of a share of 95 % is 0.11 %, so a bound of 1 % is nine of them.
TEST(AbSimulation, NinetyFivePercentOfIntervalsCoverTheTruth) {
  std::mt19937_64 random(11);
  for (const double drift : {0.0, 0.004}) {
    const AbPlan plan = test_plan();
    int covered = 0;
    constexpr int kCampaigns = 40'000;
    for (int i = 0; i < kCampaigns; ++i) {
      const Estimate e = mean_interval(simulated_quads(plan.order, 0.015, 0.005, drift, random));
      covered += e.low <= 0.015 && 0.015 <= e.high;
    }
    EXPECT_NEAR(static_cast<double>(covered) / kCampaigns, 0.95, 0.01) << "drift " << drift;
  }
}

// The same through receipts, void rules and all: 3,000 campaigns, an error of 0.4 %. The rule that controls agree looks
// at their difference, which says nothing about their mean, so dropping quads by it does not bias what is left.
TEST(AbSimulation, CoverageThroughTheWholePath) {
  AbPlan plan = test_plan(AbQuestion::kPromotion, 5);
  int covered = 0, judged = 0, dropped = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const auto result =
        compare_arms(plan, test_blocks(plan, {.effect = 0.015, .block_sd = 0.004, .drift = 0.0005}, seed));
    dropped += result.quads_used < 5;
    if (result.verdict == Verdict::kVoid) continue;
    ++judged;
    covered += result.all.effect.low <= 0.015 && 0.015 <= result.all.effect.high;
  }
  EXPECT_GT(dropped, 500);
  EXPECT_GT(judged, 2000);
  EXPECT_NEAR(static_cast<double>(covered) / judged, 0.95, 0.018);
}

// spec/operations.md 4.2: least pairs and quads with 80 % power at a true 1.5 %, here by drawing campaigns. 20,000 of
// them have an error of 0.3 % of power.
TEST(AbSimulation, PowerTableIsReproduced) {
  std::mt19937_64 random(12);
  constexpr int kCampaigns = 20'000;
  const auto pairs_power = [&](int64_t pairs, double sd) {
    std::normal_distribution<double> ratio(1.5, sd);
    int found = 0;
    std::vector<double> values(static_cast<size_t>(pairs));
    for (int i = 0; i < kCampaigns; ++i) {
      for (double& value : values) value = ratio(random);
      const Estimate e = mean_interval(values);
      found += e.low > 0 || e.high < 0;
    }
    return static_cast<double>(found) / kCampaigns;
  };
  const auto quads_power = [&](int64_t quads, double quad_sd) {
    AbPlan plan = test_plan(AbQuestion::kPromotion, 8);
    int found = 0;
    for (int i = 0; i < kCampaigns; ++i) {
      // A quad is a mean of two minus a mean of two: its spread is that of one block.
      const Estimate e = mean_interval(
          simulated_quads(std::span(plan.order).first(4 * static_cast<size_t>(quads)), 1.5, quad_sd, 0.3, random));
      found += e.low > 0 || e.high < 0;
    }
    return static_cast<double>(found) / kCampaigns;
  };
  struct Row {
    double sd;
    int64_t pairs;
  };
  for (const auto& [sd, pairs] : {Row{0.3, 3}, {0.5, 4}, {1.0, 6}, {1.5, 10}, {2.0, 16}}) {
    EXPECT_GE(pairs_power(pairs, sd), 0.79) << sd;
    EXPECT_LT(pairs_power(pairs - 1, sd), 0.79) << sd;
  }
  EXPECT_NEAR(quads_power(3, 0.35), 0.94, 0.015);
  EXPECT_NEAR(quads_power(4, 0.5), 0.97, 0.015);
  EXPECT_NEAR(quads_power(3, 0.5), 0.75, 0.015);
  EXPECT_NEAR(quads_power(4, 0.7), 0.81, 0.015);
  EXPECT_GE(quads_power(7, 1.06), 0.80);
  EXPECT_LT(quads_power(6, 1.06), 0.80);
}

TEST(AbCompare, LinearDriftCancelsExactly) {
  const AbPlan plan = test_plan();
  const auto still = compare_arms(plan, test_blocks(plan, {.effect = 0.02}));
  const auto drifting = compare_arms(plan, test_blocks(plan, {.effect = 0.02, .drift = 0.0015}));
  ASSERT_EQ(drifting.verdict, Verdict::kPass) << testing::PrintToString(drifting.reasons);
  EXPECT_NEAR(drifting.all.effect.point, still.all.effect.point, 1e-12);
  EXPECT_NEAR(drifting.all.effect.low, 0.02, 1e-12);
  EXPECT_NEAR(*drifting.drift_percent, percent(15 * 0.0015), 0.05);
}

TEST(AbCompare, MoreDriftThanTheRuleAllowsVoids) {
  AbPlan plan = test_plan();
  const auto result = compare_arms(plan, test_blocks(plan, {.effect = 0.02, .drift = -0.0025}));
  EXPECT_EQ(result.verdict, Verdict::kVoid);
  EXPECT_THAT(result.reasons, ElementsAre(HasSubstr("the controls drifted by -3")));
}

TEST(AbCompare, ThroughputIsStepRateTimesAcceptLength) {
  const AbPlan plan = test_plan();
  const auto result = compare_arms(plan, test_blocks(plan, {.effect = 0.02, .block_sd = 0.001, .step_effect = 0.05}));
  ASSERT_TRUE(result.all.step_rate && result.all.accept);
  EXPECT_NEAR(result.all.step_rate->point, 0.05, 0.002);
  EXPECT_NEAR(result.all.accept->point, -0.03, 1e-9);
  EXPECT_NEAR(result.all.step_rate->point + result.all.accept->point, result.all.effect.point, 1e-9);
  EXPECT_THAT(result.caveats, Contains(HasSubstr("release class C")));
}

TEST(AbCompare, PromotionNeedsSizeIntervalAndNoLosingClass) {
  const AbPlan plan = test_plan();
  EXPECT_EQ(compare_arms(plan, test_blocks(plan, {.effect = 0.03, .block_sd = 0.002})).verdict, Verdict::kPass);
  const auto small = compare_arms(plan, test_blocks(plan, {.effect = 0.01, .block_sd = 0.001}));
  EXPECT_EQ(small.verdict, Verdict::kFail);
  EXPECT_THAT(small.reasons, ElementsAre(HasSubstr("below the bar of +1.50 %")));
  EXPECT_FALSE(small.inconclusive);

  auto blocks = test_blocks(
      plan, {.effect = 0.03, .block_sd = 0.002, .cells = {"prose/C1/ctx0", "code/C1/ctx0", "shell/C1/ctx0"}});
  EXPECT_EQ(compare_arms(plan, blocks).verdict, Verdict::kPass);
  for (AbBlock& block : blocks) {
    if (block.role == ArmRole::kCandidate) *block.receipt.cells[1].tok_s *= 0.95;
  }
  const auto losing = compare_arms(plan, blocks);
  EXPECT_THAT(losing.reasons, ElementsAre(HasSubstr("class code is worse: -1.9")));
  EXPECT_LT(losing.cells[1].worse_p, 0.05);
  EXPECT_GT(losing.cells[0].worse_p, 0.5);
  AbPlan declared = plan;
  declared.may_be_worse = {"code"};
  EXPECT_EQ(compare_arms(declared, blocks).verdict, Verdict::kPass);
}

TEST(AbCompare, LatencyIsBetterWhenItIsLess) {
  AbPlan plan = test_plan();
  plan.metric = "itl_ms.p50";
  auto blocks = test_blocks(plan, {});
  for (AbBlock& block : blocks) block.receipt.cells[0].itl_ms.p50 = block.role == ArmRole::kCandidate ? 4.75 : 5.0;
  const auto result = compare_arms(plan, blocks);
  EXPECT_EQ(result.verdict, Verdict::kPass);
  EXPECT_NEAR(percent(result.all.effect.point), 100 * (5.0 / 4.75 - 1), 1e-9);
  EXPECT_TRUE(less_is_better("ttft_alone_s"));
  EXPECT_FALSE(less_is_better("prefill_tok_s"));
  EXPECT_FALSE(less_is_better("jain"));
}

TEST(AbCompare, BracketNonInferiorityMicroAndNull) {
  const AbPlan broken = test_plan(AbQuestion::kBroken);
  EXPECT_EQ(compare_arms(broken, test_blocks(broken, {.effect = -0.03})).verdict, Verdict::kPass);
  EXPECT_EQ(compare_arms(broken, test_blocks(broken, {.effect = -0.08})).verdict, Verdict::kFail);
  const auto unsteady = compare_arms(broken, test_blocks(broken, {.drift = 0.01}));
  EXPECT_EQ(unsteady.verdict, Verdict::kVoid);
  EXPECT_THAT(unsteady.void_reasons, ElementsAre(HasSubstr("the controls differ by +2.02 %")));

  const AbPlan fix = test_plan(AbQuestion::kNonInferiority);
  EXPECT_EQ(compare_arms(fix, test_blocks(fix, {.effect = -0.003, .block_sd = 0.001})).verdict, Verdict::kPass);
  EXPECT_EQ(compare_arms(fix, test_blocks(fix, {.effect = -0.02, .block_sd = 0.001})).verdict, Verdict::kFail);

  const AbPlan micro = test_plan(AbQuestion::kMicro);
  const std::vector<std::string> cells = {"prose/C1/ctx0", "inert/C1/ctx0"};
  EXPECT_EQ(compare_arms(micro, test_blocks(micro, {.effect = 0.005, .block_sd = 0.001, .cells = cells})).verdict,
            Verdict::kPass);
  const auto tiny = compare_arms(micro, test_blocks(micro, {.effect = 0.0015, .block_sd = 0.0001, .cells = cells}));
  EXPECT_THAT(tiny.reasons, ElementsAre(HasSubstr("within twice what the null run shows")));
  auto haunted = test_blocks(micro, {.effect = 0.005, .block_sd = 0.0001, .cells = cells});
  for (AbBlock& block : haunted) {
    if (block.role == ArmRole::kCandidate) *block.receipt.cells[1].tok_s *= 1.004;
  }
  EXPECT_THAT(compare_arms(micro, haunted).reasons, ElementsAre(HasSubstr("inert cell inert/C1/ctx0 shows +0.4")));

  const AbPlan null = test_plan(AbQuestion::kNull);
  EXPECT_EQ(compare_arms(null, test_blocks(null, {.block_sd = 0.003})).verdict, Verdict::kPass);
  EXPECT_EQ(compare_arms(null, test_blocks(null, {.effect = 0.02, .block_sd = 0.001})).verdict, Verdict::kFail);
}

// Each rule, broken alone, must void; without it the same campaign passes.
TEST(AbCompare, EveryVoidRuleVoids) {
  AbPlan plan = test_plan();
  const Truth truth{.effect = 0.03, .block_sd = 0.001};
  ASSERT_EQ(compare_arms(plan, test_blocks(plan, truth)).verdict, Verdict::kPass);
  struct Rule {
    const char* sentence;
    std::function<void(Receipt&)> break_it;
  };
  const std::vector<Rule> rules = {
      {"the GPU fell off", [](Receipt& r) { r.void_reasons = {"the GPU fell off"}; }},
      {"receipt is VOID", [](Receipt& r) { r.verdict = Verdict::kVoid; }},
      {"throttled: thermal", [](Receipt& r) { r.environment.throttle = {"idle", "thermal"}; }},
      {"another process", [](Receipt& r) { r.environment.foreign_processes = {"trainer"}; }},
      {"Xid 31", [](Receipt& r) { r.environment.xid = {31}; }},
      {"client lagged", [](Receipt& r) { r.environment.client_lag_ms_p99 = 5.5; }},
      {"2 of 10 requests failed", [](Receipt& r) { r.cells[0].errors = 2; }},
      {"no token in the last 20.0 of 30.0 s", [](Receipt& r) { r.cells[0].last_token_s = 10; }},
      {"has no tok_s", [](Receipt& r) { r.cells[0].tok_s.reset(); }},
      {"has no logarithm", [](Receipt& r) { r.cells[0].tok_s = 0; }},
      {"is not in the first control", [](Receipt& r) { r.cells.push_back({.id = "new/C1/ctx0"}); }},
      {"build: differs between blocks", [](Receipt& r) { r.build.git = "other"; }},
      {"weights: differs between", [](Receipt& r) { r.model.weights_sha256 = "other"; }},
      {"sampling: differs between", [](Receipt& r) { r.resolved.sampling.temperature = 1; }},
      {"template: differs between", [](Receipt& r) { r.model.template_sha256 = "other"; }},
      {"power limit changed", [](Receipt& r) { r.machine.power_limit_w = 600; }},
      {"controls differ by", [](Receipt& r) { *r.cells[0].tok_s *= 1.02; }},
  };
  size_t control = 8;  // in the middle of the campaign
  while (plan.order[control] != ArmRole::kControl) ++control;
  for (const Rule& rule : rules) {
    auto blocks = test_blocks(plan, truth);
    rule.break_it(blocks[control].receipt);
    const auto result = compare_arms(plan, blocks);
    EXPECT_EQ(result.verdict, Verdict::kVoid) << rule.sentence;
    EXPECT_THAT(result.void_reasons, Contains(HasSubstr(rule.sentence)));
    EXPECT_THAT(result.reasons, testing::Not(IsEmpty()));
  }
}

TEST(AbCompare, CampaignRules) {
  AbPlan plan = test_plan();
  const Truth truth{.effect = 0.03, .block_sd = 0.001};
  auto hot = test_blocks(plan, truth);
  for (size_t i = 0; i < hot.size(); ++i) hot[i].receipt.environment.temp_c_start = 40 + static_cast<double>(i) / 2;
  EXPECT_THAT(compare_arms(plan, hot).void_reasons, Contains(HasSubstr("started at 40 to 48")));

  auto same = test_blocks(plan, truth);
  for (AbBlock& block : same) block.receipt.build.id = "before";
  EXPECT_THAT(compare_arms(plan, same).void_reasons, Contains(HasSubstr("the arms are the same")));

  auto other_weights = test_blocks(plan, truth);
  for (AbBlock& block : other_weights) {
    block.receipt.model.weights_sha256 = block.role == ArmRole::kControl ? "one" : "two";
  }
  EXPECT_THAT(compare_arms(plan, other_weights).void_reasons, Contains(HasSubstr("weights: differs between the arms")));
  plan.may_differ = {"weights"};
  EXPECT_EQ(compare_arms(plan, other_weights).verdict, Verdict::kPass);

  auto longer = test_blocks(plan, truth);
  for (AbBlock& block : longer) {
    auto& settings = block.receipt.resolved.settings;
    settings = {{"bench.window_s", "30"}, {"server.max_num_seqs", block.role == ArmRole::kControl ? "8" : "16"}};
  }
  EXPECT_EQ(compare_arms(plan, longer).verdict, Verdict::kPass);
  for (AbBlock& block : longer) {
    if (block.role == ArmRole::kControl) block.receipt.resolved.settings["bench.window_s"] = "5";
  }
  EXPECT_THAT(compare_arms(plan, longer).void_reasons, Contains(HasSubstr("measuring: differs between the arms")));

  plan.registered_accept = {{"prose/C1/ctx0", 2.0}};
  EXPECT_EQ(compare_arms(plan, test_blocks(plan, truth)).verdict, Verdict::kPass);
  plan.registered_accept = {{"prose/C1/ctx0", 1.9}};
  EXPECT_THAT(compare_arms(plan, test_blocks(plan, truth)).void_reasons,
              Contains(HasSubstr("accepts 2.000 drafts a step; registered are 1.900")));
}

TEST(AbCompare, ASpareQuadReplacesAVoidOne) {
  const AbPlan plan = test_plan(AbQuestion::kPromotion, 5);
  auto blocks = test_blocks(plan, {.effect = 0.03, .block_sd = 0.001});
  blocks[6].receipt.cells[0].errors = 1;
  const auto result = compare_arms(plan, blocks);
  EXPECT_EQ(result.verdict, Verdict::kPass);
  EXPECT_EQ(result.quads_used, 4u);
  EXPECT_THAT(result.void_reasons, ElementsAre(HasSubstr("block 7: cell prose/C1/ctx0: 1 of 10")));
  EXPECT_EQ(compare_arms(plan, std::span(blocks).first(16)).verdict, Verdict::kVoid);
  EXPECT_EQ(compare_arms(plan, {}).verdict, Verdict::kVoid);
}

TEST(AbCompare, TailsBindWhenThereAreEnoughRequests) {
  AbPlan plan = test_plan();
  plan.bars.tail_requests = 1000;
  std::mt19937_64 random(4);
  std::exponential_distribution<double> wait(0.2);
  const auto with_tails = [&](double slower, int requests) {
    auto blocks = test_blocks(plan, {.effect = 0.03, .block_sd = 0.001});
    for (AbBlock& block : blocks) {
      auto& samples = block.receipt.cells[0].samples["itl_ms"];
      for (int i = 0; i < requests; ++i) {
        samples.push_back((10 + wait(random)) * (block.role == ArmRole::kCandidate ? slower : 1));
      }
    }
    return compare_arms(plan, blocks);
  };
  EXPECT_THAT(with_tails(1.25, 200).reasons, Contains(HasSubstr("itl_ms p95 may be")));
  EXPECT_EQ(with_tails(0.8, 200).verdict, Verdict::kPass);
  const auto few = with_tails(1.25, 20);
  EXPECT_EQ(few.verdict, Verdict::kPass);
  EXPECT_THAT(few.caveats, Contains(HasSubstr("2 of 2 latency tails rest on fewer than 1000")));
}

// A bench measures more than one thing: what has no tokens per second is not compared by them.
TEST(AbCompare, CellsWithoutTheMetricAreLeftOut) {
  AbPlan plan = test_plan();
  auto blocks = test_blocks(plan, {.effect = 0.03, .block_sd = 0.001});
  for (AbBlock& block : blocks)
    block.receipt.cells.push_back({.id = "prefill/32768", .measures = {{"prefill_tok_s", 9000}}});
  const auto result = compare_arms(plan, blocks);
  EXPECT_EQ(result.verdict, Verdict::kPass);
  EXPECT_EQ(result.cells.size(), 1u);
  plan.metric = "steps_per_hour";
  EXPECT_THAT(compare_arms(plan, blocks).void_reasons, ElementsAre("no cell of the first control has steps_per_hour"));
}

TEST(AbCompare, SharedBootsAreACaveat) {
  const AbPlan plan = test_plan();
  auto blocks = test_blocks(plan, {.effect = 0.03, .block_sd = 0.001});
  for (AbBlock& block : blocks) block.receipt.arm.boot_id = block.role == ArmRole::kControl ? "a" : "b";
  EXPECT_THAT(compare_arms(plan, blocks).caveats, Contains(HasSubstr("16 blocks ran in 2 boots")));
}

}  // namespace
}  // namespace onelane
