// Statistics of gates and comparisons: every interval and test that a verdict rests on.
//
// All of it is deterministic: what draws random numbers takes a seed and gives the same on every machine. Samples are
// finite; too few of them are programming errors unless a function says otherwise. A level of 0.95 means two-sided 95
// %.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace onelane {

struct Estimate {
  double point = 0, low = 0, high = 0;
};

// The value below which a share `q` of `values` lies, linear between order statistics (rank q (n - 1)). Any order in.
double percentile(std::vector<double> values, double q);

double mean(std::span<const double> values);
// With n - 1 below the sum; at least two values.
double standard_deviation(std::span<const double> values);

// Mean with Student's t interval; at least two values.
Estimate mean_interval(std::span<const double> values, double level = 0.95);

// One-sided p of "the mean is not below zero", by Student's t; at least two values. Constant values give 0, 0.5 or 1.
double mean_below_zero_p(std::span<const double> values);

// Median of all pairwise means (i <= j): the centre of log ratios over cells, one wild cell notwithstanding.
double hodges_lehmann(std::span<const double> values);

// Wilson's score interval of a share; `trials` at least 1.
Estimate wilson_interval(int64_t hits, int64_t trials, double level = 0.95);

// Exact (Clopper-Pearson) one-sided bounds of a share: what `hits` of `trials` prove. 12 of 12 prove 0.779.
double share_at_least(int64_t hits, int64_t trials, double confidence = 0.95);
double share_at_most(int64_t hits, int64_t trials, double confidence = 0.95);

// Exact two-sided McNemar test: `only_a` items that arm A alone got right, `only_b` those of B. 0 against 6: 0.03125.
double mcnemar_p(int64_t only_a, int64_t only_b);

// Holm's step-down adjustment; the order is kept.
std::vector<double> holm(std::span<const double> p_values);

// Pearson's chi-squared p of `counts` against `probabilities` (which sum to 1). Outcomes expected fewer than five times
// are pooled; nothing when less than two outcomes are left.
std::optional<double> chi_squared_p(std::span<const int64_t> counts, std::span<const double> probabilities);

// Least squares line with the t interval of its slope; at least three points, not all at one x.
struct Line {
  Estimate slope;
  double intercept = 0;
};
Line fit_line(std::span<const double> x, std::span<const double> y, double level = 0.95);

// A percentile bootstrap: the statistic of the sample and, sorted, of every redraw.
struct Bootstrap {
  double point = 0;
  std::vector<double> draws;

  double bound(double q) const { return percentile(draws, q); }  // bound(0.95): one-sided upper 95 % bound
  Estimate interval(double level = 0.95) const { return {point, bound((1 - level) / 2), bound((1 + level) / 2)}; }
};
struct BootstrapOptions {
  int draws = 10'000;
  uint64_t seed = 1;
};

// Redraws whole clusters (documents, blocks): the statistic gets the indices that were drawn, with repeats, as many as
// there are clusters. Tokens of one document are not independent; documents are.
Bootstrap cluster_bootstrap(size_t clusters, const std::function<double(std::span<const size_t>)>& statistic,
                            BootstrapOptions options = {});

// Mean over documents of a per-document mean: the common case.
Bootstrap document_bootstrap(std::span<const double> document_means, BootstrapOptions options = {});

// ln of the ratio of the `q` percentiles of two arms: redraws blocks, then the values in each block. Blocks of
// the arms correspond by index; none may be empty.
Bootstrap tail_ratio_bootstrap(std::span<const std::vector<double>> candidate,
                               std::span<const std::vector<double>> control, double q, BootstrapOptions options = {});

// Power of the two-sided t test of n values with this true mean and standard deviation (noncentral t), and the least n
// with at least `power`, at most 10,000.
double t_test_power(int64_t n, double mean, double sd, double level = 0.95);
int64_t samples_for_power(double mean, double sd, double power = 0.8, double level = 0.95);

}  // namespace onelane
