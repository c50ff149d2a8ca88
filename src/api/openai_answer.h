// OpenAiAnswer: the answer to one OpenAI completion or chat request, made of one or more choices.
//
// It starts the generations, collects what they bring, keeps the order of chunks, usage and [DONE], and cancels
// everything when the client goes away or one choice fails. Chat and completions say what a chunk and a body look like.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "api/answer_options.h"
#include "api/event_stream.h"
#include "api/generation.h"
#include "api/router.h"
#include "api/services.h"

namespace onelane {

class OpenAiAnswer : public std::enable_shared_from_this<OpenAiAnswer> {
 public:
  using Json = nlohmann::ordered_json;

  OpenAiAnswer(Services& services, std::shared_ptr<ApiExchange> exchange, AnswerOptions options);
  virtual ~OpenAiAnswer() = default;

  // Starts one generation per request. If the engine refuses one, none runs and the client gets the reason.
  void start(std::vector<GenerationRequest> requests);

 protected:
  struct Choice {
    std::shared_ptr<TextGeneration> generation;
    std::vector<int32_t> tokens;
    std::vector<TokenLogprobs> logprobs;
    std::vector<TokenLogprobs> prompt_logprobs;
    FinishReason finish = FinishReason::kNone;
    RequestStats stats;
    int reasoning_tokens = 0;
  };

  // Streaming: sends what `delta` brought for choice `index`. The choice has it already.
  virtual void send_delta(size_t index, const GenerationDelta& delta) = 0;
  // Otherwise: the choices of the whole answer.
  virtual Json complete_choices() = 0;
  virtual const char* object_name(bool chunk) const = 0;
  // Of all choices; a prompt that several of them share counts once.
  virtual int prompt_tokens() const { return choices_.front().stats.prompt_tokens; }
  // More members of the whole answer, e.g. prompt_logprobs.
  virtual void add_members(Json& body);

  // Sends a chunk with one choice.
  void send_choice(Json choice);
  const std::vector<Choice>& choices() const { return choices_; }
  // The client counts by usage: a step whose text is held back has a chunk, too.
  bool continuous_usage() const { return options_.continuous_usage; }
  Services& services() { return services_; }

 private:
  void on_delta(size_t index, const GenerationDelta& delta);
  void fail(const ApiError& error);
  void cancel();
  void finish();
  Json frame(bool chunk) const;
  Json usage() const;

  Services& services_;
  std::shared_ptr<ApiExchange> exchange_;
  const AnswerOptions options_;
  const std::time_t created_ = std::time(nullptr);
  std::shared_ptr<EventStream> stream_;
  std::vector<Choice> choices_;
  size_t finished_ = 0;
  bool over_ = false;
};

// "stop", "length" or "tool_calls".
const char* openai_finish_reason(FinishReason reason, bool calls);
// The error of a generation that ended for kError, kDeadline or kCancelled.
ApiError generation_error(FinishReason reason, const std::string& error);

// A token's text for logprobs: what is no UTF-8 by itself becomes "bytes:\xe2\x80".
std::string token_text(const Tokenizer& tokenizer, int32_t token);
// vLLM's prompt_logprobs: null for the first token, then {"ID": {"logprob", "rank", "decoded_token"}}.
nlohmann::ordered_json prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                                            const std::vector<TokenLogprobs>& logprobs);

// The text of `json`; bytes that are no UTF-8 are replaced.
std::string json_text_of(const nlohmann::ordered_json& json);

}  // namespace onelane
