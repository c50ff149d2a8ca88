#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace onelane {
namespace {

// Uniform in [0, 1) from seed and position (the finaliser of splitmix64).
double uniform(uint64_t seed, uint64_t position) {
  uint64_t value = seed + 0x9e3779b97f4a7c15ULL * (position + 1);
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<double>((value ^ (value >> 31)) >> 11) * 0x1p-53;
}

}  // namespace

Result<void> check_sampling(const SamplingParams& params) {
  if (!(params.temperature >= 0.0f && params.temperature <= 100.0f)) {
    return Error{ErrorCode::kInvalidArgument, format("temperature must lie in [0, 100], not {}", params.temperature)};
  }
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return Error{ErrorCode::kInvalidArgument, format("top_p must lie in (0, 1], not {}", params.top_p)};
  }
  return {};
}

Result<int32_t> best_token(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return Error{ErrorCode::kCorrupt, format("the logit of token {} is not finite", i)};
    }
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

Result<int32_t> Sampler::sample(std::span<const float> logits, int64_t position) {
  ONELANE_ASSIGN(const int32_t best, best_token(logits));
  if (params_.temperature == 0.0f) return best;
  const double peak = logits[static_cast<size_t>(best)];
  order_.clear();
  for (size_t i = 0; i < logits.size(); ++i) order_.emplace_back(logits[i], static_cast<int32_t>(i));
  if (params_.top_p < 1.0f) {
    std::sort(order_.begin(), order_.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
  }
  const auto weight = [&](float logit) { return std::exp((logit - peak) / params_.temperature); };
  double total = 0;
  for (const auto& [logit, id] : order_) total += weight(logit);
  double kept = total;
  if (params_.top_p < 1.0f) {
    kept = 0;
    size_t count = 0;
    while (count < order_.size() && kept < total * params_.top_p) kept += weight(order_[count++].first);
    order_.resize(count);
  }
  double left = uniform(params_.seed, static_cast<uint64_t>(position)) * kept;
  for (const auto& [logit, id] : order_) {
    left -= weight(logit);
    if (left < 0) return id;
  }
  return best;  // rounding left a sliver at the end
}

double log_probability(std::span<const float> logits, int32_t token) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - peak);
  return logits[static_cast<size_t>(token)] - peak - std::log(total);
}

}  // namespace onelane
