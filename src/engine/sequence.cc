#include "engine/sequence.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "engine/logprobs.h"

namespace onelane {
namespace {

double seconds(Sequence::Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Sequence::Sequence(RequestId number, Request what, EventSink sink, int32_t eos, int max_len)
    : id(number),
      request(std::move(what)),
      prompt_tokens(static_cast<int>(request.prompt.size())),
      max_tokens(request.max_tokens >= 0 ? request.max_tokens : max_len - prompt_tokens),
      sink_(std::move(sink)),
      eos_(eos),
      prompt_rows_(max_tokens == 0 && request.prompt_logprobs >= 0 ? prompt_tokens - 1 : prompt_tokens),
      sampler_(request.sampling),
      tokens_(request.prompt) {
  tokens_.reserve(tokens_.size() + static_cast<size_t>(std::min(max_tokens, 4096)));
  stats.prompt_tokens = prompt_tokens;
  sampler_.read_prompt(tokens_);
  end_tokens_ = request.stop_tokens;
  if (!request.ignore_eos && eos_ >= 0) end_tokens_.push_back(eos_);
}

int Sequence::draft_room(int ahead) const {
  return std::min(request.draft_depth, max_tokens - stats.tokens - ahead - 1);
}

void Sequence::started(Clock::time_point now) {
  if (started_ != Clock::time_point{}) return;
  started_ = now;
  stats.queue_seconds = seconds(now - submitted_);
}

bool Sequence::is_end(int32_t token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

Result<Decision> Sequence::decide(std::span<const float> logits) {
  const bool too_early = stats.tokens < request.min_tokens;
  const auto forbidden = too_early ? std::span<const int32_t>(end_tokens_) : std::span<const int32_t>();
  Result<int32_t> token = Error{};
  try {
    token = sampler_.sample(logits, static_cast<int64_t>(tokens_.size()), request.filter.get(), forbidden);
    if (!token) return std::move(token).error();
    if (request.filter) request.filter->accept(*token);
  } catch (const std::exception& thrown) {
    return Error{ErrorCode::kInvalidArgument, format("the token filter failed: {}", thrown.what())};
  }
  append(*token, logits);
  return Decision{*token, !ended()};
}

bool Sequence::takes_best() const {
  return sampler_.takes_best() && request.filter == nullptr && request.logprobs < 0 &&
         stats.tokens >= request.min_tokens;
}

Decision Sequence::decide(int32_t best) {
  append(best, {});
  return Decision{best, !ended()};
}

void Sequence::append(int32_t token, std::span<const float> logits) {
  if (stats.tokens == 0) {
    first_token_ = Clock::now();
    stats.prefill_seconds = seconds(first_token_ - started_);
  }
  sampler_.accept(token);
  tokens_.push_back(token);
  ++stats.tokens;
  if (is_end(token)) {
    event_.stop_token = token;
    end(FinishReason::kStop);
    return;
  }
  event_.tokens.push_back(token);
  if (request.logprobs >= 0) event_.logprobs.push_back(token_logprobs(logits, token, request.logprobs));
  if (stats.tokens >= max_tokens) end(FinishReason::kLength);
}

Result<void> Sequence::score(int position, std::span<const float> logits) {
  if (position + 1 >= prompt_tokens) return {};
  ONELANE_TRY(best_token(logits));
  const int32_t next = tokens_[static_cast<size_t>(position) + 1];
  event_.prompt_logprobs.push_back(token_logprobs(logits, next, request.prompt_logprobs));
  return {};
}

void Sequence::end(FinishReason reason, std::string error) {
  if (ended()) return;
  finish_ = reason;
  event_.error = std::move(error);
}

bool Sequence::emit() {
  const bool prefilling = stats.tokens == 0 && !ended();  // prompt logprobs wait for the first event
  if (prefilling || (event_.tokens.empty() && !ended())) return true;
  const Clock::time_point now = Clock::now();
  if (started_ == Clock::time_point{}) stats.queue_seconds = seconds(now - submitted_);
  if (first_token_ != Clock::time_point{}) stats.decode_seconds = seconds(now - first_token_);
  if (stats.tokens == 0 && started_ != Clock::time_point{}) stats.prefill_seconds = seconds(now - started_);
  RequestEvent event = std::exchange(event_, {});
  event.finish = finish_;
  event.stats = stats;
  if (finish_ == FinishReason::kCancelled || finish_ == FinishReason::kError) event.prompt_logprobs.clear();
  try {
    if (sink_) sink_(std::move(event));
    return true;
  } catch (const std::exception& thrown) {
    log_error("request {}: its event sink threw: {}", id, thrown.what());
  } catch (...) {
    log_error("request {}: its event sink threw", id);
  }
  sink_ = {};  // it is not called again
  return false;
}

}  // namespace onelane
