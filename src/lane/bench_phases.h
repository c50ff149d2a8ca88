// The phases of a bench beside its cells (spec/operations.md 1.8): cold prefill by context, a finite burst, and decode
// streams that a long prompt disturbs. Their figures answer other questions than a window's and never share its table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lane/bench_plan.h"

namespace onelane {

// Cold prompts of one length, one after another: prompt tokens over time to first token.
struct PrefillResult {
  int64_t context_tokens = 0;
  std::vector<ScoutResult> samples;
  std::optional<double> ttft_s;            // median
  std::optional<double> tok_s;             // all prompt tokens over all times
  std::optional<double> server_prefill_s;  // by the server's own histogram: mean of a request
  std::vector<std::string> flags;          // stream_error, cache_hit, usage_missing, not_drained
  std::vector<std::string> problems;
};
Result<PrefillResult> run_prefill(BenchServer& server, BenchAsker& asker, const BenchOptions& options,
                                  int64_t context_tokens, const BenchObserver& observer);

// C streams, a number of requests each, until all are answered: what a client with a finite list of work sees.
struct BurstResult {
  std::string workload;
  int concurrency = 1;
  int64_t context_tokens = 0;
  int64_t requests = 0, failed = 0;
  double wall_s = 0;
  int64_t tokens = 0;  // by the usage at the end of each answer
  std::optional<double> tok_s;
  std::vector<double> ttft_s, itl_s, latency_s;
  std::vector<std::string> flags;  // stream_error, usage_missing, short_output, not_drained
  std::vector<std::string> problems;
};
Result<BurstResult> run_burst(BenchServer& server, BenchAsker& asker, const BenchOptions& options,
                              const PlannedCell& cell, const BenchObserver& observer);

inline constexpr int64_t kArrivalTokens = 16;  // that the long prompt is answered with

// Decode streams in the background, and one long prompt that arrives.
struct MixedResult {
  int64_t context_tokens = 0;
  std::optional<int64_t> prompt_tokens;
  std::optional<double> ttft_alone_s, ttft_under_load_s, slowdown;
  std::optional<double> prefill_tok_s_alone, prefill_tok_s_under_load;
  double before_tok_s = 0, during_tok_s = 0, after_tok_s = 0;  // of the background
  double longest_gap_s = 0;                                    // of any background stream while the prompt was read
  int streams = 0, decoding_at_arrival = 0;
  std::vector<double> timeline_tok_s;  // of the background, second by second, from the middle of the warm-up on
  std::vector<std::string> flags;      // stream_error, underfilled, not_drained
  std::vector<std::string> problems;
};
Result<MixedResult> run_mixed(BenchServer& server, BenchAsker& asker, const BenchOptions& options,
                              int64_t context_tokens, const BenchObserver& observer);

}  // namespace onelane
