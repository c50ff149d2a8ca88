#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/format.h"
#include "base/splitmix.h"
#include "engine/request.h"

namespace onelane {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
// The race: the entry with the largest logit / temperature - log(E_id) wins, which is softmax(logits / temperature).
class Race {
 public:
  Race(const SamplingParams& params, int64_t position)
      : scale_(1.0 / static_cast<double>(params.temperature)),
        base_(splitmix(params.seed + kSplitMixStep * (static_cast<uint64_t>(position) + 1))) {}

  void enter(float logit, int32_t id) {
    const uint64_t bits = splitmix(base_ + kSplitMixStep * (static_cast<uint64_t>(id) + 1));
    const double lead = static_cast<double>(logit) * scale_;
    // With u uniform, -log(-log(1 - u)) <= -log(u) <= (leading zeros + 1) log 2: most tokens lose without a logarithm.
    if (lead + (std::countl_zero(bits) + 1) * 0.6931471805599454 < best_) return;
    const double u = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
    const double key = lead - std::log(-std::log1p(-u));
    if (key > best_ || winner_ < 0) {
      best_ = key;
      winner_ = id;
    }
  }
  int32_t winner() const { return winner_; }

 private:
  const double scale_;
  const uint64_t base_;
  double best_ = -std::numeric_limits<double>::infinity();
  int32_t winner_ = -1;
};

bool better(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

Result<void> in_range(const char* name, float value, double low, double high) {
  if (value >= low && value <= high) return {};
  return Error{ErrorCode::kInvalidArgument, format("{} must lie in [{}, {}], not {}", name, low, high, value)};
}

}  // namespace

Result<void> check_sampling(const SamplingParams& params, int vocab) {
  ONELANE_TRY(in_range("temperature", params.temperature, 0, 100));
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return Error{ErrorCode::kInvalidArgument, format("top_p must lie in (0, 1], not {}", params.top_p)};
  }
  if (params.top_k < -1) {
    return Error{ErrorCode::kInvalidArgument,
                 format("top_k must be at least 1, or 0 or -1 for all, not {}", params.top_k)};
  }
  ONELANE_TRY(in_range("min_p", params.min_p, 0, 1));
  ONELANE_TRY(in_range("presence_penalty", params.presence_penalty, -2, 2));
  ONELANE_TRY(in_range("frequency_penalty", params.frequency_penalty, -2, 2));
  if (!(params.repetition_penalty > 0.0f && std::isfinite(params.repetition_penalty))) {
    return Error{ErrorCode::kInvalidArgument,
                 format("repetition_penalty must be greater than 0, not {}", params.repetition_penalty)};
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0 || (vocab > 0 && token >= vocab)) {
      return Error{ErrorCode::kInvalidArgument,
                   format("logit_bias: token {} is not in the vocabulary of {}", token, vocab)};
    }
    ONELANE_TRY(in_range("logit_bias", bias, -100, 100));
  }
  return {};
}

Result<int32_t> best_token(std::span<const float> logits) {
  // Several chains, which a compiler makes vectors of; then the first token that has the largest logit.
  constexpr size_t kChains = 16;
  if (logits.size() % kChains == 0 && !logits.empty()) {
    float peaks[kChains];
    float zeros[kChains] = {};
    std::copy_n(logits.begin(), kChains, peaks);
    for (size_t i = 0; i < logits.size(); i += kChains) {
      for (size_t c = 0; c < kChains; ++c) {
        const float logit = logits[i + c];
        peaks[c] = logit > peaks[c] ? logit : peaks[c];
        zeros[c] += logit - logit;  // NaN for what is not finite
      }
    }
    if (std::accumulate(zeros, zeros + kChains, 0.0f) == 0) {
      const float peak = *std::max_element(peaks, peaks + kChains);
      return static_cast<int32_t>(std::find(logits.begin(), logits.end(), peak) - logits.begin());
    }
  }
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return Error{ErrorCode::kCorrupt, format("the logit of token {} is not finite", i)};
    }
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

Sampler::Sampler(const SamplingParams& params)
    : params_(params),
      penalised_(params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f ||
                 params.repetition_penalty != 1.0f) {}

void Sampler::read_prompt(std::span<const int32_t> tokens) {
  if (params_.repetition_penalty == 1.0f) return;
  for (const int32_t token : tokens) seen_[token].prompt = true;
}

void Sampler::accept(int32_t token) {
  if (penalised_) ++seen_[token].generated;
}

void Sampler::adjust(TokenFilter* filter, std::span<const int32_t> forbidden) {
  if (filter != nullptr) filter->apply(adjusted_);
  for (const int32_t token : forbidden) {
    if (token >= 0 && static_cast<size_t>(token) < adjusted_.size()) adjusted_[static_cast<size_t>(token)] = kNever;
  }
  for (const auto& [token, bias] : params_.logit_bias) {
    if (static_cast<size_t>(token) < adjusted_.size()) adjusted_[static_cast<size_t>(token)] += bias;
  }
  for (const auto& [token, seen] : seen_) {
    float& logit = adjusted_[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    if (seen.generated == 0) continue;
    logit -= params_.frequency_penalty * static_cast<float>(seen.generated) + params_.presence_penalty;
  }
}

Result<int32_t> Sampler::sample(std::span<const float> logits, int64_t position, TokenFilter* filter,
                                std::span<const int32_t> forbidden) {
  ONELANE_ASSIGN(int32_t best, best_token(logits));
  if (filter != nullptr || !forbidden.empty() || !params_.logit_bias.empty() || !seen_.empty()) {
    adjusted_.assign(logits.begin(), logits.end());
    adjust(filter, forbidden);
    logits = adjusted_;
    best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (!std::isfinite(logits[static_cast<size_t>(best)])) {
      return Error{ErrorCode::kInvalidArgument, "every token is forbidden at this point of the answer"};
    }
  }
  if (params_.temperature == 0.0f) return best;
  return draw(logits, logits[static_cast<size_t>(best)], position);
}

int32_t Sampler::draw(std::span<const float> logits, float peak, int64_t position) {
  Race race(params_, position);
  if (params_.top_k <= 0 && params_.top_p >= 1.0f && params_.min_p <= 0.0f) {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > kNever) race.enter(logits[i], static_cast<int32_t>(i));
    }
    return race.winner();
  }
  truncate(logits, peak);
  for (const auto& [logit, id] : candidates_) race.enter(logit, id);
  return race.winner();
}

// Leaves in candidates_ what min_p, top_k and top_p keep; at least the best token.
void Sampler::truncate(std::span<const float> logits, float peak) {
  const double temperature = params_.temperature;
  const auto weight = [&](float logit) { return std::exp((static_cast<double>(logit) - peak) / temperature); };
  const double floor = params_.min_p > 0.0f ? peak + temperature * std::log(static_cast<double>(params_.min_p))
                                            : -std::numeric_limits<double>::infinity();
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > kNever && logits[i] >= floor) candidates_.emplace_back(logits[i], static_cast<int32_t>(i));
  }
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + params_.top_k, candidates_.end(), better);
    candidates_.resize(static_cast<size_t>(params_.top_k));
  }
  if (params_.top_p >= 1.0f) return;
  double total = 0;
  for (const auto& [logit, id] : candidates_) total += weight(logit);
  // The head of the order is sorted in growing pieces: it mostly ends within the first.
  double kept = 0;
  size_t count = 0;
  size_t sorted = 0;
  while (count < candidates_.size() && kept < total * params_.top_p) {
    if (count == sorted) {
      const size_t end = std::min(candidates_.size(), sorted == 0 ? size_t{64} : sorted * 4);
      const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(sorted);
      std::partial_sort(begin, candidates_.begin() + static_cast<ptrdiff_t>(end), candidates_.end(), better);
      sorted = end;
    }
    kept += weight(candidates_[count++].first);
  }
  candidates_.resize(std::max<size_t>(1, count));
}

double log_probability(std::span<const float> logits, int32_t token) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - peak);
  return logits[static_cast<size_t>(token)] - peak - std::log(total);
}

}  // namespace onelane
