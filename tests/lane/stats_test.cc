// Known values are SciPy's (1.x: stats.t, beta, binomtest, chisquare, linregress, nct), or worked by hand.
#include "lane/stats.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

namespace onelane {
namespace {

TEST(Stats, PercentileIsLinearBetweenOrderStatistics) {
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0), 1);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 1), 4);
  EXPECT_DOUBLE_EQ(percentile({10, 20}, 0.95), 19.5);
  EXPECT_DOUBLE_EQ(percentile({7}, 0.99), 7);
}

RC_GTEST_PROP(Stats, PercentileAgreesWithSorting, (std::vector<int16_t> raw, uint8_t share)) {
  RC_PRE(!raw.empty());
  std::vector<double> values(raw.begin(), raw.end());
  const double q = share / 255.0, rank = q * static_cast<double>(values.size() - 1);
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const auto low = static_cast<size_t>(rank);
  const double next = sorted[std::min(low + 1, sorted.size() - 1)];
  RC_ASSERT(percentile(values, q) == sorted[low] + (rank - static_cast<double>(low)) * (next - sorted[low]));
}

TEST(Stats, StudentsT) {
  const std::vector<double> values = {1.2, 0.4, -0.3, 2.2, 0.9};
  const Estimate interval = mean_interval(values);
  EXPECT_NEAR(interval.point, 0.88, 1e-12);
  EXPECT_NEAR(interval.low, -0.2761485471190346, 1e-9);
  EXPECT_NEAR(interval.high, 2.036148547119035, 1e-9);
  EXPECT_NEAR(mean_below_zero_p(values), 0.9489441984652514, 1e-9);
  EXPECT_NEAR(standard_deviation(values), 0.9311283477587825, 1e-12);
  EXPECT_EQ(mean_below_zero_p(std::vector<double>{-1, -1}), 0);
}

TEST(Stats, HodgesLehmannIgnoresOneWildCell) {
  EXPECT_DOUBLE_EQ(hodges_lehmann(std::vector<double>{1, 2, 3}), 2);
  EXPECT_NEAR(hodges_lehmann(std::vector<double>{1, 1.1, 0.9, 1, 50}), 1.05, 0.06);
}

TEST(Stats, Shares) {
  const Estimate most = wilson_interval(11, 12), few = wilson_interval(3, 10), all = wilson_interval(12, 12);
  EXPECT_NEAR(most.low, 0.6461200888588831, 1e-9);
  EXPECT_NEAR(most.high, 0.985134905595083, 1e-9);
  EXPECT_NEAR(few.low, 0.10779126740630102, 1e-9);
  EXPECT_NEAR(few.high, 0.6032218525388546, 1e-9);
  EXPECT_NEAR(all.low, 0.7575059933447592, 1e-9);
  EXPECT_EQ(all.high, 1);
  EXPECT_NEAR(wilson_interval(0, 20).high, 0.16112515805281935, 1e-9);
  EXPECT_EQ(wilson_interval(0, 20).low, 0);
  EXPECT_NEAR(share_at_least(11, 12), 0.6613193315659674, 1e-9);
  EXPECT_NEAR(share_at_most(11, 12), 0.9957346812224394, 1e-9);
  EXPECT_NEAR(share_at_most(0, 20), 0.13910834066826516, 1e-9);
  // spec/operations.md 2.6 and 2.8: what full marks prove.
  EXPECT_NEAR(share_at_least(12, 12), 0.779, 5e-4);
  EXPECT_NEAR(share_at_least(36, 36), 0.920, 5e-4);
  EXPECT_NEAR(share_at_least(500, 500), 0.994, 5e-4);
  EXPECT_NEAR(share_at_least(5, 5), 0.549, 5e-4);
}

TEST(Stats, McNemarIsExact) {
  EXPECT_DOUBLE_EQ(mcnemar_p(0, 6), 0.03125);
  EXPECT_DOUBLE_EQ(mcnemar_p(5, 0), 0.0625);
  EXPECT_NEAR(mcnemar_p(3, 11), 0.057373046875, 1e-12);
  EXPECT_EQ(mcnemar_p(4, 4), 1);
  EXPECT_EQ(mcnemar_p(0, 0), 1);
}

TEST(Stats, HolmStepsDown) {
  const std::vector<double> adjusted = holm(std::vector<double>{0.01, 0.04, 0.03, 0.005});
  EXPECT_NEAR(adjusted[0], 0.03, 1e-12);
  EXPECT_NEAR(adjusted[1], 0.06, 1e-12);
  EXPECT_NEAR(adjusted[2], 0.06, 1e-12);
  EXPECT_NEAR(adjusted[3], 0.02, 1e-12);
  EXPECT_TRUE(holm({}).empty());
}

TEST(Stats, ChiSquared) {
  EXPECT_NEAR(*chi_squared_p(std::vector<int64_t>{18, 25, 57}, std::vector<double>{0.2, 0.3, 0.5}), 0.3654350685256772,
              1e-9);
  // Rare outcomes are pooled: 4 + 3 expected, 7 seen.
  EXPECT_NEAR(*chi_squared_p(std::vector<int64_t>{93, 7, 0}, std::vector<double>{0.93, 0.04, 0.03}), 1, 1e-9);
  EXPECT_EQ(chi_squared_p(std::vector<int64_t>{99, 1}, std::vector<double>{1.0, 0.0}), 0);
  EXPECT_FALSE(chi_squared_p(std::vector<int64_t>{4, 2}, std::vector<double>{0.5, 0.5}));
}

TEST(Stats, LineWithTheIntervalOfItsSlope) {
  const Line line = fit_line(std::vector<double>{0, 1, 2, 3, 4}, std::vector<double>{1, 3.1, 4.8, 7.2, 8.7});
  EXPECT_NEAR(line.slope.point, 1.95, 1e-12);
  EXPECT_NEAR(line.intercept, 1.06, 1e-12);
  EXPECT_NEAR(line.slope.high - line.slope.point, 0.22277124136985194, 1e-9);
}

TEST(Stats, BootstrapOfDocuments) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> noise(5, 2);
  std::vector<double> documents(400);
  for (double& document : documents) document = noise(random);
  const Bootstrap first = document_bootstrap(documents), again = document_bootstrap(documents);
  EXPECT_EQ(first.draws, again.draws);
  EXPECT_NE(first.draws, document_bootstrap(documents, {.seed = 2}).draws);
  EXPECT_EQ(first.draws.size(), 10'000u);
  // For means of many documents it is the normal interval.
  const Estimate t = mean_interval(documents), boot = first.interval();
  EXPECT_DOUBLE_EQ(boot.point, t.point);
  EXPECT_NEAR(boot.low, t.low, 0.02);
  EXPECT_NEAR(boot.high, t.high, 0.02);
  EXPECT_LT(first.bound(0.95), boot.high);
}

// Ten documents of 50 equal tokens are ten samples: an interval over tokens would be seven times too narrow.
TEST(Stats, BootstrapRedrawsWholeClusters) {
  std::vector<double> documents = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const Bootstrap clustered = cluster_bootstrap(documents.size(), [&](std::span<const size_t> picks) {
    double sum = 0;
    for (const size_t pick : picks) sum += 50 * documents[pick];
    return sum / (50.0 * static_cast<double>(picks.size()));
  });
  EXPECT_NEAR(standard_deviation(clustered.draws), std::sqrt(8.25 / 10), 0.02);
}

TEST(Stats, TailRatio) {
  std::mt19937_64 random(5);
  std::exponential_distribution<double> wait(0.1);
  std::vector<std::vector<double>> control(8), candidate(8);
  for (size_t block = 0; block < 8; ++block) {
    for (int i = 0; i < 300; ++i) {
      control[block].push_back(10 + wait(random));
      candidate[block].push_back(1.1 * (10 + wait(random)));
    }
  }
  const Estimate ratio = tail_ratio_bootstrap(candidate, control, 0.95, {.draws = 400}).interval();
  EXPECT_LT(ratio.low, std::log(1.1));
  EXPECT_GT(ratio.high, std::log(1.1));
  EXPECT_LT(ratio.high - ratio.low, 0.3);
}

// spec/operations.md 4.2: pairs and quads for 80 % power at a true effect of 1.5 %.
TEST(Stats, PowerTable) {
  EXPECT_EQ(samples_for_power(1.5, 0.3), 3);
  EXPECT_EQ(samples_for_power(1.5, 0.5), 4);
  EXPECT_EQ(samples_for_power(1.5, 1.0), 6);
  EXPECT_EQ(samples_for_power(1.5, 1.5), 10);
  EXPECT_EQ(samples_for_power(1.5, 2.0), 16);
  EXPECT_EQ(samples_for_power(1.5, 0.7), 4);
  EXPECT_EQ(samples_for_power(1.5, 1.06), 7);
  EXPECT_NEAR(t_test_power(3, 1.5, 0.35), 0.9352691764840857, 1e-7);
  EXPECT_NEAR(t_test_power(3, 1.5, 0.5), 0.7452680070062837, 1e-7);
  EXPECT_NEAR(t_test_power(4, 1.5, 0.7), 0.804873330500537, 1e-7);
  EXPECT_NEAR(t_test_power(5, 0, 1), 0.05, 1e-7);
}

}  // namespace
}  // namespace onelane
