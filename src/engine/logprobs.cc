#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace onelane {

TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int top) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - peak);
  const double normaliser = peak + std::log(total);

  TokenLogprobs result;
  const float own = logits[static_cast<size_t>(token)];
  result.logprob = own - normaliser;
  for (size_t i = 0; i < logits.size(); ++i) {
    result.rank += logits[i] > own || (logits[i] == own && static_cast<int32_t>(i) < token);
  }
  if (top <= 0) return result;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = static_cast<ptrdiff_t>(std::min<size_t>(static_cast<size_t>(top), order.size()));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (ptrdiff_t i = 0; i < count; ++i) {
    const int32_t id = order[static_cast<size_t>(i)];
    result.top.emplace_back(id, logits[static_cast<size_t>(id)] - normaliser);
  }
  return result;
}

}  // namespace onelane
