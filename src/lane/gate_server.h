// GateServer: the server under a gate. Every question of a gate goes through here, so this is where planted faults are
// put into answers, and where it shows that the server went away or began anew in the middle.
//
// All members may be called from several threads, but for plant().
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "http/client.h"
#include "lane/chat_stream.h"
#include "lane/completion_answer.h"
#include "lane/discovery.h"

namespace onelane {

using GateJson = nlohmann::ordered_json;

struct GateAnswer {
  ChatResult chat;
  std::vector<double> gaps_s;      // between chunks that brought text
  std::vector<double> token_at_s;  // since the request: when each token's chunk came
  bool transport_ok() const { return chat.complete() || chat.outcome == ChatOutcome::kCancelled; }
  // What was answered, whole: reasoning, content and calls. Equal for equal answers.
  std::string text() const;
};

// What /metrics says of the process; absent: it does not say.
struct ServerResources {
  std::optional<double> resident_bytes, open_files, threads, pages_used;
  std::optional<double> running, waiting;
  std::optional<double> start_seconds, generated_tokens;
};

// A fault that a gate must catch, planted behind the transport: the server did well, the gate is told otherwise.
struct GateFault {
  std::string name;   // "wrong digit"
  std::string check;  // the check that must fail for it
  std::function<void(const GateJson& request, GateAnswer& answer)> in_answer = {};
  std::function<void(const GateJson& request, CompletionAnswer& answer)> in_completion = {};
  std::function<void(int reading, ServerResources& resources)> in_resources = {};  // reading: counts from 0 per plant()
};

struct AskOptions {
  double seconds = 600;
  int cancel_after = -1;  // hang up when so many chunks with text have come; -1: never
};

class GateServer {
 public:
  // Asks the server what it is. `model` empty: the first that it lists.
  static Result<std::unique_ptr<GateServer>> connect(const HttpClientOptions& options, const std::string& model);

  const ServerInfo& info() const { return info_; }
  // /metrics has what ServerResources needs at least: requests running and waiting, and resident memory.
  bool tells_resources() const { return first_.running && first_.waiting && first_.resident_bytes; }

  // A chat request with streaming and usage: model, temperature 0 and seed are added unless `request` has them.
  GateAnswer ask(GateJson request, const AskOptions& options = {});
  // A request to the completions route, whose prompt is an array of token ids, answered whole: model, temperature 0 and
  // seed are added unless `request` has them. Errors name the field, or how the server refused.
  Result<CompletionAnswer> complete(const GateJson& request);
  // POST /tokenize of a chat request: the whole prompt that it makes.
  Result<std::vector<int32_t>> tokenize(GateJson request) const;
  // Why no document can be forced on this server; empty: it can.
  std::string forced_problem() const;
  // The status that a body gets at the chat route; 0: none came.
  int status_of(const std::string& body);
  // POST /tokenize: tokens of the whole prompt that these messages make.
  std::optional<int64_t> count_tokens(const GateJson& messages);
  ServerResources resources();
  // Waits until no request runs or waits; false: not within `seconds`, or the server does not say.
  bool wait_idle(double seconds);

  // Null: none. The fault outlives its planting.
  void plant(const GateFault* fault);

  // Looks whether it still answers and is still the same process. Afterwards, or as soon as a question found nobody:
  bool lost() const { return lost_; }
  void check_alive();
  std::string lost_reason() const;

 private:
  GateServer(std::unique_ptr<HttpClient> client, ServerInfo info)
      : client_(std::move(client)), info_(std::move(info)) {}
  ServerResources read_resources();
  void lose(std::string reason);

  std::unique_ptr<HttpClient> client_;
  ServerInfo info_;
  const GateFault* fault_ = nullptr;
  std::atomic<int> readings_ = 0;
  std::atomic<int64_t> received_tokens_ = 0;  // of answers that came whole
  std::atomic<bool> lost_ = false;
  ServerResources first_;     // of the process that was connected to
  mutable std::mutex mutex_;  // of what follows
  std::string lost_reason_;
};

}  // namespace onelane
