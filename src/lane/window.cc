#include "lane/window.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "lane/stats.h"

namespace onelane {
namespace {

using TimePoint = HttpClock::time_point;

constexpr size_t kMaxProblems = 5;
constexpr double kEndRatio = 0.98;         // last token over window (1.7, bias 1)
constexpr double kEndGaps = 3;             // and the silence is longer than so many usual gaps
constexpr double kUnderfilled = 0.98;      // of C, mean of running
constexpr double kCapacityLimited = 0.95;  // the same, 1.6
constexpr double kTokensDisagree = 0.01;   // plus C times a step

constexpr double kEndKnownS = 0.005;
constexpr double kRestartS = 0.25;  // a restart is over by then, or it is a queue

double seconds(HttpClock::duration duration) { return std::chrono::duration<double>(duration).count(); }

struct Flags {
  std::vector<std::string>& list;
  void raise(const char* flag, bool condition) {
    if (condition && std::find(list.begin(), list.end(), flag) == list.end()) list.emplace_back(flag);
  }
};

TimePoint at(const ChatResult& request, double offset_s) {
  return request.started + std::chrono::duration_cast<HttpClock::duration>(std::chrono::duration<double>(offset_s));
}

// Time of [from, to] within the window.
double overlap(const WindowInput& in, TimePoint from, TimePoint to) {
  return std::max(0.0, seconds(std::min(to, in.end) - std::max(from, in.start)));
}

void count_tokens(const WindowInput& in, WindowNumbers& n) {
  int64_t by_usage = 0, by_chunk = 0;
  TimePoint last_usage, last_text;
  std::vector<double> per_stream, steps;
  for (const StreamTrace& stream : in.streams) {
    int64_t usage = 0, chunks = 0;
    for (const TokenEvent& event : stream.events) {
      if (event.at < in.start || event.at > in.end) continue;
      usage += event.tokens;
      chunks += event.text ? 1 : 0;
      if (event.tokens > 0) steps.push_back(event.tokens);
      if (event.tokens > 0) last_usage = std::max(last_usage, event.at);
      if (event.text) last_text = std::max(last_text, event.at);
    }
    by_usage += usage;
    by_chunk += chunks;
    per_stream.push_back(static_cast<double>(usage > 0 ? usage : chunks));
  }
  const TimePoint last = by_usage > 0 ? last_usage : last_text;
  if (by_usage > 0) {
    n.token_source = "openai_continuous_usage";
    n.tokens = by_usage;
  } else if (by_chunk > 0) {
    n.token_source = "openai_stream_chunks_fallback";
    n.tokens = by_chunk;
  }
  if (n.tokens > 0) {
    n.last_token_s = seconds(last - in.start);
    if (n.last_token_s > 0) n.tok_s = static_cast<double>(n.tokens) / n.last_token_s;
    n.wall_tok_s = static_cast<double>(n.tokens) / n.window_s;
  }
  n.end_silence_s = n.window_s - n.last_token_s;
  // Not the largest: a count that jumps must not widen its own tolerance.
  if (!steps.empty()) n.step_tokens = percentile(std::move(steps), 0.9);

  const double total = std::accumulate(per_stream.begin(), per_stream.end(), 0.0);
  if (total <= 0) return;
  const auto [least, most] = std::minmax_element(per_stream.begin(), per_stream.end());
  double squares = 0;
  for (const double tokens : per_stream) squares += tokens * tokens;
  const auto count = static_cast<double>(per_stream.size());
  n.fairness_min_mean = *least / (total / count);
  n.fairness_min_max = *least / *most;
  n.jain = total * total / (count * squares);
}

// Silences end with an event in the window, or with the window.
void measure_gaps(const WindowInput& in, WindowNumbers& n) {
  std::vector<double> gaps;
  for (const StreamTrace& stream : in.streams) {
    TimePoint last = in.start;
    for (const TokenEvent& event : stream.events) {
      if (event.at < in.start || event.at > in.end) continue;
      if (last > in.start) gaps.push_back(seconds(event.at - last));
      n.max_gap_s = std::max(n.max_gap_s, seconds(event.at - last));
      last = event.at;
    }
    n.max_gap_s = std::max(n.max_gap_s, seconds(in.end - last));
  }
  if (gaps.empty()) return;
  n.gap_p50_s = percentile(gaps, 0.5);
  n.gap_p99_s = percentile(gaps, 0.99);
}

void measure_requests(const WindowInput& in, WindowNumbers& n) {
  double decoding_s = 0;
  for (const StreamTrace& stream : in.streams) {
    for (const ChatResult& request : stream.requests) {
      n.completed += request.outcome == ChatOutcome::kComplete;
      n.cancelled += request.outcome == ChatOutcome::kCancelled;
      n.failed += request.outcome == ChatOutcome::kFailed;
      n.restarts += request.started >= in.start && request.started <= in.end;
      if (request.outcome == ChatOutcome::kFailed && n.problems.size() < kMaxProblems) {
        n.problems.push_back(request.problem);
      }
      if (!request.first_text_s) continue;
      n.ttft_s.push_back(*request.first_text_s);
      if (const auto itl = request.itl_s()) n.itl_s.push_back(*itl);
      if (request.complete()) n.latency_s.push_back(*request.last_text_s);
      // A request that the window's end cut off was still decoding then.
      const bool cut = request.outcome == ChatOutcome::kCancelled;
      decoding_s += overlap(in, at(request, *request.first_text_s), cut ? in.end : at(request, *request.last_text_s));
    }
  }
  n.effective_concurrency = decoding_s / n.window_s;
  n.restart_share = std::max(0.0, 1 - decoding_s / (n.window_s * in.concurrency));
}

// Streams that ended a request or began the next one just before: what the server counts of them is on its way.
int restarting(const WindowInput& in, const ServerReading& reading) {
  // When within the reading the server counted is not known, and it knows of a request's end before we do.
  const double slack_s = reading.took_s / 2 + kEndKnownS;
  const auto recent = [&](double since_s) { return since_s >= -slack_s && since_s <= kRestartS; };
  int count = 0;
  for (const StreamTrace& stream : in.streams) {
    count += std::any_of(stream.requests.begin(), stream.requests.end(), [&](const ChatResult& request) {
      const double since_start_s = seconds(reading.at - request.started);
      const bool ended = request.outcome != ChatOutcome::kCancelled;  // else by the window's end
      return recent(since_start_s) || (ended && recent(since_start_s - request.total_s));
    });
  }
  return count;
}

void read_gauges(const WindowInput& in, WindowNumbers& n) {
  std::vector<double> running;
  const auto raise = [](std::optional<double>& most, const std::optional<double>& value) {
    if (value) most = std::max(most.value_or(*value), *value);
  };
  for (const WindowReading& reading : in.readings) {
    const ServerReading& server = reading.server;
    raise(n.kv_usage_max, server.kv_usage);
    raise(n.running_max, server.running);
    // A request that has just come waits for the step under way; that is no queue.
    const int excused = in.count_restarts ? 0 : restarting(in, server);
    if (server.waiting) raise(n.waiting_max, std::max(0.0, *server.waiting - excused));
    if (!server.running) continue;
    const double missing = std::max(0.0, in.concurrency - *server.running);
    running.push_back(*server.running + std::min<double>(missing, excused));
  }
  if (!running.empty()) n.running_mean = mean(running);
}

std::optional<double> increase(const std::optional<double>& from, const std::optional<double>& to) {
  if (!from || !to) return std::nullopt;
  return *to - *from;
}

void read_counters(const WindowInput& in, WindowNumbers& n) {
  if (in.readings.size() < 2) return;
  const ServerReading& first = in.readings.front().server;
  const ServerReading& last = in.readings.back().server;
  const double interval_s = seconds(last.at - first.at);
  if (interval_s <= 0) return;
  n.tokens_server = increase(first.generation_tokens, last.generation_tokens);
  for (const StreamTrace& stream : in.streams) {
    for (const TokenEvent& event : stream.events) {
      if (event.at > first.at && event.at <= last.at) n.tokens_client += event.tokens;
    }
  }
  if (n.tokens_server) n.server_tok_s = *n.tokens_server / interval_s;
  if (const auto steps = increase(first.steps, last.steps)) n.server_steps_s = *steps / interval_s;

  const auto drafts = increase(first.drafts, last.drafts);
  const auto drafted = increase(first.draft_tokens, last.draft_tokens);
  const auto accepted = increase(first.accepted_tokens, last.accepted_tokens);
  if (drafts && accepted && *drafts > 0) n.accept_length = 1 + *accepted / *drafts;
  if (drafted && accepted && *drafted > 0) n.accept_rate = *accepted / *drafted;
  // Every step of a stream gives one token and what was accepted; so this holds where some steps have no drafts, too.
  if (n.tokens_server && accepted && *n.tokens_server > *accepted) {
    n.accepted_per_step = *accepted / (*n.tokens_server - *accepted);
    n.steps_s = (*n.tokens_server - *accepted) / interval_s / in.concurrency;
  } else if (last.accept_length && *last.accept_length >= 1 && n.server_tok_s) {
    n.accept_length = last.accept_length;
    n.accepted_per_step = *last.accept_length - 1;
    n.steps_s = *n.server_tok_s / *last.accept_length / in.concurrency;
  }
  const size_t positions = std::min(first.accepted_by_position.size(), last.accepted_by_position.size());
  for (size_t i = 0; i < positions && drafts && *drafts > 0; ++i) {
    n.accept_by_position.push_back((last.accepted_by_position[i] - first.accepted_by_position[i]) / *drafts);
  }
  // A server may list more positions than it drafts.
  while (!n.accept_by_position.empty() && n.accept_by_position.back() == 0) n.accept_by_position.pop_back();
}

void judge(const WindowInput& in, WindowNumbers& n) {
  Flags flags{n.flags};
  const double c = in.concurrency;
  flags.raise("no_tokens", n.tokens == 0);
  // One gap is always cut off by the window's end; only a silence that stands out is a stall.
  const bool stalled =
      n.last_token_s < kEndRatio * n.window_s && (!n.gap_p50_s || n.end_silence_s > kEndGaps * *n.gap_p50_s);
  flags.raise("stall_at_end", stalled);
  flags.raise("silent_gap", n.max_gap_s > in.silence_s);
  // The longest time in which no stream had anything, with a server that calls itself well.
  std::vector<TimePoint> events = {in.start, in.end};
  for (const StreamTrace& stream : in.streams) {
    for (const TokenEvent& event : stream.events) {
      if (event.at > in.start && event.at < in.end) events.push_back(event.at);
    }
  }
  std::sort(events.begin(), events.end());
  for (size_t i = 1; i < events.size(); ++i) {
    if (seconds(events[i] - events[i - 1]) <= in.silence_s) continue;
    const bool healthy = std::any_of(in.readings.begin(), in.readings.end(), [&](const WindowReading& reading) {
      return reading.healthy.value_or(false) && reading.server.at >= events[i - 1] && reading.server.at <= events[i];
    });
    flags.raise("frozen_while_healthy", healthy);
  }
  flags.raise("unhealthy", std::any_of(in.readings.begin(), in.readings.end(),
                                       [](const WindowReading& reading) { return !reading.healthy.value_or(true); }));

  bool back = false;
  for (size_t i = 1; i < in.readings.size(); ++i) {
    const auto more = increase(in.readings[i - 1].server.generation_tokens, in.readings[i].server.generation_tokens);
    back = back || (more && *more < 0);
  }
  flags.raise("counters_went_back", back);
  if (!back && n.tokens_server && n.token_source == "openai_continuous_usage") {
    const double allowed = kTokensDisagree * *n.tokens_server + c * n.step_tokens;
    flags.raise("tokens_disagree", std::abs(*n.tokens_server - static_cast<double>(n.tokens_client)) > allowed);
  }

  int64_t without_usage = 0, decreases = 0, null_deltas = 0;
  bool cut_short = false;
  for (const StreamTrace& stream : in.streams) {
    for (const ChatResult& request : stream.requests) {
      without_usage += request.text_chunks_without_usage;
      decreases += request.usage_decreases;
      null_deltas += request.null_deltas;
      cut_short = cut_short || (request.complete() && request.tokens() < in.max_tokens);
    }
  }
  flags.raise("usage_missing", in.continuous_usage && without_usage > 0);
  flags.raise("usage_decreases", decreases > 0);
  flags.raise("null_delta", null_deltas > 0);
  flags.raise("stream_error", n.failed > 0);
  flags.raise("short_output", in.ignore_eos && cut_short);

  const bool queued = n.waiting_max.value_or(0) > 0;
  flags.raise("queue_seen", queued);
  flags.raise("underfilled", n.running_mean && *n.running_mean < kUnderfilled * c);
  flags.raise("capacity_limited", queued || (n.running_max && *n.running_max < c) ||
                                      (n.running_mean && *n.running_mean < kCapacityLimited * c));
  if (!in.lag_s.empty()) n.lag_p99_s = percentile(in.lag_s, 0.99);
  flags.raise("client_lag", n.lag_p99_s.value_or(0) > in.max_lag_s);
}

struct FlagMeaning {
  const char* flag;
  const char* meaning;
  bool voids;
};
constexpr std::array kMeanings = {
    FlagMeaning{"stall_at_end", "no token in the last part of the window: the headline's divisor hides it", false},
    FlagMeaning{"silent_gap", "a stream said nothing for longer than the limit", false},
    FlagMeaning{"frozen_while_healthy", "no stream got anything while /health answered 200", false},
    FlagMeaning{"tokens_disagree", "tokens by usage differ from the server's counter by more than 1 %", true},
    FlagMeaning{"counters_went_back", "the server's counters fell: it was restarted in the window", true},
    FlagMeaning{"usage_missing", "chunks of text came without usage", false},
    FlagMeaning{"usage_decreases", "usage, which is cumulative, fell within a stream", false},
    FlagMeaning{"null_delta", "choices[0].delta was not an object: the community bench loses such a stream", false},
    FlagMeaning{"stream_error", "a request failed", false},
    FlagMeaning{"short_output", "a complete answer has fewer tokens than were asked for with ignore_eos", false},
    FlagMeaning{"queue_seen", "requests waited in the window", false},
    FlagMeaning{"underfilled", "on average fewer than 98 % of the streams ran", false},
    FlagMeaning{"capacity_limited", "the streams never all ran, or waited", false},
    FlagMeaning{"no_tokens", "no token came in the window", false},
    FlagMeaning{"client_lag", "this program was late in reading: p99 above the limit", true},
    FlagMeaning{"unhealthy", "/health was not 200 in the window", false},
    FlagMeaning{"warmup_timed_out", "the streams were not all running when the window began", false},
    FlagMeaning{"not_drained", "other requests ran or waited before the cell", true},
    FlagMeaning{"scout_failed", "the request that fills the prefix cache failed", false},
    FlagMeaning{"cache_hit", "a prompt that should be cold was found in the prefix cache", true},
    FlagMeaning{"metrics_lost", "/metrics did not answer in the window", true},
};

const FlagMeaning* find_meaning(const std::string& flag) {
  const auto* found =
      std::find_if(kMeanings.begin(), kMeanings.end(), [&](const FlagMeaning& entry) { return flag == entry.flag; });
  return found == kMeanings.end() ? nullptr : found;
}

}  // namespace

bool Readiness::update(double since_launch_s, const std::optional<ServerReading>& server, const Load::Now& load) {
  bool all = load.with_text >= rule_.concurrency;
  if (server) {
    all = all && server->waiting.value_or(0) == 0;
    const bool running = server->running.value_or(0) >= rule_.concurrency;
    all = all && (running || (rule_.short_answers && load.completed >= rule_.concurrency));
  }
  if (!all) {
    true_since_.reset();
    return false;
  }
  if (!true_since_) true_since_ = since_launch_s;
  return since_launch_s >= rule_.least_s && since_launch_s - *true_since_ >= rule_.hold_s;
}

WindowNumbers measure_window(const WindowInput& input) {
  WindowNumbers numbers;
  numbers.window_s = seconds(input.end - input.start);
  count_tokens(input, numbers);
  measure_gaps(input, numbers);
  measure_requests(input, numbers);
  read_gauges(input, numbers);
  read_counters(input, numbers);
  // Without a token of the streams' own the server's counter is what is left.
  if (numbers.tokens == 0 && numbers.tokens_server && *numbers.tokens_server > 0) {
    numbers.token_source = "prometheus_fallback";
    numbers.tok_s = numbers.server_tok_s;
  }
  judge(input, numbers);
  return numbers;
}

std::string window_flag_meaning(const std::string& flag) {
  const FlagMeaning* found = find_meaning(flag);
  return found == nullptr ? std::string() : found->meaning;
}

bool flag_voids(const std::string& flag) {
  const FlagMeaning* found = find_meaning(flag);
  return found != nullptr && found->voids;
}

bool flag_limits_capacity(const std::string& flag) {
  return flag == "capacity_limited" || flag == "warmup_timed_out" || flag == "queue_seen";
}

}  // namespace onelane
