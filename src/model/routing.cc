#include "model/routing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "checkpoint/strict_json.h"

namespace onelane {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "onelane-routing/1";
constexpr std::string_view kZipf = "zipf:", kTrace = "trace:";
constexpr double kMaxExponent = 4;
constexpr double kMostPopular = 0.98;  // a share of 1 would need an infinite bias
constexpr double kLeastPopular = 1e-7;

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

// Quantile of a router score, sqrt(softplus(z)) of a standard normal z.
double score_quantile(double p) { return std::sqrt(std::log1p(std::exp(normal_quantile(p)))); }

Result<int> layer_number(const std::string& key) {
  int layer = -1;
  const char* end = key.data() + key.size();
  const auto [rest, problem] = std::from_chars(key.data(), end, layer);
  if (problem != std::errc() || rest != end || layer < 0) return invalid(format("layers: '{}' is no layer", key));
  return layer;
}

Result<std::vector<double>> counts_of(const std::string& layer, const json& list) {
  if (!list.is_array()) return invalid(format("layers: '{}' is not an array", layer));
  std::vector<double> counts;
  for (const json& count : list) {
    if (!count.is_number() || count.get<double>() < 0) {
      return invalid(format("layers: '{}' has a count that is no number from 0 on", layer));
    }
    counts.push_back(count.get<double>());
  }
  if (std::accumulate(counts.begin(), counts.end(), 0.0) <= 0) {
    return invalid(format("layers: '{}' has no count above 0", layer));
  }
  return counts;
}

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
    auto trace = parse_trace(contents);
    if (!trace) return invalid(path + ": " + trace.error().message);
    return trace;
  }
  return invalid(
      format("routing '{}': it is 'uniform', 'zipf:S' with S from 0 to {}, or 'trace:FILE'", text, kMaxExponent));
}

Result<Routing> Routing::parse_trace(std::string_view text) {
  ONELANE_ASSIGN(const json root, parse_strict_json(text));
  if (!root.is_object() || !root.contains("format") || root["format"] != kFormat) {
    return invalid(format("format is not \"{}\"", kFormat));
  }
  if (!root.contains("layers") || !root["layers"].is_object() || root["layers"].empty()) {
    return invalid("layers is not an object with something in it");
  }
  Routing routing;
  for (const auto& [key, list] : root["layers"].items()) {
    ONELANE_ASSIGN(const int layer, layer_number(key));
    ONELANE_ASSIGN(auto counts, counts_of(key, list));
    routing.counts_.insert_or_assign(layer, std::move(counts));
  }
  return routing;
}

std::string Routing::trace_json(const std::map<int, std::vector<int64_t>>& counts) {
  json layers = json::object();
  for (const auto& [layer, of_experts] : counts) layers[format("{}", layer)] = of_experts;
  return json{{"format", kFormat}, {"layers", layers}}.dump() + "\n";
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
