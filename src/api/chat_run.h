// ChatRun: from a ChatRequest to tokens and back, for the protocols that are not OpenAI's chat.
//
// A protocol says what its answer looks like (ProtocolAnswer); a run starts the generation, feeds the answer, and ends
// everything when the client goes away.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "api/chat_request.h"
#include "api/generation.h"
#include "api/json_fields.h"
#include "api/router.h"
#include "api/services.h"

namespace onelane {

struct ChatJob {
  GenerationRequest request;
  std::string model;
  bool stream = false;
  bool calls = true;           // false: tool_choice is none, so that a call is nobody's
  bool parallel_calls = true;  // false: the answer ends behind its first call
  std::string ignored;         // for the log: what the request asked for and does not get
};

// Reads the sampling fields and encodes the prompt. Problems speak of the client's fields; `prompt_field` is the one
// that holds a prompt that is too long. A limit of tokens beyond the context is lowered: agents send one that has
// nothing to do with the model.
ApiProblem prepare_chat(const Services& services, const ChatRequest& chat, const std::string& prompt_field,
                        ChatJob& out);

// The tokens of the prompt that prepare_chat would make, which may be longer than the context.
ApiProblem count_prompt_tokens(const Services& services, const ChatRequest& chat, size_t& tokens);

struct AnswerUsage {
  int input = 0;      // the whole prompt
  int cached = 0;     // of it, found in the prefix cache
  int output = 0;     // generated
  int reasoning = 0;  // of the output
};

struct AnswerEnd {
  FinishReason reason = FinishReason::kStop;
  std::string stop;  // the stop string that ended the text; empty: none did
  ApiError error;    // kError, kDeadline, kCancelled
  bool failed() const {
    return reason == FinishReason::kError || reason == FinishReason::kDeadline || reason == FinishReason::kCancelled;
  }
};

// An answer as it grows, told in a protocol's events. Pure: no engine and no I/O.
class ProtocolAnswer {
 public:
  // Of an event: its type and its JSON.
  using Emit = std::function<void(std::string_view type, const std::string& json)>;

  virtual ~ProtocolAnswer() = default;
  // Before everything else. Without it no events are told.
  void stream_to(Emit emit) { emit_ = std::move(emit); }

  virtual void open() {}                           // the request was taken
  virtual void use(const AnswerUsage& usage) = 0;  // the numbers so far; before begin() and after it
  virtual void begin() {}                          // the prompt was read
  virtual void add(const CompletionEvent& event) = 0;
  virtual void end(const AnswerEnd& end) = 0;
  virtual std::string body() const = 0;             // the whole answer, after end()
  virtual std::string_view keep_alive() const = 0;  // what a stream says when there is nothing to say

 protected:
  bool streams() const { return emit_ != nullptr; }
  void emit(std::string_view type, const std::string& json) {
    if (emit_) emit_(type, json);
  }

 private:
  Emit emit_;
};

void run_chat(Services& services, ChatJob job, std::shared_ptr<ApiExchange> exchange,
              std::shared_ptr<ProtocolAnswer> answer);

}  // namespace onelane
