#include "lane/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace onelane {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

const HttpClock::time_point kZero{std::chrono::hours(1)};
HttpClock::time_point at(int ms) { return kZero + milliseconds(ms); }

// A stream that gets `tokens` every `step` ms from `first` until `last`, in one request that the window's end cuts off.
StreamTrace stream(int first, int last, int step, int tokens) {
  StreamTrace trace;
  ChatResult request{.outcome = ChatOutcome::kCancelled, .started = at(first - 100)};
  request.first_text_s = 0.1;
  request.last_text_s = request.total_s = 0.1 + (last - first) / 1e3;
  int64_t total = 0;
  for (int ms = first; ms <= last; ms += step) {
    trace.events.push_back({at(ms), tokens, true});
    total += tokens;
    ++request.text_chunks;
  }
  request.completion_tokens = total;
  trace.requests.push_back(request);
  return trace;
}

ServerReading reading(int ms, double tokens, double drafts) {
  ServerReading r{.at = at(ms), .running = 2.0, .waiting = 0.0};
  r.generation_tokens = tokens;
  r.drafts = drafts;
  r.draft_tokens = drafts * 5;
  r.accepted_tokens = tokens - drafts;
  r.accepted_by_position = {drafts * 0.9, drafts * 0.5, 0};
  r.steps = drafts / 2;
  return r;
}

// Ten seconds, two streams of 3 tokens every 30 ms.
WindowInput input() {
  return {
      .streams = {stream(-990, 10000, 30, 3), stream(-975, 9985, 30, 3)},
      .launched = at(-1100),
      .start = at(0),
      .end = at(10000),
      .readings = {{reading(0, 198, 66), true}, {reading(5000, 1198, 399), true}, {reading(10000, 2199, 733), true}},
      .concurrency = 2,
      .max_tokens = 2048};
}

TEST(Window, NumbersFollowFromTraces) {
  const WindowNumbers n = measure_window(input());
  EXPECT_THAT(n.flags, IsEmpty());
  EXPECT_DOUBLE_EQ(n.window_s, 10);
  EXPECT_DOUBLE_EQ(n.last_token_s, 9.99);
  EXPECT_EQ(n.token_source, "openai_continuous_usage");
  EXPECT_EQ(n.tokens, 2001);  // 334 and 333 events
  EXPECT_DOUBLE_EQ(*n.tok_s, 2001 / 9.99);
  EXPECT_DOUBLE_EQ(*n.wall_tok_s, 200.1);
  EXPECT_DOUBLE_EQ(*n.tokens_server, 2001);
  EXPECT_EQ(n.tokens_client,
            2001 - 3 * (n.tokens_client == 1998));  // an event at the first reading's moment is before it
  EXPECT_DOUBLE_EQ(*n.fairness_min_max, 333.0 / 334);
  EXPECT_NEAR(*n.jain, 1, 1e-5);
  EXPECT_DOUBLE_EQ(n.max_gap_s, 0.030);
  EXPECT_DOUBLE_EQ(*n.gap_p50_s, 0.030);
  EXPECT_DOUBLE_EQ(n.effective_concurrency, 2);
  EXPECT_DOUBLE_EQ(n.restart_share, 0);
  EXPECT_THAT(n.ttft_s, ElementsAre(0.1, 0.1));
  EXPECT_THAT(n.latency_s, IsEmpty());  // nothing came to its end
  EXPECT_DOUBLE_EQ(*n.accept_length, 3);
  EXPECT_DOUBLE_EQ(*n.accepted_per_step, 2);
  EXPECT_DOUBLE_EQ(*n.accept_rate, 0.4);
  EXPECT_DOUBLE_EQ(*n.steps_s, 66.7 / 2);
  EXPECT_DOUBLE_EQ(*n.server_steps_s, 33.35);
  // tok/s of a stream = steps/s (1 + accepted a step), by construction.
  EXPECT_NEAR(*n.server_tok_s / 2, *n.steps_s * (1 + *n.accepted_per_step), 1e-9);
  ASSERT_EQ(n.accept_by_position.size(), 2u);
  EXPECT_NEAR(n.accept_by_position[1], 0.5, 1e-9);
}

TEST(Window, AStallAtTheEndDoesNotLowerTheHeadlineButFailsTheCell) {
  WindowInput in = input();
  in.streams = {stream(-990, 5010, 30, 3), stream(-975, 5025, 30, 3)};
  in.readings = {};
  const WindowNumbers n = measure_window(in);
  EXPECT_NEAR(*n.tok_s, 200, 1);  // as if nothing had happened
  EXPECT_NEAR(*n.wall_tok_s, 100, 1);
  EXPECT_THAT(n.flags, ElementsAre("stall_at_end", "silent_gap"));
}

TEST(Window, ASlowStreamIsNotAStall) {
  WindowInput in = input();
  in.streams = {stream(-900, 9600, 700, 1), stream(-700, 9800, 700, 1)};
  in.readings = {};
  EXPECT_THAT(measure_window(in).flags, IsEmpty());
}

TEST(Window, TokensMustAgreeWithinOnePercentAndAStepAStream) {
  WindowInput in = input();
  in.readings.back().server.generation_tokens = 2199 + 20;
  EXPECT_THAT(measure_window(in).flags, IsEmpty());
  in.readings.back().server.generation_tokens = 2199 + 40;
  EXPECT_THAT(measure_window(in).flags, ElementsAre("tokens_disagree"));
  EXPECT_TRUE(flag_voids("tokens_disagree"));
}

TEST(Window, GapsBetweenRequestsAreTheClientsInStrictMode) {
  WindowInput in = input();
  // The first stream ends at 4 s and begins again at 5.1 s; the reading at 5 s sees one request.
  StreamTrace first = stream(-990, 4000, 30, 3);
  first.requests[0].outcome = ChatOutcome::kComplete;
  const StreamTrace second = stream(5100, 9990, 30, 3);
  first.events.insert(first.events.end(), second.events.begin(), second.events.end());
  first.requests.push_back(second.requests[0]);
  in.streams[0] = first;
  in.max_tokens = 100;
  for (auto& [server, healthy] : in.readings) server.generation_tokens.reset();
  in.readings[1].server.running = 1.0;
  EXPECT_THAT(measure_window(in).flags, ElementsAre("underfilled", "capacity_limited"));
  in.count_restarts = false;
  const WindowNumbers n = measure_window(in);
  EXPECT_THAT(n.flags, IsEmpty());
  EXPECT_EQ(n.restarts, 1);
  EXPECT_DOUBLE_EQ(*n.running_mean, 2);
  // One stream's restart excuses one request, not two.
  in.readings[1].server.running = 0.0;
  EXPECT_THAT(measure_window(in).flags, ElementsAre("underfilled", "capacity_limited"));
  in.readings[1].server.running = 1.0;
  in.readings[1].server.waiting = 2.0;
  EXPECT_THAT(measure_window(in).flags, ElementsAre("queue_seen", "capacity_limited"));
  EXPECT_NEAR(n.effective_concurrency, 2 - 0.11, 0.01);
}

TEST(Window, LateReadingVoids) {
  WindowInput in = input();
  in.lag_s = std::vector<double>(100, 0.001);
  EXPECT_THAT(measure_window(in).flags, IsEmpty());
  for (int i = 0; i < 5; ++i) in.lag_s[static_cast<size_t>(i)] = 0.02;
  EXPECT_THAT(measure_window(in).flags, ElementsAre("client_lag"));
}

TEST(Window, OfNothingHasNoNumbers) {
  WindowInput in = input();
  in.streams = {StreamTrace{}, StreamTrace{}};
  in.readings = {};
  const WindowNumbers n = measure_window(in);
  EXPECT_EQ(n.tok_s, std::nullopt);
  EXPECT_EQ(n.fairness_min_max, std::nullopt);
  EXPECT_THAT(n.flags, Contains("no_tokens"));
}

TEST(Readiness, HoldsForAWhile) {
  Readiness ready({.least_s = 2, .hold_s = 3, .concurrency = 2});
  const ServerReading full{.running = 2.0, .waiting = 0.0};
  const ServerReading queued{.running = 2.0, .waiting = 1.0};
  const Load::Now one{.with_text = 1}, both{.with_text = 2};
  EXPECT_FALSE(ready.update(0, full, one));
  EXPECT_FALSE(ready.update(1, full, both));
  EXPECT_FALSE(ready.update(3, full, both));
  EXPECT_FALSE(ready.update(3.5, queued, both));  // begins anew
  EXPECT_FALSE(ready.update(4, full, both));
  EXPECT_FALSE(ready.update(6.9, full, both));
  EXPECT_TRUE(ready.update(7, full, both));
}

TEST(Readiness, WithoutMetricsTheStreamsDecide) {
  Readiness ready({.least_s = 0, .hold_s = 0, .concurrency = 2});
  EXPECT_FALSE(ready.update(1, std::nullopt, {.with_text = 1}));
  EXPECT_TRUE(ready.update(2, std::nullopt, {.with_text = 2}));
}

TEST(Readiness, ShortAnswersCountWhatFinished) {
  const ServerReading thin{.running = 1.0, .waiting = 0.0};
  Readiness strict({.least_s = 0, .hold_s = 0, .concurrency = 2});
  EXPECT_FALSE(strict.update(1, thin, {.with_text = 2, .completed = 5}));
  Readiness brief({.least_s = 0, .hold_s = 0, .concurrency = 2, .short_answers = true});
  EXPECT_FALSE(brief.update(1, thin, {.with_text = 2, .completed = 1}));
  EXPECT_TRUE(brief.update(1, thin, {.with_text = 2, .completed = 2}));
}

TEST(WindowFlags, HaveMeanings) {
  EXPECT_EQ(window_flag_meaning("no such flag"), "");
  EXPECT_THAT(window_flag_meaning("metrics_lost"), Not(IsEmpty()));
  EXPECT_TRUE(flag_limits_capacity("queue_seen"));
  EXPECT_FALSE(flag_limits_capacity("null_delta"));
}

}  // namespace
}  // namespace onelane
