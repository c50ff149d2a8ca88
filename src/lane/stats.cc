#include "lane/stats.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>

#include <boost/math/distributions/beta.hpp>
#include <boost/math/distributions/binomial.hpp>
#include <boost/math/distributions/chi_squared.hpp>
#include <boost/math/distributions/non_central_t.hpp>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>

#include "base/check.h"

namespace onelane {
namespace {

namespace bm = boost::math;

double t_quantile(double degrees, double level) { return bm::quantile(bm::students_t(degrees), 0.5 + level / 2); }

// Not std::uniform_int_distribution, whose numbers differ between libraries; the bias of % is below 2^-40 here.
size_t draw(std::mt19937_64& random, size_t below) { return static_cast<size_t>(random() % below); }

Bootstrap run_bootstrap(double point, const std::function<double(std::mt19937_64&)>& redraw, BootstrapOptions options) {
  ONELANE_CHECK(options.draws > 0, "a bootstrap without draws");
  std::mt19937_64 random(options.seed);
  Bootstrap out{point, {}};
  out.draws.reserve(static_cast<size_t>(options.draws));
  for (int i = 0; i < options.draws; ++i) out.draws.push_back(redraw(random));
  std::sort(out.draws.begin(), out.draws.end());
  return out;
}

}  // namespace

double percentile(std::vector<double> values, double q) {
  ONELANE_CHECK(!values.empty() && q >= 0 && q <= 1, "percentile of nothing, or no share");
  const double rank = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const auto at = values.begin() + static_cast<ptrdiff_t>(low);
  std::nth_element(values.begin(), at, values.end());
  if (low + 1 == values.size()) return *at;
  const double above = *std::min_element(at + 1, values.end());
  return *at + (rank - static_cast<double>(low)) * (above - *at);
}

double mean(std::span<const double> values) {
  ONELANE_CHECK(!values.empty(), "mean of nothing");
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double standard_deviation(std::span<const double> values) {
  ONELANE_CHECK(values.size() >= 2, "the spread of a single value");
  const double centre = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - centre) * (value - centre);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

Estimate mean_interval(std::span<const double> values, double level) {
  const auto n = static_cast<double>(values.size());
  const double half = standard_deviation(values) / std::sqrt(n) * t_quantile(n - 1, level);
  const double centre = mean(values);
  return {centre, centre - half, centre + half};
}

double mean_below_zero_p(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  const double error = standard_deviation(values) / std::sqrt(n), centre = mean(values);
  if (error == 0) return centre == 0 ? 0.5 : (centre < 0 ? 0 : 1);
  return bm::cdf(bm::students_t(n - 1), centre / error);
}

double hodges_lehmann(std::span<const double> values) {
  std::vector<double> means;
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = i; j < values.size(); ++j) means.push_back((values[i] + values[j]) / 2);
  }
  return percentile(std::move(means), 0.5);
}

Estimate wilson_interval(int64_t hits, int64_t trials, double level) {
  ONELANE_CHECK(trials >= 1 && hits >= 0 && hits <= trials, "a share of nothing");
  const auto n = static_cast<double>(trials);
  const double share = static_cast<double>(hits) / n, z = bm::quantile(bm::normal(), 0.5 + level / 2);
  const double scale = 1 + z * z / n, centre = (share + z * z / (2 * n)) / scale;
  const double half = z * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale;
  // At the ends the formula gives the end itself but for rounding.
  return {share, hits == 0 ? 0 : centre - half, hits == trials ? 1 : centre + half};
}

double share_at_least(int64_t hits, int64_t trials, double confidence) {
  ONELANE_CHECK(trials >= 1 && hits >= 0 && hits <= trials, "a share of nothing");
  if (hits == 0) return 0;
  return bm::quantile(bm::beta_distribution<>(static_cast<double>(hits), static_cast<double>(trials - hits + 1)),
                      1 - confidence);
}

double share_at_most(int64_t hits, int64_t trials, double confidence) {
  return 1 - share_at_least(trials - hits, trials, confidence);
}

double mcnemar_p(int64_t only_a, int64_t only_b) {
  ONELANE_CHECK(only_a >= 0 && only_b >= 0, "negative counts");
  const int64_t total = only_a + only_b;
  if (total == 0) return 1;
  const bm::binomial coin(static_cast<double>(total), 0.5);
  return std::min(1.0, 2 * bm::cdf(coin, static_cast<double>(std::min(only_a, only_b))));
}

std::vector<double> holm(std::span<const double> p_values) {
  std::vector<size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p_values[a] < p_values[b]; });
  std::vector<double> adjusted(p_values.size());
  double worst = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    worst = std::max(worst, p_values[order[rank]] * static_cast<double>(order.size() - rank));
    adjusted[order[rank]] = std::min(1.0, worst);
  }
  return adjusted;
}

std::optional<double> chi_squared_p(std::span<const int64_t> counts, std::span<const double> probabilities) {
  ONELANE_CHECK(counts.size() == probabilities.size(), "counts and probabilities of different outcomes");
  constexpr double kLeastExpected = 5;  // below it the statistic is not chi-squared distributed
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double statistic = 0, rare_count = 0, rare_expected = 0;
  int outcomes = 0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++outcomes;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * probabilities[i];
    if (expected < kLeastExpected) {
      rare_count += static_cast<double>(counts[i]);
      rare_expected += expected;
    } else {
      add(static_cast<double>(counts[i]), expected);
    }
  }
  // What cannot happen and did is no matter of chance.
  if (rare_expected == 0 && rare_count > 0) return 0;
  if (rare_expected > 0) add(rare_count, rare_expected);
  if (outcomes < 2) return std::nullopt;
  return bm::cdf(bm::complement(bm::chi_squared(outcomes - 1), statistic));
}

Line fit_line(std::span<const double> x, std::span<const double> y, double level) {
  ONELANE_CHECK(x.size() == y.size() && x.size() >= 3, "a line needs three points");
  const double x_mean = mean(x), y_mean = mean(y);
  double xx = 0, xy = 0, residual = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - x_mean) * (x[i] - x_mean);
    xy += (x[i] - x_mean) * (y[i] - y_mean);
  }
  ONELANE_CHECK(xx > 0, "a line through points at one x");
  const double slope = xy / xx, intercept = y_mean - slope * x_mean;
  for (size_t i = 0; i < x.size(); ++i) residual += std::pow(y[i] - intercept - slope * x[i], 2);
  const auto degrees = static_cast<double>(x.size() - 2);
  const double half = std::sqrt(residual / degrees / xx) * t_quantile(degrees, level);
  return {{slope, slope - half, slope + half}, intercept};
}

Bootstrap cluster_bootstrap(size_t clusters, const std::function<double(std::span<const size_t>)>& statistic,
                            BootstrapOptions options) {
  ONELANE_CHECK(clusters > 0, "a bootstrap of nothing");
  std::vector<size_t> picks(clusters);
  std::iota(picks.begin(), picks.end(), size_t{0});
  const double point = statistic(picks);
  return run_bootstrap(
      point,
      [&](std::mt19937_64& random) {
        for (size_t& pick : picks) pick = draw(random, clusters);
        return statistic(picks);
      },
      options);
}

Bootstrap document_bootstrap(std::span<const double> document_means, BootstrapOptions options) {
  return cluster_bootstrap(
      document_means.size(),
      [&](std::span<const size_t> picks) {
        double sum = 0;
        for (const size_t pick : picks) sum += document_means[pick];
        return sum / static_cast<double>(picks.size());
      },
      options);
}

Bootstrap tail_ratio_bootstrap(std::span<const std::vector<double>> candidate,
                               std::span<const std::vector<double>> control, double q, BootstrapOptions options) {
  ONELANE_CHECK(candidate.size() == control.size() && !control.empty(), "blocks without a counterpart");
  const auto tail = [q](const std::vector<double>& values) { return std::log(percentile(values, q)); };
  const auto pool = [](std::span<const std::vector<double>> blocks) {
    std::vector<double> all;
    for (const auto& block : blocks) all.insert(all.end(), block.begin(), block.end());
    return all;
  };
  std::vector<double> drawn[2];
  return run_bootstrap(
      tail(pool(candidate)) - tail(pool(control)),
      [&](std::mt19937_64& random) {
        drawn[0].clear();
        drawn[1].clear();
        for (size_t i = 0; i < control.size(); ++i) {
          const size_t block = draw(random, control.size());
          for (const auto& [values, out] : {std::pair(&candidate[block], &drawn[0]), {&control[block], &drawn[1]}}) {
            for (size_t j = 0; j < values->size(); ++j) out->push_back((*values)[draw(random, values->size())]);
          }
        }
        return tail(drawn[0]) - tail(drawn[1]);
      },
      options);
}

double t_test_power(int64_t n, double true_mean, double sd, double level) {
  ONELANE_CHECK(n >= 2 && sd > 0, "power of less than two values, or without noise");
  const auto count = static_cast<double>(n);
  const double critical = t_quantile(count - 1, level);
  const bm::non_central_t statistic(count - 1, true_mean / sd * std::sqrt(count));
  return bm::cdf(bm::complement(statistic, critical)) + bm::cdf(statistic, -critical);
}

int64_t samples_for_power(double true_mean, double sd, double power, double level) {
  constexpr int64_t kMost = 10'000;
  for (int64_t n = 2; n < kMost; ++n) {
    if (t_test_power(n, true_mean, sd, level) >= power) return n;
  }
  return kMost;
}

}  // namespace onelane
