#include "lane/bench_phases.h"

#include <algorithm>
#include <thread>

#include "base/format.h"
#include "lane/stats.h"

namespace onelane {
namespace {

using TimePoint = HttpClock::time_point;

constexpr size_t kMaxSamples = 100;
constexpr size_t kMaxProblems = 5;
constexpr double kCacheHit = 0.05;  // of a prompt that should be cold

double seconds(HttpClock::duration duration) { return std::chrono::duration<double>(duration).count(); }

HttpClock::duration duration(double s) {
  return std::chrono::duration_cast<HttpClock::duration>(std::chrono::duration<double>(s));
}

void raise(std::vector<std::string>& flags, const char* flag, bool condition) {
  if (condition && std::find(flags.begin(), flags.end(), flag) == flags.end()) flags.emplace_back(flag);
}

void note(std::vector<std::string>& problems, const std::string& problem) {
  if (problems.size() < kMaxProblems) problems.push_back(problem);
}

// Waits for `duration_s`, telling the observer.
void watch(const BenchObserver& observer, BenchProgress progress, double duration_s, const Load& load) {
  const TimePoint begin = HttpClock::now();
  int64_t tokens = load.now().tokens;
  progress.of_s = duration_s;
  for (;;) {
    progress.elapsed_s = seconds(HttpClock::now() - begin);
    if (observer) observer(progress);
    if (progress.elapsed_s >= duration_s) return;
    const double step = std::min(0.25, duration_s - progress.elapsed_s);
    std::this_thread::sleep_for(duration(step));
    const int64_t now = load.now().tokens;
    progress.tok_s = static_cast<double>(now - tokens) / step;
    tokens = now;
  }
}

// Tokens by usage of all streams in (from, to], per second.
double rate(const std::vector<StreamTrace>& streams, TimePoint from, TimePoint to) {
  int64_t tokens = 0;
  for (const StreamTrace& stream : streams) {
    for (const TokenEvent& event : stream.events) {
      if (event.at > from && event.at <= to) tokens += event.tokens;
    }
  }
  return to > from ? static_cast<double>(tokens) / seconds(to - from) : 0;
}

double longest_gap(const std::vector<StreamTrace>& streams, TimePoint from, TimePoint to) {
  double longest = 0;
  for (const StreamTrace& stream : streams) {
    TimePoint last = from;
    for (const TokenEvent& event : stream.events) {
      if (event.at <= from || event.at > to) continue;
      longest = std::max(longest, seconds(event.at - last));
      last = event.at;
    }
    longest = std::max(longest, seconds(to - last));
  }
  return longest;
}

}  // namespace

Result<PrefillResult> run_prefill(BenchServer& server, BenchAsker& asker, const BenchOptions& options,
                                  int64_t context_tokens, const BenchObserver& observer) {
  PrefillResult result{.context_tokens = context_tokens};
  const std::string what = format("prefill ctx{}", context_tokens);
  ONELANE_ASSIGN(const bool drained, drain(server, options.timing, what, observer));
  raise(result.flags, "not_drained", !drained);
  ONELANE_ASSIGN(const auto before, server.read());

  const TimePoint begin = HttpClock::now();
  std::vector<double> times;
  double tokens = 0, total_s = 0;
  for (int i = 0; result.samples.size() < kMaxSamples; ++i) {
    const double elapsed = seconds(HttpClock::now() - begin);
    if (observer) observer({.what = what, .phase = "prefill", .elapsed_s = elapsed, .of_s = options.prefill_s});
    if (i > 0 && elapsed >= options.prefill_s) break;
    ScoutResult sample =
        scout(server.control(), asker.request("BENCH", context_tokens, 1, i, true), options.timing.request_s);
    const bool failed = !sample.problem.empty();
    raise(result.flags, "stream_error", failed);
    if (failed) note(result.problems, sample.problem);
    raise(result.flags, "usage_missing", !failed && !sample.prompt_tokens);
    if (sample.prompt_tokens && sample.cached_tokens) {
      raise(result.flags, "cache_hit",
            static_cast<double>(*sample.cached_tokens) > kCacheHit * static_cast<double>(*sample.prompt_tokens));
    }
    if (!failed && sample.ttft_s) {
      times.push_back(*sample.ttft_s);
      if (sample.prompt_tokens) {
        tokens += static_cast<double>(*sample.prompt_tokens);
        total_s += *sample.ttft_s;
      }
    }
    result.samples.push_back(std::move(sample));
    if (failed) break;  // it would fail again
  }
  if (!times.empty()) result.ttft_s = percentile(times, 0.5);
  if (total_s > 0) result.tok_s = tokens / total_s;
  ONELANE_ASSIGN(const auto after, server.read());
  if (before && after && before->prefill_seconds && after->prefill_seconds && before->prefills && after->prefills &&
      *after->prefills > *before->prefills) {
    result.server_prefill_s =
        (*after->prefill_seconds - *before->prefill_seconds) / (*after->prefills - *before->prefills);
  }
  return result;
}

Result<BurstResult> run_burst(BenchServer& server, BenchAsker& asker, const BenchOptions& options,
                              const PlannedCell& cell, const BenchObserver& observer) {
  BurstResult result{.workload = cell.workload, .concurrency = cell.concurrency, .context_tokens = cell.context_tokens};
  const CellPlan plan = asker.cell(cell.workload, cell.concurrency, cell.context_tokens);
  const std::string what = "burst " + plan.id();
  ONELANE_ASSIGN(const bool drained, drain(server, options.timing, what, observer));
  raise(result.flags, "not_drained", !drained);
  ONELANE_ASSIGN(const auto clients, server.stream_clients(cell.concurrency));

  LoadOptions load_options;
  load_options.streams = cell.concurrency;
  load_options.continuous_usage = false;
  load_options.chat.total_seconds = options.timing.request_s;
  load_options.chat.keep_text = false;
  load_options.next = plan.next;
  std::vector<StreamTrace> traces;
  for (const int64_t each : {int64_t{1}, int64_t{options.burst_per_stream}}) {
    load_options.requests = each * cell.concurrency;
    const TimePoint begin = HttpClock::now();
    Load load(clients, load_options);
    while (load.now().active > 0) {
      if (observer) {
        observer(
            {.what = what, .phase = each == 1 ? "warm-up" : "burst", .elapsed_s = seconds(HttpClock::now() - begin)});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    traces = load.stop();
    result.wall_s = 0;
    for (const StreamTrace& trace : traces) {
      for (const ChatResult& request : trace.requests) {
        result.wall_s = std::max(result.wall_s, seconds(request.started - begin) + request.total_s);
      }
    }
  }
  for (const StreamTrace& trace : traces) {
    for (const ChatResult& request : trace.requests) {
      ++result.requests;
      if (!request.complete()) {
        ++result.failed;
        note(result.problems, request.problem);
        continue;
      }
      result.tokens += request.tokens();
      raise(result.flags, "usage_missing", !request.completion_tokens.has_value());
      raise(result.flags, "short_output", plan.ignore_eos && request.tokens() < plan.max_tokens);
      if (!request.first_text_s) continue;
      result.ttft_s.push_back(*request.first_text_s);
      result.latency_s.push_back(*request.last_text_s);
      if (const auto itl = request.itl_s()) result.itl_s.push_back(*itl);
    }
  }
  raise(result.flags, "stream_error", result.failed > 0);
  if (result.tokens > 0 && result.wall_s > 0) result.tok_s = static_cast<double>(result.tokens) / result.wall_s;
  return result;
}

Result<MixedResult> run_mixed(BenchServer& server, BenchAsker& asker, const BenchOptions& options,
                              int64_t context_tokens, const BenchObserver& observer) {
  MixedResult result{.context_tokens = context_tokens, .streams = options.mixed_streams};
  const std::string what = format("mixed ctx{}", context_tokens);
  ONELANE_ASSIGN(const bool drained, drain(server, options.timing, what, observer));
  raise(result.flags, "not_drained", !drained);
  ONELANE_ASSIGN(const auto clients, server.stream_clients(options.mixed_streams));
  const auto arrive = [&] {
    return scout(server.control(), asker.request("MIXED", context_tokens, kArrivalTokens, -1, true),
                 options.timing.request_s);
  };
  const auto failed = [&](const ScoutResult& arrival) {
    if (arrival.problem.empty()) return false;
    raise(result.flags, "stream_error", true);
    note(result.problems, "arrival: " + arrival.problem);
    return true;
  };
  if (observer) observer({.what = what, .phase = "arrival alone"});
  const ScoutResult alone = arrive();
  if (failed(alone)) return result;

  const std::string background =
      asker.request("MIXED", options.mixed_prompt_tokens, options.mixed_max_tokens, -1, true);
  LoadOptions load_options;
  load_options.streams = options.mixed_streams;
  load_options.chat.total_seconds = options.timing.request_s;
  load_options.chat.keep_text = false;
  load_options.next = [&](int, int64_t, int64_t) { return LoadRequest{background}; };
  Load load(clients, load_options);
  watch(observer, {.what = what, .phase = "background"}, options.mixed_warmup_s, load);
  // Half of the warm-up is for coming to speed, the other is the "before".
  const TimePoint warm = HttpClock::now();
  const TimePoint before = warm - duration(options.mixed_warmup_s / 2);
  result.decoding_at_arrival = std::min(load.now().active, load.now().with_text);
  const ScoutResult loaded = arrive();
  const TimePoint answered = loaded.ttft_s ? warm + duration(*loaded.ttft_s) : HttpClock::now();
  watch(observer, {.what = what, .phase = "after"}, options.mixed_after_s, load);
  const TimePoint end = HttpClock::now();
  const std::vector<StreamTrace> traces = load.stop();

  failed(loaded);
  for (const StreamTrace& trace : traces) {
    for (const ChatResult& request : trace.requests) {
      if (request.outcome != ChatOutcome::kFailed) continue;
      raise(result.flags, "stream_error", true);
      note(result.problems, request.problem);
    }
  }
  raise(result.flags, "underfilled", result.decoding_at_arrival < options.mixed_streams);
  result.prompt_tokens = loaded.prompt_tokens;
  result.ttft_alone_s = alone.ttft_s;
  result.ttft_under_load_s = loaded.ttft_s;
  if (alone.ttft_s && loaded.ttft_s && *alone.ttft_s > 0) result.slowdown = *loaded.ttft_s / *alone.ttft_s;
  const auto speed = [](const ScoutResult& arrival) -> std::optional<double> {
    if (!arrival.prompt_tokens || !arrival.ttft_s || *arrival.ttft_s <= 0) return std::nullopt;
    return static_cast<double>(*arrival.prompt_tokens) / *arrival.ttft_s;
  };
  result.prefill_tok_s_alone = speed(alone);
  result.prefill_tok_s_under_load = speed(loaded);
  result.before_tok_s = rate(traces, before, warm);
  result.during_tok_s = rate(traces, warm, answered);
  result.after_tok_s = rate(traces, answered, end);
  result.longest_gap_s = longest_gap(traces, warm, answered);
  for (TimePoint at = before; at + std::chrono::seconds(1) <= end; at += std::chrono::seconds(1)) {
    result.timeline_tok_s.push_back(rate(traces, at, at + std::chrono::seconds(1)));
  }
  return result;
}

}  // namespace onelane
