#include "api/openai_answer.h"

#include <algorithm>
#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "text/utf8.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

Json token_entry(const Tokenizer& tokenizer, int32_t token, double logprob, int rank) {
  return {{"logprob", logprob}, {"rank", rank}, {"decoded_token", token_text(tokenizer, token)}};
}

}  // namespace

std::string json_text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

const char* openai_finish_reason(FinishReason reason, bool calls) {
  if (reason == FinishReason::kLength) return "length";
  return calls ? "tool_calls" : "stop";
}

ApiError generation_error(FinishReason reason, const std::string& error) {
  if (reason == FinishReason::kDeadline) {
    return {.status = 504,
            .message = "the request took longer than this server allows",
            .type = "server_error",
            .code = "deadline_exceeded"};
  }
  if (reason == FinishReason::kCancelled) {
    return {.status = 503, .message = "the server is shutting down", .type = "server_error", .code = "shutting_down"};
  }
  return {.status = 500, .message = error.empty() ? "the generation failed" : error, .type = "server_error"};
}

std::string token_text(const Tokenizer& tokenizer, int32_t token) {
  const std::string_view bytes = tokenizer.bytes(token);
  if (!first_invalid_utf8(bytes)) return std::string(bytes);
  std::string out = "bytes:";
  for (const char byte : bytes) out += format("\\x{:02x}", static_cast<unsigned char>(byte));
  return out;
}

Json prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                          const std::vector<TokenLogprobs>& logprobs) {
  Json out = Json::array({nullptr});
  for (size_t i = 0; i < logprobs.size() && i + 1 < prompt.size(); ++i) {
    Json entry = Json::object();
    const TokenLogprobs& at = logprobs[i];
    for (size_t rank = 0; rank < at.top.size(); ++rank) {
      const auto& [token, logprob] = at.top[rank];
      entry[std::to_string(token)] = token_entry(tokenizer, token, logprob, static_cast<int>(rank) + 1);
    }
    const int32_t own = prompt[i + 1];
    entry[std::to_string(own)] = token_entry(tokenizer, own, at.logprob, at.rank);
    out.push_back(std::move(entry));
  }
  return out;
}

OpenAiAnswer::OpenAiAnswer(Services& services, std::shared_ptr<ApiExchange> exchange, AnswerOptions options)
    : services_(services), exchange_(std::move(exchange)), options_(std::move(options)) {}

void OpenAiAnswer::add_members(Json&) {}

void OpenAiAnswer::start(std::vector<GenerationRequest> requests) {
  // The sinks keep this alive until their last delta; a generation that is cancelled drops its sink.
  const auto self = shared_from_this();
  choices_.resize(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    auto started = TextGeneration::start(services_, std::move(requests[i]),
                                         [self, i](const GenerationDelta& delta) { self->on_delta(i, delta); });
    if (!started) return fail(to_api_error(started.error()));
    choices_[i].generation = *std::move(started);
  }
  const auto closed = [weak = weak_from_this()] {
    if (const auto answer = weak.lock()) answer->cancel();
  };
  if (options_.stream) {
    stream_ = EventStream::start(services_, exchange_, closed);
  } else {
    exchange_->on_close(closed);
  }
}

void OpenAiAnswer::on_delta(size_t index, const GenerationDelta& delta) {
  if (over_) return;
  Choice& choice = choices_[index];
  choice.stats = delta.stats;
  choice.reasoning_tokens = delta.reasoning_tokens;
  if (delta.finish == FinishReason::kError || delta.finish == FinishReason::kDeadline ||
      delta.finish == FinishReason::kCancelled) {
    return fail(generation_error(delta.finish, delta.error));
  }
  if (!delta.prompt_logprobs.empty()) choice.prompt_logprobs = delta.prompt_logprobs;
  if (!stream_) {  // a stream forgets what it has sent
    choice.tokens.insert(choice.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    choice.logprobs.insert(choice.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
  }
  choice.finish = delta.finish;
  if (stream_) send_delta(index, delta);
  if (delta.finish != FinishReason::kNone && ++finished_ == choices_.size()) finish();
}

Json OpenAiAnswer::frame(bool chunk) const {
  return {{"id", options_.id},
          {"object", object_name(chunk)},
          {"created", created_},
          {"model", options_.model},
          {"system_fingerprint", "onelane-" + services_.options.version},
          {"choices", Json::array()}};
}

void OpenAiAnswer::send_choice(Json choice) {
  Json chunk = frame(true);
  chunk["choices"].push_back(std::move(choice));
  if (options_.continuous_usage) chunk["usage"] = usage();
  stream_->data(json_text_of(chunk));
}

Json OpenAiAnswer::usage() const {
  RequestStats sum;
  int reasoning = 0;
  std::array<int, kMaxDraftDepth> accepted{};
  for (const Choice& choice : choices_) {
    sum.tokens += choice.stats.tokens;
    sum.steps += choice.stats.steps;
    sum.draft_blocks += choice.stats.draft_blocks;
    sum.drafted_tokens += choice.stats.drafted_tokens;
    for (size_t i = 0; i < accepted.size(); ++i) sum.accepted[i] += choice.stats.accepted[i];
    reasoning += choice.reasoning_tokens;
  }
  const int prompt = prompt_tokens();
  Json out = {{"prompt_tokens", prompt},
              {"completion_tokens", sum.tokens},
              {"total_tokens", prompt + sum.tokens},
              {"prompt_tokens_details", {{"cached_tokens", choices_.front().stats.cached_tokens}}},
              {"completion_tokens_details", {{"reasoning_tokens", reasoning}}}};
  Json positions = Json::array();
  for (const int count : sum.accepted) {
    if (count > 0) positions.push_back(count);
  }
  out["speculation"] = {{"steps", sum.steps},
                        {"draft_blocks", sum.draft_blocks},
                        {"drafted_tokens", sum.drafted_tokens},
                        {"accepted_tokens", sum.accepted_tokens()},
                        {"mean_accepted", sum.mean_accepted()},
                        {"accepted_by_position", std::move(positions)}};
  return out;
}

void OpenAiAnswer::finish() {
  over_ = true;
  const Choice& first = choices_.front();
  int tokens = 0;
  for (const Choice& choice : choices_) tokens += choice.stats.tokens;
  exchange_->note(format("{}+{} tokens ({} cached), {}", first.stats.prompt_tokens, tokens, first.stats.cached_tokens,
                         finish_reason_name(first.finish)));
  if (stream_) {
    if (options_.include_usage) {
      Json chunk = frame(true);
      chunk["usage"] = usage();
      stream_->data(json_text_of(chunk));
    }
    stream_->done();
    return;
  }
  Json body = frame(false);
  body["choices"] = complete_choices();
  body["usage"] = usage();
  add_members(body);
  exchange_->respond({.body = json_text_of(body)});
}

void OpenAiAnswer::fail(const ApiError& error) {
  if (over_) return;
  cancel();
  exchange_->note(error.code.empty() ? "failed" : error.code);
  if (!stream_) return exchange_->fail(error);
  // The status has gone out as 200; this is how clients learn of an error in the middle.
  stream_->data(openai_error(error).body);
  stream_->done();
}

void OpenAiAnswer::cancel() {
  over_ = true;
  const auto self = shared_from_this();
  for (Choice& choice : choices_) {
    if (choice.generation) choice.generation->cancel();
  }
}

}  // namespace onelane
