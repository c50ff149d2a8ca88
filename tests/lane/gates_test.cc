// The four gates against the scripted mini: a clean server passes, every flaw is found by the check that is meant for
// it.
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"
#include "lane/gate_support.h"
#include "lane/scripted_mini.h"

namespace onelane {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Json = nlohmann::json;

// The profile "mini" with windows and rounds of a test's size.
GatePlan small_plan() {
  GatePlan plan{.profile = *find_profile("mini", ""), .quick = true};
  GateProfile& profile = plan.profile;
  profile.modes = {profile.modes.front(), profile.modes.back()};
  profile.streams = {3};
  profile.arrival_tokens = {64};
  profile.quick_window_s = 0.06;
  profile.quick_needle_tokens = {512};
  profile.least_share = 0;  // windows of a test are too short to be fair
  profile.soak_workers = 2;
  profile.quick_rounds = 5;
  profile.warm_rounds = 1;
  profile.quick_round_s = profile.short_round_s = 0.08;
  profile.settle_s = 0;
  profile.drain_s = 0.1;
  return plan;
}

using Reply = std::function<MockReply(const Json&)>;

// Metrics that the soak needs and, with `onelane`, what makes the server one of ours.
MockScript script(Reply reply = scripted_mini) {
  return {.model = "mini-mock",
          .first_token_seconds = 0.0005,
          .token_seconds = 0.0002,
          .reply = std::move(reply),
          .more_metrics =
              "onelane_pages 64\nonelane_pages_used 0\nprocess_resident_memory_bytes 1e8\n"
              "process_open_fds 12\nprocess_threads 4\nprocess_start_time_seconds 1000\n"};
}

ReceiptGate run(const char* name, const MockServer& mock) { return run(name, mock, small_plan()); }

class CleanServer : public ::testing::TestWithParam<const char*> {};
TEST_P(CleanServer, Passes) {
  MockServer mock(script());
  const ReceiptGate gate = run(GetParam(), mock);
  expect_clean_pass(gate);
  for (const auto& [check, bound] : gate.bound) EXPECT_LE(gate.observed.at(check), bound) << check;
  EXPECT_FALSE(gate.items.empty());
}
TEST_P(CleanServer, ThatGoesAwayIsVoid) {
  auto mock = std::make_unique<MockServer>(script());
  const GatePlan plan = at_second_line(small_plan(), [&] { mock.reset(); });
  const ReceiptGate gate = run(GetParam(), *mock, plan);
  EXPECT_EQ(gate.verdict, Verdict::kVoid);
  ASSERT_FALSE(gate.reasons.empty());
}
TEST_P(CleanServer, ThatBeginsAnewIsVoid) {
  MockServer mock(script());
  expect_void_when_begun_anew(GetParam(), mock, small_plan());
}
INSTANTIATE_TEST_SUITE_P(All, CleanServer, ::testing::Values("gauntlet", "thinking", "needle", "soak"),
                         [](const auto& named) { return std::string(named.param); });

// A server whose answers are changed by `damage` must fail `gate` by `check`.
struct Flaw {
  const char* gate;
  const char* name;
  const char* check;
  std::function<void(const Json& request, MockReply& reply)> damage;
};

std::string asked(const Json& request) { return request["messages"].back()["content"]; }
bool in_thinking(const Json& request) { return request["chat_template_kwargs"]["thinking"]; }

// Answers that differ from those before: every call counts.
std::atomic<int> calls = 0;

const std::vector<Flaw> kFlaws = {
    {"gauntlet", "wrong_sum", "correctness",
     [](const Json& request, MockReply& reply) {
       if (asked(request).starts_with("What is 907")) reply.content = {"907 + 95 = 1003"};
     }},
    {"gauntlet", "call_left_out", "correctness",
     [](const Json& request, MockReply& reply) {
       if (request.contains("tools") && !reply.tool_calls.empty()) {
         reply = {.reasoning = reply.reasoning, .content = {"Done. The room has id 4711."}};
       }
     }},
    {"gauntlet", "argument_of_another_type", "schema",
     [](const Json&, MockReply& reply) {
       for (ChatToolCall& call : reply.tool_calls) {
         if (call.name == "book_room") call.arguments = R"({"city": "Oslo", "days": "9"})";
       }
     }},
    {"gauntlet", "calls_that_finish_as_stop", "schema",
     [](const Json&, MockReply& reply) {
       if (!reply.tool_calls.empty()) reply.finish_reason = "stop";
     }},
    {"gauntlet", "marks_in_the_content", "schema",
     [](const Json&, MockReply& reply) {
       if (reply.tool_calls.empty())
         reply.content.push_back(
             "<\xef\xbd\x9c"
             "end\xef\xbd\x9c>");
     }},
    {"gauntlet", "refusals", "transport",
     [](const Json& request, MockReply& reply) {
       if (asked(request).starts_with("Name four")) reply = {.status = 500, .error = "out of luck"};
     }},
    {"gauntlet", "another_text_each_time", "null arm: ",
     [](const Json& request, MockReply& reply) {
       if (in_thinking(request)) reply.reasoning.push_back(" " + std::to_string(++calls));
     }},
    {"thinking", "reasoning_without_an_end", "empty",
     [](const Json& request, MockReply& reply) {
       if (in_thinking(request)) reply.content = {""};
     }},
    {"thinking", "reasoning_in_chat_mode", "mode",
     [](const Json& request, MockReply& reply) {
       if (!in_thinking(request)) reply.reasoning = {"I think"};
     }},
    {"thinking", "no_reasoning", "mode",
     [](const Json& request, MockReply& reply) {
       if (in_thinking(request)) reply.reasoning.clear();
     }},
    {"thinking", "marks", "markup", [](const Json&, MockReply& reply) { reply.content.push_back(" </think>"); }},
    {"thinking", "unknown_finish", "finish", [](const Json&, MockReply& reply) { reply.finish_reason = "abort"; }},
    {"needle", "nothing_cold", "cold",
     [](const Json& request, MockReply& reply) {
       // The first question to a prompt; the same prompt begins the same.
       static std::mutex mutex;
       static std::set<std::string> known;
       if (asked(request).find("remember the codes") == std::string::npos) return;
       const std::lock_guard lock(mutex);
       if (known.insert(asked(request).substr(0, 400)).second) reply.content = {"It says nothing."};
     }},
    {"needle", "stale_when_warm", "warm",
     [](const Json& request, MockReply& reply) {
       static std::mutex mutex;
       static std::set<std::string> known;
       if (asked(request).find("remember the codes") == std::string::npos) return;
       const std::lock_guard lock(mutex);
       if (!known.insert(asked(request).substr(0, 400)).second) reply.content = {"It says nothing."};
     }},
    {"needle", "the_last_code_always", "decoy",
     [](const Json& request, MockReply& reply) {
       const std::string text = asked(request);
       const size_t fact = text.rfind("The code of ");
       if (fact != std::string::npos) reply.content = {text.substr(fact, text.find('.', fact) - fact)};
     }},
    {"soak", "canary_drifts", "canary",
     [](const Json& request, MockReply& reply) {
       if (request.contains("user")) reply.content.push_back(" " + std::to_string(++calls));
     }},
    {"soak", "sampled_answers_differ", "changed",
     [](const Json& request, MockReply& reply) {
       if (request["temperature"] > 0) reply.content.push_back(" " + std::to_string(++calls));
     }},
    {"soak", "loops", "flaw",
     [](const Json& request, MockReply& reply) {
       if (asked(request).starts_with("Count")) reply.content = std::vector<std::string>(50, "and so on and on ");
     }},
    {"soak", "errors", "transport", [](const Json& request, MockReply& reply) {
       if (asked(request).starts_with("Name")) reply = {.status = 503, .error = "overloaded"};
     }}};

class FlawedAnswers : public ::testing::TestWithParam<size_t> {};
TEST_P(FlawedAnswers, FailTheGateByTheirCheck) {
  const Flaw& flaw = kFlaws[GetParam()];
  MockServer mock(script([&](const Json& request) {
    MockReply reply = scripted_mini(request);
    flaw.damage(request, reply);
    return reply;
  }));
  const ReceiptGate gate = run(flaw.gate, mock);
  // A server this bad may hide a planted fault as well, which makes it no better.
  EXPECT_NE(gate.verdict, Verdict::kPass);
  EXPECT_THAT(gate.reasons, Contains(StartsWith(flaw.check))) << gates_text({.gates = {gate}});
}
INSTANTIATE_TEST_SUITE_P(All, FlawedAnswers, ::testing::Range<size_t>(0, kFlaws.size()), [](const auto& number) {
  return format("{}_{}", kFlaws[number.param].gate, kFlaws[number.param].name);
});

TEST(ThinkingGate, FindsAnswersThatCompanyChanges) {
  std::atomic<MockServer*> self = nullptr;
  MockServer mock(script([&](const Json& request) {
    MockReply reply = scripted_mini(request);
    if (self.load()->running() > 0) reply.content.push_back(" too");
    return reply;
  }));
  self = &mock;
  const ReceiptGate gate = run("thinking", mock);
  EXPECT_EQ(gate.verdict, Verdict::kFail);
  EXPECT_THAT(gate.reasons, Contains(AllOf(StartsWith("changed: "), HasSubstr("another answer than alone"))));
}

TEST(ThinkingGate, FindsASilence) {
  MockServer mock(script());
  GatePlan plan = small_plan();
  plan.profile.most_gap_s = 1e-5;
  const ReceiptGate gate = run("thinking", mock, plan);
  EXPECT_EQ(gate.verdict, Verdict::kFail);
  EXPECT_THAT(gate.reasons, Contains(AllOf(StartsWith("gap: "), HasSubstr("a stream was silent for"))));
  EXPECT_GT(gate.observed.at("longest_gap_s"), gate.bound.at("longest_gap_s"));
}

TEST(ThinkingGate, FindsAStreamThatStarves) {
  // One request at a time: whoever waits gets nothing meanwhile.
  MockScript one_by_one = script();
  one_by_one.max_running = 1;
  one_by_one.token_seconds = 0.004;
  MockServer mock(one_by_one);
  GatePlan plan = small_plan();
  plan.profile.modes = {plan.profile.modes.back()};
  plan.profile.streams = {8};
  plan.profile.least_share = 0.3;
  plan.profile.quick_window_s = 0.2;
  const ReceiptGate gate = run("thinking", mock, plan);
  EXPECT_EQ(gate.verdict, Verdict::kFail);
  EXPECT_THAT(gate.reasons, Contains(HasSubstr("starved: ")));
}

TEST(NeedleGate, IsNotRunWhereNoPromptFits) {
  MockScript small = script();
  small.max_model_len_tokens = 300;
  MockServer mock(small);
  const ReceiptGate gate = run("needle", mock);
  EXPECT_EQ(gate.verdict, Verdict::kNotRun);
  EXPECT_THAT(gate.reasons, Contains(HasSubstr("longest sequence has 300 tokens")));
  small.max_model_len_tokens = 800;
  MockServer larger(small);
  GatePlan plan = small_plan();
  plan.profile.quick_needle_tokens = {512, 1024};
  const ReceiptGate part = run("needle", larger, plan);
  EXPECT_EQ(part.verdict, Verdict::kPass);
  EXPECT_THAT(part.range, HasSubstr("longer ones do not fit into the server's 800 tokens"));
}

TEST(SoakGate, IsNotRunWithoutMetrics) {
  MockScript silent = script();
  silent.engine = MockEngine::kPlain;
  MockServer mock(silent);
  const ReceiptGate gate = run("soak", mock);
  EXPECT_EQ(gate.verdict, Verdict::kNotRun);
  EXPECT_THAT(gate.reasons, Contains(HasSubstr("GET /metrics does not say")));
}

TEST(SoakGate, FindsLeaksOfMemoryAndFiles) {
  for (const std::string name : {"process_resident_memory_bytes", "process_open_fds", "onelane_pages_used"}) {
    std::atomic<int> readings = 0;
    MockScript leaking = script();
    const size_t at = leaking.more_metrics.find(name), end = leaking.more_metrics.find('\n', at);
    const double level = std::stod(leaking.more_metrics.substr(at + name.size(), end - at));
    leaking.more_metrics.erase(at, end - at + 1);
    leaking.live_metrics = [&readings, name, level] {
      return format("{} {}\n", name, level * (1 + 0.01 * readings) + 0.25 * readings++);
    };
    MockServer mock(leaking);
    const ReceiptGate gate = run("soak", mock);
    EXPECT_EQ(gate.verdict, Verdict::kFail) << name;
    EXPECT_THAT(gate.reasons, Contains(HasSubstr("leak: "))) << name;
  }
}

TEST(SoakGate, FindsARequestThatNobodyWaitsFor) {
  MockServer mock(script());
  GatePlan plan = small_plan();
  mock.plant(MockFlaw::kQueue);
  const ReceiptGate gate = run("soak", mock, plan);
  EXPECT_THAT(gate.reasons, Contains(HasSubstr("drain: ")));
}

TEST(SoakGate, FindsInvalidRequestsThatAreTaken) {
  MockScript lenient = script();
  lenient.lenient = true;
  MockServer mock(lenient);
  GatePlan plan = small_plan();
  plan.profile.quick_round_s = 0.3;
  const ReceiptGate gate = run("soak", mock, plan);
  EXPECT_EQ(gate.verdict, Verdict::kFail);
  EXPECT_THAT(gate.reasons, Contains(AllOf(HasSubstr("refusal: "), HasSubstr("got status 200"))));
}

}  // namespace
}  // namespace onelane
