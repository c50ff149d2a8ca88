#include "engine/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/verify.h"

namespace onelane {
namespace {

using ::testing::ElementsAre;
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
  EXPECT_THAT(check_sampling({.top_k = -2}).error().message, HasSubstr("top_k"));
  EXPECT_TRUE(check_sampling({.top_k = -1}));
  EXPECT_THAT(check_sampling({.min_p = 1.1f}).error().message, HasSubstr("min_p must lie in [0, 1]"));
  EXPECT_THAT(check_sampling({.presence_penalty = 2.1f}).error().message, HasSubstr("presence_penalty"));
  EXPECT_THAT(check_sampling({.frequency_penalty = -2.1f}).error().message, HasSubstr("frequency_penalty"));
  EXPECT_THAT(check_sampling({.repetition_penalty = 0}).error().message, HasSubstr("repetition_penalty"));
  EXPECT_THAT(check_sampling({.logit_bias = {{256, 0.0f}}}, 256).error().message, HasSubstr("token 256"));
  EXPECT_THAT(check_sampling({.logit_bias = {{1, -101.0f}}}, 256).error().message, HasSubstr("[-100, 100]"));
}

// Random logits of a made-up context: a few likely tokens, a long tail.
std::vector<float> random_logits(unsigned seed, size_t count) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(generator);
  return logits;
}

// How far `counts` are from `weights` (any scale), in standard deviations of chi-square.
double chi_square_deviations(const std::vector<int>& counts, const std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  double chi_square = 0;
  double rest_mean = 0;
  double rest_count = 0;
  int degrees = -1;
  const auto add = [&](double count, double mean) {
    chi_square += (count - mean) * (count - mean) / mean;
    ++degrees;
  };
  for (size_t i = 0; i < weights.size(); ++i) {
    const double mean = draws * weights[i] / total;
    if (mean >= 5) {
      add(counts[i], mean);
    } else {
      rest_mean += mean;
      rest_count += counts[i];
    }
  }
  if (rest_mean > 0) add(rest_count, std::max(rest_mean, 1e-9));
  return degrees < 1 ? 0 : (chi_square - degrees) / std::sqrt(2.0 * degrees);
}

TEST(Sampler, TwentyThousandDrawsAtFiftyContextsFollowTheDistribution) {
  for (unsigned context = 0; context < 50; ++context) {
    const auto logits = random_logits(context, 40);
    const float temperature = 0.5f + 0.25f * static_cast<float>(context % 7);
    Sampler sampler({.temperature = temperature, .seed = context});
    std::vector<double> weights;
    for (const float logit : logits) weights.push_back(std::exp(static_cast<double>(logit) / temperature));
    std::vector<int> counts(logits.size());
    for (int i = 0; i < 20000; ++i) ++counts[static_cast<size_t>(*sampler.sample(logits, i))];
    EXPECT_LT(chi_square_deviations(counts, weights), 5) << "context " << context;
  }
}

// The tokens of a speculated run, gathered by position, have the target's distribution, whatever the drafter believes.
TEST(Sampler, DrawsThatVerifyDraftsFollowTheDistribution) {
  int accepted = 0;
  int greedily_accepted = 0;
  for (unsigned context = 0; context < 10; ++context) {
    const auto target = random_logits(context, 30);
    auto believed = target;
    const auto error = random_logits(context + 1000, 30);
    for (size_t i = 0; i < believed.size(); ++i) believed[i] += 0.3f * error[i];
    std::vector<double> weights;
    for (const float logit : target) weights.push_back(std::exp(static_cast<double>(logit)));
    std::vector<int> counts(target.size());
    constexpr int kDraws = 20000;
    const int32_t best = *best_token(believed);
    for (int i = 0; i < kDraws; ++i) {
      Sampler sampler({.seed = static_cast<uint64_t>(i)});
      const std::vector<DraftToken> drafts = {{*sampler.sample(believed, 5), 0}};
      int32_t first = -1;
      const auto verdict = verify(drafts, [&](int row) -> Result<Decision> {
        ONELANE_ASSIGN(const int32_t token, sampler.sample(target, 5 + row));
        if (row == 0) first = token;
        return Decision{token, true};
      });
      ++counts[static_cast<size_t>(first)];
      accepted += verdict->accepted;
      greedily_accepted += first == best;
    }
    EXPECT_LT(chi_square_deviations(counts, weights), 5) << "context " << context;
  }
  // Sharing the race with the drafter makes more drafts agree than its best tokens would.
  EXPECT_GT(accepted, greedily_accepted * 5 / 4) << accepted << " " << greedily_accepted;
}

TEST(Sampler, TopKAndMinPKeepWhatTheySay) {
  const std::vector<float> logits = {1.0f, 3.0f, 3.0f, 2.0f, -5.0f};
  const auto seen = [&](const SamplingParams& params) {
    Sampler sampler(params);
    std::set<int32_t> ids;
    for (int i = 0; i < 3000; ++i) ids.insert(*sampler.sample(logits, i));
    return ids;
  };
  EXPECT_THAT(seen({.seed = 1, .top_k = 1}), ElementsAre(1));  // ties to the lower id
  EXPECT_THAT(seen({.seed = 1, .top_k = 2}), ElementsAre(1, 2));
  EXPECT_THAT(seen({.seed = 1, .top_k = 3}), ElementsAre(1, 2, 3));
  EXPECT_THAT(seen({.temperature = 9, .seed = 1, .top_k = -1}), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(seen({.seed = 1, .min_p = 1}), ElementsAre(1, 2));
  EXPECT_THAT(seen({.seed = 1, .min_p = 0.3f}), ElementsAre(1, 2, 3));  // exp(-1) = 0.37, exp(-2) = 0.14
  EXPECT_THAT(seen({.temperature = 2, .seed = 1, .min_p = 0.3f}), ElementsAre(0, 1, 2, 3));  // after the temperature
  EXPECT_THAT(seen({.top_p = 0.01f, .seed = 1, .top_k = 3}), ElementsAre(1));
  EXPECT_THAT(seen({.temperature = 0, .seed = 1}), ElementsAre(1));
}

TEST(Sampler, TruncatedDrawsKeepTheirProportions) {
  const auto logits = random_logits(77, 300);
  Sampler sampler({.top_p = 0.9f, .seed = 4, .top_k = 20, .min_p = 0.01f});
  std::vector<std::pair<float, size_t>> order;
  for (size_t i = 0; i < logits.size(); ++i) order.emplace_back(-logits[i], i);
  std::sort(order.begin(), order.end());
  const auto weight = [&](size_t rank) { return std::exp(static_cast<double>(order[0].first) - order[rank].first); };
  double total = 0;
  size_t count = 0;
  for (; count < 20 && weight(count) >= 0.01; ++count) total += weight(count);
  std::vector<double> weights(logits.size());
  double kept = 0;
  for (size_t rank = 0; rank < count && kept < 0.9f * total; ++rank) {
    kept += weight(rank);
    weights[order[rank].second] = weight(rank);
  }
  std::vector<int> counts(logits.size());
  for (int i = 0; i < 20000; ++i) ++counts[static_cast<size_t>(*sampler.sample(logits, i))];
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_TRUE(weights[i] > 0 || counts[i] == 0) << i;
  }
  EXPECT_LT(chi_square_deviations(counts, weights), 5);
}

TEST(Sampler, PenaltiesAndBiasBendTheLogits) {
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f, 0.0f};
  const auto best = [&](const SamplingParams& params, std::vector<int32_t> prompt, std::vector<int32_t> taken) {
    Sampler sampler(params);
    sampler.read_prompt(prompt);
    for (const int32_t token : taken) sampler.accept(token);
    return *sampler.sample(logits, 0);
  };
  EXPECT_EQ(best({.temperature = 0}, {0}, {0}), 0);
  EXPECT_EQ(best({.temperature = 0, .presence_penalty = 0.2f}, {}, {0}), 1);
  EXPECT_EQ(best({.temperature = 0, .presence_penalty = 0.2f}, {0}, {}), 0);  // the prompt does not count
  EXPECT_EQ(best({.temperature = 0, .presence_penalty = 0.2f}, {}, {0, 1, 1, 1}), 0);
  EXPECT_EQ(best({.temperature = 0, .frequency_penalty = 0.2f}, {}, {0, 0, 1}), 1);
  EXPECT_EQ(best({.temperature = 0, .frequency_penalty = -1.0f}, {}, {3, 3, 3}), 3);
  EXPECT_EQ(best({.temperature = 0, .repetition_penalty = 1.2f}, {0}, {}), 1);  // here it does
  EXPECT_EQ(best({.temperature = 0, .repetition_penalty = 1.2f}, {0}, {1}), 0);
  EXPECT_EQ(best({.temperature = 0, .logit_bias = {{2, 4.0f}}}, {}, {}), 2);
  EXPECT_EQ(best({.temperature = 0, .logit_bias = {{0, -100.0f}, {1, -100.0f}}}, {}, {}), 3);
  Sampler sampler({.temperature = 0});
  const std::vector<int32_t> forbidden = {0, 1};
  EXPECT_EQ(*sampler.sample(logits, 0, nullptr, forbidden), 3);
  EXPECT_FALSE(sampler.sample(logits, 0, nullptr, std::vector<int32_t>{0, 1, 2, 3}));
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
