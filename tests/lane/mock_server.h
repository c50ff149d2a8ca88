// MockServer: an OpenAI chat server with a scripted model, in this process: it says what the test wants, at the pace
// the test wants, and misbehaves on command. Metrics are vLLM's or SGLang's, and true, unless the flaw is in them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "http/server.h"
#include "lane/chat_stream.h"

namespace onelane {

// What the scripted model answers. Every piece is one token.
struct MockReply {
  int status = 200;  // another one: refused, `error` is the message
  std::string error;
  std::vector<std::string> reasoning, content;
  std::vector<ChatToolCall> tool_calls;
  std::string finish_reason = "stop";
};

enum class MockEngine { kVllm, kSglang, kPlain };  // kPlain: neither /version nor /metrics

struct MockScript {
  MockEngine engine = MockEngine::kVllm;
  std::string model = "mock";
  double first_token_seconds = 0.002;
  double token_seconds = 0.002;  // between two chunks
  int tokens_per_chunk = 1;      // as after a step that accepted drafts
  int max_running = 1 << 20;     // further requests wait
  int64_t kv_tokens = 1 << 20;
  // Called on the I/O thread with the request's JSON. The default answers max_tokens (or 16) words.
  std::function<MockReply(const nlohmann::json& request)> reply = {};
  // Other POST routes, on the I/O thread; null: there is none. What it says of completion_tokens counts as generated.
  std::function<nlohmann::json(const std::string& path, const nlohmann::json& request)> route = {};
  std::string more_metrics = {};                   // appended to /metrics
  std::function<std::string()> live_metrics = {};  // appended too, asked for each time, on the I/O thread
  int64_t max_model_len_tokens = 1 << 18;
  bool lenient = false;  // takes requests that are invalid
};

enum class MockFlaw {
  kNone,
  kFreeze,        // no stream gets a token; /health and /metrics go on as if nothing were wrong
  kFreezeOne,     // the same for the oldest stream alone
  kDoubleCount,   // usage counts every token twice
  kNoUsage,       // chunks without usage, and none at the end
  kUsageAtEnd,    // usage in the last chunk alone
  kNullDelta,     // "delta": null
  kErrorEvent,    // an error in the middle of a stream
  kHangUp,        // the stream ends without [DONE]
  kEndEarly,      // answers stop at 8 tokens, whatever was asked for
  kQueue,         // /metrics shows a request that waits
  kUnderfilled,   // /metrics shows one request less than there are
  kCountersBack,  // counters of /metrics begin again at 0, as after a restart
  kSick,          // /health is 503
};

class MockServer {
 public:
  explicit MockServer(MockScript script = {});
  ~MockServer();

  std::string url() const;
  int port() const { return server_->port(); }
  // From now on, in streams that run as well.
  void plant(MockFlaw flaw) { flaw_ = flaw; }
  void plant_after(double seconds, MockFlaw flaw);

  int64_t generated_tokens() const { return generated_; }
  int running() const { return running_; }
  int64_t requests() const { return requests_; }
  std::vector<nlohmann::json> seen() const;  // bodies of chat requests, in their order

 private:
  struct Stream;
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void begin(std::shared_ptr<Stream> stream);
  void admit_waiting();
  void tick(const std::shared_ptr<Stream>& stream);
  void send_chunk(Stream& stream, nlohmann::json delta, const char* finish_reason);
  void end(const std::shared_ptr<Stream>& stream);
  void answer_whole(const std::shared_ptr<Stream>& stream);
  nlohmann::json usage(const Stream& stream) const;
  std::string metrics() const;
  MockReply scripted(const nlohmann::json& request) const;

  const MockScript script_;
  std::atomic<MockFlaw> flaw_ = MockFlaw::kNone;
  std::atomic<int64_t> generated_ = 0, requests_ = 0;
  std::atomic<int> running_ = 0;

  // The I/O thread's alone.
  std::vector<std::shared_ptr<Stream>> waiting_;
  std::vector<std::shared_ptr<Stream>> streams_;  // running, oldest first
  int64_t prompt_tokens_ = 0, finished_ = 0, chunks_ = 0;

  mutable std::mutex mutex_;
  std::vector<nlohmann::json> seen_;

  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

// The result of `attempt`, made again (at most three times in all) while `good` does not hold of it: a test machine
// that stops for a while makes any server look ill, but not every time.
template <class Attempt, class Good>
auto best_of_three(Attempt attempt, Good good) {
  auto result = attempt();
  for (int i = 1; i < 3 && !good(result); ++i) result = attempt();
  return result;
}

// `text` as one piece a word, spaces kept with the word behind them.
std::vector<std::string> mock_pieces(const std::string& text);

}  // namespace onelane
