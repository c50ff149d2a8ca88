#include "model/routing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/format.h"
#include "base/mapped_file.h"

namespace onelane {
namespace {

constexpr std::string_view kZipf = "zipf:", kTrace = "trace:";
constexpr double kMaxExponent = 4;
constexpr double kMostPopular = 0.98;  // a share of 1 would need an infinite bias
constexpr double kLeastPopular = 1e-7;

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

// Quantile of a router score, sqrt(softplus(z)) of a standard normal z.
double score_quantile(double p) { return std::sqrt(std::log1p(std::exp(normal_quantile(p)))); }

}  // namespace

Result<Routing> Routing::parse(const std::string& text) {
  Routing routing;
  if (text == "uniform") return routing;
  if (text.starts_with(kZipf)) {
    const char* end = text.data() + text.size();
    const auto [rest, problem] = std::from_chars(text.data() + kZipf.size(), end, routing.exponent_);
    const bool fits = routing.exponent_ >= 0 && routing.exponent_ <= kMaxExponent;
    if (problem == std::errc() && rest == end && fits) return routing;
  }
  if (text.starts_with(kTrace)) {
    const std::string path = text.substr(kTrace.size());
    ONELANE_ASSIGN(const std::string contents, read_file(path));
    auto trace = parse_routing_trace(contents);
    if (!trace) return invalid(path + ": " + trace.error().message);
    routing.counts_ = *std::move(trace);
    return routing;
  }
  return invalid(
      format("routing '{}': it is 'uniform', 'zipf:S' with S from 0 to {}, or 'trace:FILE'", text, kMaxExponent));
}

Result<std::vector<double>> Routing::popularity(int layer, int experts, Random& random) const {
  const auto count = static_cast<size_t>(experts);
  if (!counts_.empty() && layer >= 0) {
    const auto found = counts_.find(layer);
    if (found == counts_.end()) return invalid(format("the routing trace has no layer {}", layer));
    if (found->second.size() != count) {
      return invalid(
          format("the routing trace has {} experts in layer {}, the model {}", found->second.size(), layer, experts));
    }
    return found->second;
  }
  std::vector<size_t> of_rank(count);
  std::iota(of_rank.begin(), of_rank.end(), size_t{0});
  for (size_t i = count; i > 1; --i) std::swap(of_rank[i - 1], of_rank[random.below(i)]);
  std::vector<double> popularity(count);
  for (size_t rank = 0; rank < count; ++rank) {
    popularity[of_rank[rank]] = std::pow(static_cast<double>(rank + 1), -exponent_);
  }
  return popularity;
}

std::vector<float> router_bias(const std::vector<double>& popularity, int topk) {
  std::vector<float> bias(popularity.size(), 0.0F);
  if (topk >= static_cast<int>(popularity.size())) return bias;
  // The factor at which the shares, each capped, sum to topk: more and more of the most popular are at the cap.
  std::vector<double> sorted = popularity;
  std::sort(sorted.rbegin(), sorted.rend());
  double rest = std::accumulate(sorted.begin(), sorted.end(), 0.0);
  double left = topk, factor = left / rest;
  for (size_t i = 0; i < sorted.size() && factor * sorted[i] > kMostPopular && left > kMostPopular; ++i) {
    rest -= sorted[i];
    left -= kMostPopular;
    factor = rest > 0 ? left / rest : 0;
  }
  const double threshold = score_quantile(1 - static_cast<double>(topk) / static_cast<double>(popularity.size()));
  for (size_t expert = 0; expert < bias.size(); ++expert) {
    const double share = std::clamp(factor * popularity[expert], kLeastPopular, kMostPopular);
    bias[expert] = static_cast<float>(threshold - score_quantile(1 - share));
  }
  return bias;
}

}  // namespace onelane
