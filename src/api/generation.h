// TextGeneration: one choice of one answer, from engine events to text: detokenised, searched for stop strings and, for
// chat, read into reasoning, content and tool calls.
//
// Lives on the I/O thread; the engine's events are posted there. Protocols (chat.cc, completions.cc, responses.cc,
// messages.cc) only turn its deltas into JSON.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/services.h"
#include "base/result.h"
#include "engine/request.h"
#include "grammar/source.h"
#include "text/completion_parser.h"

namespace onelane {

struct GenerationRequest {
  Request request;
  std::vector<std::string> stop;         // end the text before the first of these; found across token boundaries
  bool include_stop = false;             // keep it in the text
  bool chat = false;                     // read reasoning, content and calls; otherwise all text is content
  bool thinking = false;                 // chat: the completion starts inside <think>
  bool skip_special = true;              // special tokens give no text (chat always reads them itself)
  std::optional<GrammarSource> grammar;  // what the answer must look like; with_grammar() makes it a filter
  std::string or_text;                   // beside a grammar: what the answer may begin with instead, and be free then
};

// What is new. Text comes out as soon as it is certain not to be part of a stop string, a tag or an unfinished
// character.
struct GenerationDelta {
  std::vector<CompletionEvent> events;         // plain text: kContent
  std::vector<int32_t> tokens;                 // decided since the last delta
  std::vector<TokenLogprobs> logprobs;         // of `tokens`, where asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // in the first delta, where asked for
  FinishReason finish = FinishReason::kNone;   // anything else: the last delta
  std::string stop;                            // kStop: the stop string that ended the text; empty: EOS or a stop token
  std::string error;                           // kError
  RequestStats stats;                          // so far
  int reasoning_tokens = 0;                    // chat: of stats.tokens, those up to </think>
};

class TextGeneration : public std::enable_shared_from_this<TextGeneration> {
 public:
  using DeltaSink = std::function<void(const GenerationDelta& delta)>;

  // Submits to the engine. `sink` is called on the I/O thread, first after start() has returned.
  static Result<std::shared_ptr<TextGeneration>> start(Services& services, GenerationRequest request, DeltaSink sink);

  // Stops within a step and frees everything; no delta comes afterwards.
  void cancel();
  bool finished() const;
  const RequestStats& stats() const;
  // Chat: everything so far, put together. Otherwise only `content` is filled.
  const AssistantMessage& message() const;

  TextGeneration(Services& services, GenerationRequest request, DeltaSink sink);  // for start()
  ~TextGeneration();

 private:
  struct State;
  void on_event(RequestEvent event);
  std::unique_ptr<State> state_;
};

}  // namespace onelane
