// Cells against the mock server: a clean one raises no flag, each planted flaw raises its own.
#include "lane/cell.h"

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"
#include "http/running_server.h"
#include "lane/mock_server.h"

namespace onelane {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Tokens come slowly and silences must be long, so that a busy test machine raises no flag by itself.
constexpr double kTokenSeconds = 0.02;

MockScript slow(MockScript script = {}) {
  script.first_token_seconds = script.token_seconds = kTokenSeconds;
  return script;
}

BenchTiming short_timing() {
  return {.window_s = 0.6,
          .ready_least_s = 0.05,
          .ready_hold_s = 0.05,
          .ready_timeout_s = 5,
          .poll_s = 0.05,
          .drain_hold_s = 0.02,
          .drain_timeout_s = 5,
          .silence_s = 0.25,
          .max_lag_s = 10};
}

struct Cell {
  CellPlan plan;
  BenchTiming timing = short_timing();

  explicit Cell(int concurrency = 2, int64_t max_tokens = 100000) {
    plan.workload = "words";
    plan.concurrency = concurrency;
    plan.max_tokens = max_tokens;
    plan.next = [max_tokens](int stream, int64_t turn, int64_t) {
      ChatRequest request{.model = "mock", .messages = {{"user", format("{} {}", stream, turn)}}};
      request.max_tokens = max_tokens;
      request.continuous_usage = request.ignore_eos = true;
      return LoadRequest{.json = *chat_request_json(request)};
    };
  }

  // With `flaw` from a quarter of the window on.
  CellResult run(MockServer& mock, MockFlaw flaw = MockFlaw::kNone) {
    auto server = BenchServer::connect(mock.url(), "", "", MetricLookup::kExact);
    EXPECT_TRUE(server) << server.error().message;
    bool planted = false;
    const auto cell = run_cell(**server, plan, timing, [&](const BenchProgress& progress) {
      if (flaw == MockFlaw::kNone || planted || progress.phase != "window") return;
      planted = true;
      mock.plant_after(timing.window_s / 4, flaw);
    });
    EXPECT_TRUE(cell) << cell.error().message;
    return *cell;
  }
};

TEST(Cell, OfACleanServerRaisesNoFlag) {
  for (const MockEngine engine : {MockEngine::kVllm, MockEngine::kSglang, MockEngine::kPlain}) {
    MockServer mock(slow({.engine = engine, .tokens_per_chunk = 3}));
    const CellResult cell = Cell().run(mock);
    EXPECT_THAT(cell.window.flags, IsEmpty());
    EXPECT_THAT(cell.window.problems, IsEmpty());
    EXPECT_TRUE(cell.passed());
    EXPECT_EQ(cell.id, "words/C2/ctx0");
    EXPECT_EQ(cell.window.token_source, "openai_continuous_usage");
    EXPECT_GT(cell.window.tokens, 0);
    EXPECT_EQ(cell.window.cancelled, 2);
    EXPECT_EQ(cell.window.failed, 0);
    EXPECT_EQ(cell.window.step_tokens, 3);
    EXPECT_EQ(cell.window.ttft_s.size(), 2u);
    EXPECT_EQ(cell.window.running_mean.has_value(), engine != MockEngine::kPlain);
    if (engine == MockEngine::kVllm) {
      EXPECT_DOUBLE_EQ(cell.window.accept_length.value(), 3);
      EXPECT_DOUBLE_EQ(cell.window.accepted_per_step.value(), 2);
    }
    if (engine == MockEngine::kSglang) {
      EXPECT_DOUBLE_EQ(cell.window.accept_length.value(), 3);
    }
    EXPECT_TRUE(eventually([&] { return mock.running() == 0; }));  // nothing is left behind
  }
}

TEST(Cell, RestartsStreamsAndCountsThem) {
  MockServer mock(slow());
  const CellResult cell = Cell(2, 5).run(mock);
  EXPECT_THAT(cell.window.flags, IsEmpty());
  EXPECT_GT(cell.window.restarts, 2);
  EXPECT_GT(cell.window.completed, 2);
  EXPECT_EQ(cell.window.cancelled + cell.window.completed, static_cast<int64_t>(mock.requests()));
  EXPECT_FALSE(cell.window.latency_s.empty());
}

TEST(Cell, PlantedFlawsRaiseTheirFlags) {
  struct Case {
    MockFlaw flaw;
    std::vector<std::string> flags;
  };
  std::vector<std::pair<std::vector<std::string>, std::future<CellResult>>> results;
  for (const auto& [flaw, flags] : {
           Case{MockFlaw::kFreeze, {"stall_at_end", "silent_gap", "frozen_while_healthy"}},
           Case{MockFlaw::kFreezeOne, {"silent_gap"}},
           Case{MockFlaw::kDoubleCount, {"tokens_disagree"}},
           Case{MockFlaw::kNoUsage, {"usage_missing"}},
           Case{MockFlaw::kNullDelta, {"null_delta", "stream_error"}},
           Case{MockFlaw::kErrorEvent, {"stream_error"}},
           Case{MockFlaw::kHangUp, {"stream_error"}},
           Case{MockFlaw::kQueue, {"queue_seen", "capacity_limited"}},
           Case{MockFlaw::kUnderfilled, {"underfilled"}},
           Case{MockFlaw::kCountersBack, {"counters_went_back"}},
           Case{MockFlaw::kSick, {"unhealthy"}},
       }) {
    results.emplace_back(flags, std::async(std::launch::async, [flaw = flaw] {
                           MockServer mock(slow());
                           return Cell().run(mock, flaw);
                         }));
  }
  for (auto& [flags, result] : results) {
    const CellResult cell = result.get();
    for (const std::string& flag : flags) {
      EXPECT_THAT(cell.window.flags, Contains(flag));
      EXPECT_THAT(window_flag_meaning(flag), Not(IsEmpty()));
    }
    EXPECT_FALSE(cell.passed());
  }
}

TEST(Cell, AFrozenStreamIsNotAFrozenServer) {
  MockServer mock(slow());
  const CellResult cell = Cell().run(mock, MockFlaw::kFreezeOne);
  EXPECT_THAT(cell.window.flags, ElementsAre("silent_gap"));
  EXPECT_LT(*cell.window.fairness_min_max, 0.9);
}

TEST(Cell, ShortAnswersAndUsageAtTheEndAreSeen) {
  MockServer early(slow());
  early.plant(MockFlaw::kEndEarly);
  EXPECT_THAT(Cell(2, 50).run(early).window.flags, Contains("short_output"));
  MockServer late(slow());
  late.plant(MockFlaw::kUsageAtEnd);
  const CellResult cell = Cell().run(late);
  EXPECT_THAT(cell.window.flags, ElementsAre("usage_missing"));
  EXPECT_EQ(cell.window.token_source, "openai_stream_chunks_fallback");
}

TEST(Cell, AServerThatTakesFewerIsLimitedInCapacity) {
  MockServer mock(slow({.max_running = 1}));
  Cell cell(2);
  cell.timing.ready_timeout_s = 0.2;
  const CellResult result = cell.run(mock);
  EXPECT_THAT(result.window.flags, Contains("warmup_timed_out"));
  EXPECT_THAT(result.window.flags, Contains("capacity_limited"));
  EXPECT_THAT(result.window.flags, Contains("queue_seen"));
}

TEST(Cell, ABusyServerIsNotMeasuredAsIfItWereIdle) {
  MockServer mock(slow());
  auto other = HttpClient::create({.url = mock.url()});
  ASSERT_TRUE(other);
  const auto call = start_chat(**other, *chat_request_json({.model = "mock", .max_tokens = 1000000}), true, false);
  Cell cell;
  cell.timing.drain_timeout_s = 0.1;
  EXPECT_THAT(cell.run(mock).window.flags, Contains("not_drained"));
  EXPECT_TRUE(flag_voids("not_drained"));
  call->cancel();
}

TEST(Cell, ScoutsFillTheCacheAndTheirErrorsAreNotSwallowed) {
  MockServer mock(slow());
  Cell cell;
  cell.plan.scout = *chat_request_json({.model = "mock", .messages = {{"user", "a b c"}}, .max_tokens = 1});
  const CellResult good = cell.run(mock);
  EXPECT_THAT(good.window.flags, IsEmpty());
  EXPECT_EQ(good.scout->prompt_tokens, 3);
  EXPECT_TRUE(good.scout->ttft_s.has_value());
  cell.plan.scout = "{\"stream\": true}";  // no messages
  const CellResult bad = cell.run(mock);
  EXPECT_THAT(bad.window.flags, ElementsAre("scout_failed"));
  EXPECT_THAT(bad.window.problems.front(), HasSubstr("status 400"));
}

}  // namespace
}  // namespace onelane
