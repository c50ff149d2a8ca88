// Choosing a token from logits.
//
// The order is vLLM's: the grammar's mask and forbidden tokens, logit_bias, the penalties; then the temperature; then
// min_p, top_k and top_p, each on what the one before it left. Greedy choice (temperature 0) comes after the penalties.
//
// A draw is a race: token i arrives at time E_i / p_i, E_i exponential, and the first wins, which has probability p_i.
// E_i is a function of seed, position and i alone. So a position that is verified twice draws the same token twice, the
// same seed gives the same text whatever else runs, and a drafter that races with the same E_i over its own
// distribution mostly agrees with the model; speculation pays with sampling as well.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"

namespace onelane {

class TokenFilter;

struct SamplingParams {
  float temperature = 1.0f;  // 0: the best token, ties to the lower id
  float top_p = 1.0f;        // keep the smallest set of tokens whose probabilities reach this much
  uint64_t seed = 0;
  int top_k = 0;                    // keep that many best tokens; 0 or -1: all
  float min_p = 0.0f;               // keep tokens at least this much as likely as the best
  float presence_penalty = 0.0f;    // taken off the logit of every token that was generated
  float frequency_penalty = 0.0f;   // the same, for each time
  float repetition_penalty = 1.0f;  // divides positive logits, multiplies negative ones, of tokens in prompt or answer
  std::vector<std::pair<int32_t, float>> logit_bias;  // token, what is added to its logit
};

// Says what is wrong with a value, naming the parameter and its range. `vocab` bounds the ids of logit_bias; 0:
// unknown.
Result<void> check_sampling(const SamplingParams& params, int vocab = 0);

// Index of the largest value, ties to the lower; an error when any is NaN or infinite.
Result<int32_t> best_token(std::span<const float> logits);

// One request's choice of tokens. Holds what the penalties need: the prompt and what was taken so far.
class Sampler {
 public:
  explicit Sampler(const SamplingParams& params);

  // Tells the repetition penalty what the prompt was.
  void read_prompt(std::span<const int32_t> tokens);
  // `token` was taken: counts for the penalties of later positions.
  void accept(int32_t token);

  // Whether sample() takes the best token, whatever filter and forbidden tokens leave: greedy, nothing adjusted.
  bool takes_best() const { return params_.temperature == 0.0f && params_.logit_bias.empty() && !penalised_; }

  // A draw for the token at `position`. Errors: a logit that is NaN or infinite; a filter that leaves no token.
  Result<int32_t> sample(std::span<const float> logits, int64_t position, TokenFilter* filter = nullptr,
                         std::span<const int32_t> forbidden = {});

 private:
  struct Seen {
    bool prompt = false;
    int generated = 0;
  };
  void adjust(TokenFilter* filter, std::span<const int32_t> forbidden);
  int32_t draw(std::span<const float> logits, float peak, int64_t position);
  void truncate(std::span<const float> logits, float peak);

  SamplingParams params_;
  bool penalised_ = false;
  std::unordered_map<int32_t, Seen> seen_;             // only with penalties
  std::vector<float> adjusted_;                        // scratch: logits after the adjustments
  std::vector<std::pair<float, int32_t>> candidates_;  // scratch: what the truncations leave
};

// Natural log of softmax(logits)[token], in double.
double log_probability(std::span<const float> logits, int32_t token);

}  // namespace onelane
