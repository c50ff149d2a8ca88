// The numbers of a measured window, and what is wrong with them. Pure: traces and readings in, figures and flags out.
//
// The headline is the community bench's: tokens by usage over the time from the window's start to the last of them
// (spec/operations.md 1.7). Because that divisor hides a stall at the window's end, the wall time stands beside it and
// the difference is judged. Nothing is corrected silently: whatever is off has a flag, and a cell with a flag does not
// pass.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lane/load.h"
#include "lane/scrape.h"

namespace onelane {

// The ready rule of 1.6 over time.
struct ReadyRule {
  double least_s = 2;  // not before
  double hold_s = 3;   // true for so long
  int concurrency = 1;
  bool short_answers = false;  // of at most 512 tokens: streams finish before all of them run, so count what finished
};
class Readiness {
 public:
  explicit Readiness(ReadyRule rule) : rule_(rule) {}
  // `since_launch_s` grows. Without metrics the streams alone decide. True once ready.
  bool update(double since_launch_s, const std::optional<ServerReading>& server, const Load::Now& load);

 private:
  ReadyRule rule_;
  std::optional<double> true_since_;
};

struct WindowReading {
  ServerReading server;
  std::optional<bool> healthy;  // GET /health was 200; not known without such a route
};

struct WindowInput {
  std::vector<StreamTrace> streams;
  HttpClock::time_point launched, start, end;
  std::vector<WindowReading> readings;  // within the window, first and last at its edges
  int concurrency = 1;
  int64_t max_tokens = 0;  // asked of each request
  bool ignore_eos = true;
  bool continuous_usage = true;
  bool count_restarts = true;  // a request that has just begun counts as waiting, as in the community bench
  double silence_s = 2;        // a stream that says nothing for longer is flagged
  double max_lag_s = 0.005;    // p99 of the client's own lateness
  std::vector<double> lag_s;   // of the I/O threads, in the window
};

struct WindowNumbers {
  double window_s = 0;      // wall time
  double last_token_s = 0;  // window start to the last token; 0: none
  // Which truth `tokens` is: "openai_continuous_usage", "openai_stream_chunks_fallback", "prometheus_fallback"; empty:
  // none.
  std::string token_source;
  int64_t tokens = 0;
  std::optional<double> tok_s, wall_tok_s;            // over last_token_s, and over window_s
  std::optional<double> tokens_server, server_tok_s;  // between the first and the last reading
  int64_t tokens_client = 0;                          // by usage, between the same two
  double step_tokens = 0;                             // of one event: 90th percentile of the increases

  int64_t completed = 0, cancelled = 0, failed = 0;  // of all requests since launch
  int64_t restarts = 0;                              // requests that began in the window
  double restart_share = 0;                          // of the streams' time in the window: without text of theirs
  double effective_concurrency = 0;                  // streams between first and last text, averaged over the window
  std::optional<double> running_mean, running_max, waiting_max, kv_usage_max;

  std::optional<double> fairness_min_mean, fairness_min_max, jain;  // of tokens per stream
  double max_gap_s = 0;                        // longest silence of any stream, up to the window's end
  double end_silence_s = 0;                    // of all streams together, at the end
  std::optional<double> gap_p50_s, gap_p99_s;  // between two events of a stream
  std::optional<double> lag_p99_s;

  // Speculation, from the server's counters in the window.
  std::optional<double> accept_rate, accept_length;  // accepted per drafted; accepted per draft block, plus one
  std::optional<double> accepted_per_step;           // accepted over (tokens - accepted)
  std::optional<double> steps_s;                     // (tokens - accepted) a second and stream
  std::optional<double> server_steps_s;              // by the server's own count of steps, all streams together
  std::vector<double> accept_by_position;            // share of draft blocks whose i-th draft was accepted

  // Seconds, one entry a request: first text (cancelled ones included), (last - first) / (tokens - 1), start to last
  // text of complete ones.
  std::vector<double> ttft_s, itl_s, latency_s;

  std::vector<std::string> flags;     // see window_flag_meaning
  std::vector<std::string> problems;  // sentences of failed requests, at most a few
};

WindowNumbers measure_window(const WindowInput& input);

// One sentence on a flag, for reports. Flags: stall_at_end, silent_gap, frozen_while_healthy, tokens_disagree,
// counters_went_back, usage_missing, usage_decreases, null_delta, stream_error, short_output, queue_seen, underfilled,
// capacity_limited, no_tokens, client_lag, unhealthy; and of cells (cell.h): warmup_timed_out, not_drained,
// scout_failed, metrics_lost; and of cold prefill: cache_hit.
std::string window_flag_meaning(const std::string& flag);

// The instrument, not the server, is at fault: nothing follows from the cell.
bool flag_voids(const std::string& flag);

// The cell's streams did not all run: llm-inference-bench prints such cells as an empty set.
bool flag_limits_capacity(const std::string& flag);

}  // namespace onelane
