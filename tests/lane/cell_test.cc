// Cells against the mock server: a clean one raises no flag, each planted flaw raises its own.
#include "lane/cell.h"

#include <algorithm>
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
constexpr double kTokenSeconds = 0.04;

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
          .silence_s = 10,
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
  CellResult run(MockServer& mock, MockFlaw flaw = MockFlaw::kNone) const {
    BenchTiming times = timing;
    auto server = BenchServer::connect(mock.url(), "", "", MetricLookup::kExact);
    EXPECT_TRUE(server) << server.error().message;
    if (flaw != MockFlaw::kNone) times.silence_s = 0.25;
    bool planted = false;
    const auto cell = run_cell(**server, plan, times, [&](const BenchProgress& progress) {
      if (flaw == MockFlaw::kNone || planted || progress.phase != "window") return;
      planted = true;
      mock.plant_after(times.window_s / 4, flaw);
    });
    EXPECT_TRUE(cell) << cell.error().message;
    return *cell;
  }
};

CellResult run_clean(const Cell& cell, MockServer& mock) {
  return best_of_three([&] { return cell.run(mock); }, [](const CellResult& result) { return result.passed(); });
}

// The cell on a new server each time, until these flags are up.
CellResult run_flawed(const Cell& cell, const MockScript& script, MockFlaw flaw,
                      const std::vector<std::string>& flags) {
  return best_of_three(
      [&] {
        MockServer mock(script);
        return cell.run(mock, flaw);
      },
      [&](const CellResult& result) {
        return std::all_of(flags.begin(), flags.end(), [&](const std::string& flag) {
          return std::find(result.window.flags.begin(), result.window.flags.end(), flag) != result.window.flags.end();
        });
      });
}

void expect_clean(MockEngine engine) {
  MockServer mock(slow({.engine = engine, .tokens_per_chunk = 3}));
  const CellResult cell = run_clean(Cell(), mock);
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

TEST(Cell, OfACleanServerRaisesNoFlag) {
  std::vector<std::future<void>> done;
  for (const MockEngine engine : {MockEngine::kVllm, MockEngine::kSglang, MockEngine::kPlain}) {
    done.push_back(std::async(std::launch::async, expect_clean, engine));
  }
}

TEST(Cell, RestartsStreamsAndCountsThem) {
  MockServer mock(slow());
  const CellResult cell = run_clean(Cell(2, 5), mock);
  EXPECT_THAT(cell.window.flags, IsEmpty());
  EXPECT_GT(cell.window.restarts, 2);
  EXPECT_GT(cell.window.completed, 2);
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
    results.emplace_back(flags, std::async(std::launch::async, [flaw = flaw, flags = flags] {
                           return run_flawed(Cell(), slow(), flaw, flags);
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
  const CellResult cell = best_of_three(
      [] {
        MockServer mock(slow());
        return Cell().run(mock, MockFlaw::kFreezeOne);
      },
      [](const CellResult& result) { return result.window.flags == std::vector<std::string>{"silent_gap"}; });
  EXPECT_THAT(cell.window.flags, ElementsAre("silent_gap"));
  EXPECT_LT(*cell.window.fairness_min_max, 0.9);
}

TEST(Cell, ShortAnswersAreSeen) {
  MockServer mock(slow());
  mock.plant(MockFlaw::kEndEarly);
  const CellResult cell = best_of_three([&] { return Cell(2, 50).run(mock); },
                                        [](const CellResult& result) { return result.window.completed > 0; });
  EXPECT_THAT(cell.window.flags, Contains("short_output"));
}

TEST(Cell, UsageAtTheEndAloneIsSeen) {
  MockServer mock(slow());
  mock.plant(MockFlaw::kUsageAtEnd);
  const CellResult cell = best_of_three([&] { return Cell().run(mock); },
                                        [](const CellResult& result) { return result.window.flags.size() == 1; });
  EXPECT_THAT(cell.window.flags, ElementsAre("usage_missing"));
  EXPECT_EQ(cell.window.token_source, "openai_stream_chunks_fallback");
}

TEST(Cell, AServerThatTakesFewerIsLimitedInCapacity) {
  Cell cell(2);
  cell.timing.ready_timeout_s = 0.2;
  const std::vector<std::string> flags = {"warmup_timed_out", "capacity_limited", "queue_seen"};
  const CellResult result = run_flawed(cell, slow({.max_running = 1}), MockFlaw::kNone, flags);
  for (const std::string& flag : flags) EXPECT_THAT(result.window.flags, Contains(flag));
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
  const CellResult good = run_clean(cell, mock);
  EXPECT_THAT(good.window.flags, IsEmpty());
  EXPECT_EQ(good.scout->prompt_tokens, 3);
  EXPECT_TRUE(good.scout->ttft_s.has_value());
  cell.plan.scout = "{\"stream\": true}";  // no messages
  const CellResult bad = cell.run(mock);
  EXPECT_THAT(bad.window.flags, Contains("scout_failed"));
  EXPECT_THAT(bad.window.problems.front(), HasSubstr("status 400"));
}

}  // namespace
}  // namespace onelane
