// One cell of a bench: so many streams on one kind of prompt, brought to a steady state and measured for a while
// (spec/operations.md 1.6): drain, scout, launch, ready, window, cancel.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lane/discovery.h"
#include "lane/load.h"
#include "lane/window.h"

namespace onelane {

// How long things may take. The defaults are the community bench's, but for the last three.
struct BenchTiming {
  double window_s = 30;
  double ready_least_s = 2, ready_hold_s = 3;
  double ready_timeout_s = 0;  // 0: by context: 60 below 64k, 120 below 128k, then 180
  double poll_s = 1;
  double drain_hold_s = 1, drain_timeout_s = 120;  // timeout 0: no drain barrier
  double request_s = 600;
  double silence_s = 2;
  double max_lag_s = 0.005;
};

// A server under test, and the connections to it. Streams have clients of their own, so that reading metrics does not
// delay them.
class BenchServer {
 public:
  static Result<std::unique_ptr<BenchServer>> connect(const std::string& url, const std::string& api_key,
                                                      const std::string& model, MetricLookup lookup);

  HttpClient& control() { return *control_; }
  // As many I/O threads as so many streams need: one for 64.
  Result<std::vector<HttpClient*>> stream_clients(int streams);
  const ServerInfo& info() const { return info_; }

  // None without metrics. An error if there are some and they do not come.
  Result<std::optional<ServerReading>> read();
  std::optional<bool> healthy();

 private:
  std::string url_, api_key_;
  MetricLookup lookup_ = MetricLookup::kExact;
  ServerInfo info_;
  std::unique_ptr<HttpClient> control_;
  std::vector<std::unique_ptr<HttpClient>> clients_;
};

struct BenchProgress {
  std::string what;                // "C4 prose ctx 8192"
  std::string phase;               // "drain", "scout", "launch", "window"
  double elapsed_s = 0, of_s = 0;  // of the phase; of_s 0: open-ended
  double tok_s = 0;                // lately
  std::optional<double> running, waiting;
};
using BenchObserver = std::function<void(const BenchProgress&)>;

struct CellPlan {
  std::string workload;  // "filler", "prose"
  int concurrency = 1;
  int64_t context_tokens = 0;
  int64_t max_tokens = 2048;
  bool ignore_eos = true;
  bool literal_space = false;   // of "data: "
  bool count_restarts = false;  // see WindowInput
  bool keep_text = false;
  std::optional<std::string> scout;  // the request that fills the prefix cache: one token, not measured in the window
  std::function<LoadRequest(int stream, int64_t turn, int64_t index)> next;

  std::string id() const;  // "prose/C4/ctx8192"
};

struct ScoutResult {
  std::optional<double> ttft_s;
  std::optional<int64_t> prompt_tokens, cached_tokens;
  std::string problem;
};

struct CellResult {
  std::string id, workload;
  int concurrency = 1;
  int64_t context_tokens = 0;
  std::string skipped;  // why it was not measured; empty: it was
  std::optional<ScoutResult> scout;
  double ready_s = 0;  // launch to window
  WindowNumbers window;
  double client_cpu = 0;  // processors that this program used in the window
  std::vector<StreamTrace> streams;
  // Of answers that came to their own end, where the prompts have oracles (plan.keep_text, EOS respected).
  int64_t right = 0, wrong = 0, not_graded = 0;

  bool measured() const { return skipped.empty(); }
  bool passed() const { return measured() && window.flags.empty(); }
};

// Waits until the server runs and holds no request for a while. False if that does not happen in time.
Result<bool> drain(BenchServer& server, const BenchTiming& timing, const std::string& what,
                   const BenchObserver& observer);

// One token by a stream: time to first text and the prompt's tokens.
ScoutResult scout(HttpClient& client, const std::string& json, double seconds);

// Errors: the server cannot be reached at all. Whatever else goes wrong is a flag of the cell.
Result<CellResult> run_cell(BenchServer& server, const CellPlan& plan, const BenchTiming& timing,
                            const BenchObserver& observer);

}  // namespace onelane
