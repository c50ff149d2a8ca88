// Choosing a token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace onelane {

struct SamplingParams {
  float temperature = 1.0f;  // 0: the best token, ties to the lower id
  float top_p = 1.0f;        // keep the smallest set of tokens whose probabilities reach this much
  uint64_t seed = 0;
};

// Says what is wrong with a value, naming the parameter.
Result<void> check_sampling(const SamplingParams& params);

// Index of the largest value, ties to the lower; an error when any is NaN or infinite.
Result<int32_t> best_token(std::span<const float> logits);

// A draw for the token at `position`. The random number depends on seed and position alone, so the same seed gives the
// same text whatever else runs, and a position that is verified twice draws the same number twice.
class Sampler {
 public:
  explicit Sampler(const SamplingParams& params) : params_(params) {}
  Result<int32_t> sample(std::span<const float> logits, int64_t position);

 private:
  SamplingParams params_;
  std::vector<std::pair<float, int32_t>> order_;
};

// Natural log of softmax(logits)[token], in double.
double log_probability(std::span<const float> logits, int32_t token);

}  // namespace onelane
