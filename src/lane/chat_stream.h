// One measured request to an OpenAI chat route: what was asked, what came back, and when.
//
// Stamps are those of the recv() that completed an event's line, before any JSON is read. Errors are data: a request
// that failed has an outcome and a sentence, and keeps what had arrived until then. Nothing here judges a server; it
// reports which promises of the stream grammar (spec: OpenAI's, with `usage` in every chunk) were kept.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/client.h"
#include "lane/sse.h"

namespace onelane {

struct ChatMessage {
  std::string role, content;
};

struct ChatRequest {
  std::string model;
  std::vector<ChatMessage> messages;
  int64_t max_tokens = 0;  // 0: not sent
  bool stream = true;
  bool continuous_usage = false;  // ask for usage in every chunk (vLLM's name: continuous_usage_stats)
  bool ignore_eos = false;
  // Not sent unless set: the server's defaults decide.
  std::optional<double> temperature = {};
  std::optional<double> top_p = {};
  std::optional<int64_t> seed = {};
  std::string more = {};  // a JSON object whose members are added, or take the place of the above: tools, logprobs
};

// The request's JSON, members in the order of the struct. Error: `more` is not a JSON object.
Result<std::string> chat_request_json(const ChatRequest& request);

enum class ChatOutcome {
  kComplete,   // [DONE] came, or the whole answer without stream
  kCancelled,  // by us
  kFailed,     // see `problem`
};

struct ChatToolCall {
  std::string id, name, arguments;
};

struct ChatResult {
  ChatOutcome outcome = ChatOutcome::kFailed;
  std::string problem;  // a sentence unless complete; also of what was wrong in an answer that came to its end
  HttpEnd end = HttpEnd::kComplete;
  int status = 0;

  std::string content, reasoning;  // empty with keep_text = false
  std::vector<ChatToolCall> tool_calls;
  std::string finish_reason;
  std::string body;  // of an answer that is no stream, as it came

  // Of the last usage that came; not known if none did.
  std::optional<int64_t> prompt_tokens, cached_tokens, completion_tokens;

  // Seconds since the call began. Text is content or reasoning that is not empty.
  std::optional<double> first_text_s, last_text_s, first_reasoning_s, first_content_s;
  double total_s = 0;
  HttpClock::time_point started;

  int64_t text_chunks = 0;
  // Breaches of the stream grammar.
  int64_t text_chunks_without_usage = 0;  // counted only when continuous usage was asked for
  int64_t null_deltas = 0;
  int64_t usage_decreases = 0;
  bool done_marker = false;  // data: [DONE]

  bool complete() const { return outcome == ChatOutcome::kComplete; }
  // Tokens: usage, else chunks of text.
  int64_t tokens() const { return completion_tokens.value_or(text_chunks); }
  // (last text - first text) / (tokens - 1), in seconds. Not known with fewer than two tokens or stamps.
  std::optional<double> itl_s() const;
};

// What one event of the stream brought.
struct ChatDelta {
  HttpClock::time_point at;
  bool text = false;
  std::optional<int64_t> usage;  // cumulative completion tokens, if the event has them
  int64_t tokens = 0;            // their increase since the event before that had them
};

struct ChatOptions {
  double total_seconds = 600;
  double idle_seconds = 0;  // 0: no limit
  bool keep_text = true;
  SseOptions sse = {};
  std::function<void(const ChatDelta&)> on_delta = {};  // on the client's I/O thread; it must not block
};

// Events -> ChatResult. Without sockets, for tests and for whoever has a recorded stream.
class ChatReader {
 public:
  ChatReader(HttpClock::time_point started, bool continuous_usage, ChatOptions options);

  void feed(std::string_view bytes, HttpClock::time_point arrived);
  // The end of the call. `reply` gives status, end and, for other answers than streams, the body.
  ChatResult finish(const HttpReply& reply);
  // Something is wrong with the stream, so that reading on is pointless.
  bool broken() const { return !result_.problem.empty(); }

 private:
  void on_event(std::string_view data, HttpClock::time_point arrived);
  double seconds(HttpClock::time_point at) const;

  const HttpClock::time_point started_;
  const bool continuous_usage_;
  ChatOptions options_;
  SseReader sse_;
  ChatResult result_;
};

// A request under way.
class ChatCall {
 public:
  virtual ~ChatCall() = default;
  virtual void cancel() = 0;
  virtual const ChatResult& wait() = 0;  // not on the I/O thread
  virtual bool ended() const = 0;
};

// Sends `json` (see chat_request_json; `stream` and `continuous_usage` as in it) to /v1/chat/completions. `done` is
// called on the I/O thread and may start others.
std::shared_ptr<ChatCall> start_chat(HttpClient& client, std::string json, bool stream, bool continuous_usage,
                                     ChatOptions options = {}, std::function<void(const ChatResult&)> done = {});

// The same, waited for. A request that cannot be written as JSON is a kFailed result.
ChatResult chat(HttpClient& client, const ChatRequest& request, ChatOptions options = {});

}  // namespace onelane
