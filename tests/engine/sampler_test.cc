#include "engine/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace onelane {
namespace {

using ::testing::HasSubstr;

TEST(BestToken, TiesGoToTheLowerIdAndBadLogitsAreNamed) {
  EXPECT_EQ(*best_token(std::vector<float>{1, 3, 3, 2}), 1);
  for (const float bad :
       {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    const auto refused = best_token(std::vector<float>{1, bad, 3});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("token 1"));
  }
}

TEST(CheckSampling, NamesTheParameter) {
  EXPECT_TRUE(check_sampling({.temperature = 0, .top_p = 1}));
  EXPECT_THAT(check_sampling({.temperature = -0.1f}).error().message, HasSubstr("temperature"));
  EXPECT_THAT(check_sampling({.temperature = std::nanf("")}).error().message, HasSubstr("temperature"));
  EXPECT_THAT(check_sampling({.top_p = 0}).error().message, HasSubstr("top_p"));
  EXPECT_THAT(check_sampling({.top_p = 1.5f}).error().message, HasSubstr("top_p"));
}

TEST(Sampler, FollowsTheDistribution) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f, -30.0f};
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    Sampler sampler({.temperature = temperature, .seed = 3});
    std::vector<double> expected;
    for (const float logit : logits) expected.push_back(std::exp(logit / temperature));
    const double total = std::accumulate(expected.begin(), expected.end(), 0.0);
    constexpr int kDraws = 20000;
    std::vector<int> counts(logits.size());
    for (int i = 0; i < kDraws; ++i) ++counts[*sampler.sample(logits, i)];
    double chi_square = 0;
    int degrees = -1;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double mean = kDraws * expected[i] / total;
      if (mean < 5) continue;
      chi_square += (counts[i] - mean) * (counts[i] - mean) / mean;
      ++degrees;
    }
    EXPECT_LT(chi_square, degrees + 5 * std::sqrt(2.0 * degrees)) << temperature;
  }
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  const std::map<float, size_t> kept = {{0.4f, 1}, {0.6f, 2}, {0.9f, 3}, {1.0f, 4}};
  for (const auto& [top_p, count] : kept) {
    Sampler sampler({.top_p = top_p, .seed = 5});
    std::map<int32_t, int> seen;
    for (int i = 0; i < 4000; ++i) ++seen[*sampler.sample(logits, i)];
    EXPECT_EQ(seen.size(), count) << top_p;
    EXPECT_LT(seen.rbegin()->first, static_cast<int32_t>(count));
  }
}

TEST(Sampler, TheDrawBelongsToSeedAndPosition) {
  const std::vector<float> logits(100, 0.0f);
  Sampler a({.seed = 1});
  Sampler b({.seed = 1});
  Sampler other({.seed = 2});
  (void)a.sample(logits, 99);  // what was drawn before does not matter
  int equal = 0;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(*a.sample(logits, i), *b.sample(logits, i));
    equal += *a.sample(logits, i) == *other.sample(logits, i);
  }
  EXPECT_LT(equal, 20);
}

TEST(LogProbability, SumsToOneAndSurvivesLargeLogits) {
  const std::vector<float> logits = {1000.0f, 999.0f, -1000.0f};
  double total = 0;
  for (int32_t i = 0; i < 3; ++i) total += std::exp(log_probability(logits, i));
  EXPECT_NEAR(total, 1.0, 1e-12);
}

}  // namespace
}  // namespace onelane
