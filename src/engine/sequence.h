// Sequence: a request on its way through the engine: its tokens, how far they are computed, what it has to report.
//
// Knows how tokens are chosen and when they end; knows nothing of pages, slots' contents or other requests.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cache/slot_state.h"
#include "engine/request.h"
#include "engine/verify.h"

namespace onelane {

class Sequence {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Stage { kWaiting, kPrefill, kDecode, kSpilled };

  // `eos`: -1 for none. `max_len`: most tokens of prompt and answer together.
  Sequence(RequestId id, Request request, EventSink sink, int32_t eos, int max_len);

  RequestId id;  // numbers ascend by arrival
  const Request request;
  const int prompt_tokens;
  const int max_tokens;  // of the answer; resolved

  // -- what the loop keeps here
  Stage stage = Stage::kWaiting;
  int slot = -1;
  int computed = 0;  // positions [0, computed) are in the caches
  std::vector<int> pages;
  std::vector<DraftToken> drafts;  // of the step under way
  int waited = 0;                  // steps since it last got a prompt row
  int boundary = 0;                // page boundary whose slot state was put by; 0: none
  SpilledSequence spilled;
  Stage resume = Stage::kWaiting;  // kSpilled: what it was
  RequestStats stats;

  // Prompt and answer. While decoding the last of them is decided but not computed.
  std::span<const int32_t> tokens() const { return tokens_; }
  bool decoding() const { return stage == Stage::kDecode; }
  // Rows of the prompt that must still be computed. Scoring needs no logits after the last token, so not its row.
  int prompt_left() const { return prompt_rows_ - computed; }
  int prompt_rows() const { return prompt_rows_; }
  bool wants_prompt_logprobs() const { return request.prompt_logprobs >= 0; }
  // Drafts that can still be of use once there are `ahead` more tokens; negative: not even the row before them is.
  int draft_room(int ahead = 0) const;

  // -- times
  void started(Clock::time_point now);
  bool overdue(Clock::time_point now) const { return request.deadline && now >= *request.deadline; }

  // Chooses, records and accepts the token after the last one. Errors: a row that is not finite, a filter that leaves
  // nothing.
  Result<Decision> decide(std::span<const float> logits);
  // Whether decide() would take the best token and needs nothing else of the logits; and that, with this token.
  bool takes_best() const;
  Decision decide(int32_t best);
  // Logits of the row at `position` of the prompt, which say how likely the prompt's next token was.
  Result<void> score(int position, std::span<const float> logits);
  bool ended() const { return finish_ != FinishReason::kNone; }
  FinishReason finish() const { return finish_; }

  void end(FinishReason reason, std::string error = {});
  // Hands what is new to the sink; nothing is called when nothing is. False when the sink threw.
  bool emit();
  Sampler& sampler() { return sampler_; }
  int generated() const { return stats.tokens; }

 private:
  void append(int32_t token, std::span<const float> logits);
  bool is_end(int32_t token) const;

  EventSink sink_;
  const int32_t eos_;
  const int prompt_rows_;
  Sampler sampler_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> end_tokens_;  // may not be chosen before min_tokens
  Clock::time_point submitted_ = Clock::now();
  Clock::time_point started_{};
  Clock::time_point first_token_{};
  FinishReason finish_ = FinishReason::kNone;
  RequestEvent event_;  // what is new
};

}  // namespace onelane
