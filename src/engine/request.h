// Request: one generation, from prompt tokens to a finish reason, as the engine sees it. Text is not known here.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/sampler.h"

namespace onelane {

inline constexpr int kMaxDraftDepth = 16;

// Narrows what may be generated, token by token: a grammar. Used by the engine's thread alone.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  // Sets the logits [vocab] of tokens that may not come next to -infinity. At least one token must remain.
  virtual void apply(std::span<float> logits) = 0;
  // `token` was taken.
  virtual void accept(int32_t token) = 0;
};

struct Request {
  std::vector<int32_t> prompt;  // not empty; BOS included where the model wants one
  SamplingParams sampling;
  int max_tokens = 0;  // 0 only scores the prompt; negative: as many as the context takes
  int min_tokens = 0;  // EOS and stop_tokens are not chosen before this many
  bool ignore_eos = false;
  std::vector<int32_t> stop_tokens;  // besides EOS: end the generation and are not part of it
  int logprobs = -1;                 // that many best tokens are reported with each token; -1: no logprobs at all
  int prompt_logprobs = -1;          // the same for every prompt token but the first
  std::optional<std::chrono::steady_clock::time_point> deadline;  // ends with FinishReason::kDeadline
  int draft_depth = kMaxDraftDepth;                               // at most; the schedule decides below it
  std::shared_ptr<TokenFilter> filter;
};

// Natural logs of probabilities under the model's own distribution: before penalties, bias and temperature.
struct TokenLogprobs {
  double logprob = 0;                           // of the token itself
  int rank = 1;                                 // 1: the most likely
  std::vector<std::pair<int32_t, double>> top;  // the best tokens, best first
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kDeadline, kError };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", ...

struct RequestStats {
  int prompt_tokens = 0;
  int cached_tokens = 0;  // of the prompt, found in the prefix cache
  int tokens = 0;         // generated; an end token counts, though it is not reported
  int steps = 0;          // steps of the target model that generated
  int draft_blocks = 0;
  int drafted_tokens = 0;
  std::array<int, kMaxDraftDepth> accepted{};  // accepted[i]: blocks whose draft i was accepted
  int preemptions = 0;
  double queue_seconds = 0;    // until the first prompt row was computed
  double prefill_seconds = 0;  // from there to the first token
  double decode_seconds = 0;

  int accepted_tokens() const;
  // Mean number of drafts accepted per block: tokens per step beyond the first.
  double mean_accepted() const;
};

// What happened to a request in one step.
struct RequestEvent {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;         // one for each of `tokens`, where asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // of prompt tokens 1, 2, ...; all of them, in the first event
  FinishReason finish = FinishReason::kNone;   // anything else: the last event
  int32_t stop_token = -1;                     // kStop: the token that ended it
  std::string error;                           // kError: what went wrong
  RequestStats stats;                          // so far
};

// Called on the engine's thread, which waits: it hands the event on and returns. Exactly one event has a finish reason,
// and it is the last.
using EventSink = std::function<void(RequestEvent event)>;

using RequestId = uint64_t;

}  // namespace onelane
