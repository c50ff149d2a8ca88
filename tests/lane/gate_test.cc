#include "lane/gate.h"

#include <atomic>
#include <memory>
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

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A gate whose arms do what the test says.
struct FakeArms {
  GateArm clean, null, planted;
  std::string missing;
};
FakeArms* fake = nullptr;

Gate fake_gate() {
  return {.name = "fake",
          .id = "fake/1",
          .about = "for tests",
          .missing = [](const GateServer&, const GatePlan&) { return fake->missing; },
          .run =
              [](GateServer&, const GatePlan&, ArmKind kind) {
                return kind == ArmKind::kClean ? fake->clean : kind == ArmKind::kNull ? fake->null : fake->planted;
              },
          .faults = [] { return std::vector<GateFault>{{.name = "a fault", .check = "seen"}}; }};
}

class RunGate : public ::testing::Test {
 protected:
  void SetUp() override {
    arms_.clean.range = "one question";
    arms_.clean.answers = arms_.null.answers = {{"q", "a"}};
    arms_.planted.find("seen", "it was seen");
    fake = &arms_;
  }
  ReceiptGate run() {
    const auto server = connect(mock_);
    return run_gate(fake_gate(), *server, {.profile = *find_profile("mini", "")});
  }

  FakeArms arms_;
  MockServer mock_;
};

TEST_F(RunGate, PassesWhenAllArmsDo) {
  const ReceiptGate gate = run();
  EXPECT_EQ(gate.verdict, Verdict::kPass);
  EXPECT_THAT(gate.reasons, IsEmpty());
  EXPECT_EQ(gate.null_arm, Verdict::kPass);
  EXPECT_EQ(gate.planted_fault_caught, true);
  EXPECT_EQ(gate.range, "one question");
}

TEST_F(RunGate, FailsForAFindingAndSaysIt) {
  arms_.clean.find("check", "one thing");
  arms_.clean.find("check", "another");
  const ReceiptGate gate = run();
  EXPECT_EQ(gate.verdict, Verdict::kFail);
  EXPECT_THAT(gate.reasons, ElementsAre("check: one thing", "check: another"));
  EXPECT_EQ(gate.observed.at("check"), 2);
}

TEST_F(RunGate, FailsWhenTheNullArmFindsSomething) {
  arms_.null.find("check", "now and then");
  const ReceiptGate gate = run();
  EXPECT_EQ(gate.verdict, Verdict::kFail);
  EXPECT_EQ(gate.null_arm, Verdict::kFail);
  EXPECT_THAT(gate.reasons, ElementsAre("null arm: check: now and then"));
}

TEST_F(RunGate, IsVoidWhenAPlantedFaultIsMissedEvenIfTheServerFailed) {
  arms_.clean.find("check", "one thing");
  arms_.planted = {};
  const ReceiptGate gate = run();
  EXPECT_EQ(gate.verdict, Verdict::kVoid);
  EXPECT_EQ(gate.planted_fault_caught, false);
  EXPECT_THAT(gate.reasons, Contains(HasSubstr("\"a fault\" was not caught by the check seen")));
}

TEST_F(RunGate, IsVoidWhenTheNullArmHasNothingToCompare) {
  arms_.null.answers = {};
  EXPECT_EQ(run().verdict, Verdict::kVoid);
}

TEST_F(RunGate, IsNotRunWhenSomethingCouldNotBeAskedOrAll) {
  arms_.clean.not_run = {"no sandbox"};
  ReceiptGate gate = run();
  EXPECT_EQ(gate.verdict, Verdict::kNotRun);
  EXPECT_THAT(gate.reasons, ElementsAre("no sandbox"));
  arms_.missing = "the server cannot";
  gate = run();
  EXPECT_EQ(gate.verdict, Verdict::kNotRun);
  EXPECT_THAT(gate.reasons, ElementsAre("the server cannot"));
  EXPECT_FALSE(gate.planted_fault_caught.has_value());
}

// Only a server that promises equal bits is held to them.
TEST(RunGateNull, EqualAnswersAreDemandedOfOnelane) {
  FakeArms arms;
  arms.clean.answers = {{"q", "a"}};
  arms.null.answers = {{"q", "b"}};
  arms.planted.find("seen", "it was seen");
  fake = &arms;
  for (const bool onelane : {false, true}) {
    MockServer mock({.more_metrics = onelane ? "onelane_pages 64\n" : ""});
    const auto server = connect(mock);
    ASSERT_EQ(server->info().onelane, onelane);
    const ReceiptGate gate = run_gate(fake_gate(), *server, {.profile = *find_profile("mini", "")});
    EXPECT_EQ(gate.verdict, onelane ? Verdict::kFail : Verdict::kPass);
    EXPECT_EQ(gate.observed.at("null_answers_changed"), 1);
  }
}

TEST(GateTable, NamesAreFoundAndDiffer) {
  std::set<std::string_view> names;
  for (const Gate& gate : gate_table()) {
    EXPECT_EQ(find_gate(gate.name)->id, gate.id);
    EXPECT_TRUE(gate.id.starts_with(std::string(gate.name) + "/"));
    EXPECT_FALSE(gate.faults().empty()) << gate.name;
    names.insert(gate.name);
  }
  EXPECT_EQ(names.size(), gate_table().size());
  EXPECT_EQ(find_gate("all"), nullptr);
}

TEST(GateProfile, ByNameOrByModel) {
  EXPECT_EQ(find_profile("auto", "mini-v41")->name, "mini");
  EXPECT_EQ(find_profile("auto", "DeepSeek-V4.1-Flash")->name, "full");
  EXPECT_EQ(find_profile("full", "mini-v41")->name, "full");
  EXPECT_EQ(find_profile("tiny", ""), nullptr);
}

TEST(GateReceipt, SaysServerProfileAndVerdict) {
  MockServer mock({.model = "mini-mock"});
  const auto server = connect(mock);
  const GatePlan plan{.profile = *find_profile("auto", server->info().model), .quick = true, .seed = 5};
  const ReceiptGate pass{
      .id = "a/1", .verdict = Verdict::kPass, .range = "r", .observed = {{"x", 0}}, .bound = {{"x", 0}}};
  const ReceiptGate fail{.id = "b/1", .verdict = Verdict::kFail, .reasons = {"x: y"}, .range = "r"};
  const Receipt receipt = gate_receipt(*server, plan, {pass, fail});
  EXPECT_EQ(receipt.verdict, Verdict::kFail);
  EXPECT_THAT(receipt.reasons, ElementsAre("b/1: FAIL"));
  EXPECT_EQ(receipt.protocol.mode, "mini, quick");
  EXPECT_EQ(receipt.model.name, "mini-mock");
  const auto json = receipt_json(receipt);
  ASSERT_TRUE(json) << json.error().message;
  EXPECT_THAT(verify_receipt(*json, ""), IsEmpty());
  const std::string text = gates_text(receipt);
  EXPECT_THAT(text, HasSubstr("FAIL     b/1\n         covered: r\n         - x: y\n"));
  EXPECT_TRUE(text.ends_with("\nFAIL\n"));
}

TEST(GateServer, AddsWhatAGateNeedsAndTellsHowItEnded) {
  MockServer mock({.reply = scripted_mini});
  const auto server = connect(mock);
  GateJson request = gauntlet_tasks(*find_profile("mini", ""), false, false)[4].request;  // a sum, thinking
  const GateAnswer answer = server->ask(request);
  EXPECT_TRUE(answer.chat.complete()) << answer.chat.problem;
  EXPECT_EQ(mock.seen().back()["temperature"], 0);
  EXPECT_EQ(mock.seen().back()["model"], "mock");
  EXPECT_FALSE(answer.chat.reasoning.empty());
  EXPECT_EQ(answer.token_at_s.size(), static_cast<size_t>(*answer.chat.completion_tokens));
  EXPECT_EQ(answer.gaps_s.size() + 1, static_cast<size_t>(answer.chat.text_chunks));
  for (const int after : {0, 2}) {
    EXPECT_EQ(server->ask(request, {.cancel_after = after}).chat.outcome, ChatOutcome::kCancelled) << after;
  }
  EXPECT_EQ(server->status_of("{"), 400);
  EXPECT_EQ(server->count_tokens(request["messages"]), std::nullopt) << "the mock has no tokenizer";
}

TEST(GateServer, NoticesThatItWentAwayOrBeganAnew) {
  {
    auto mock = std::make_unique<MockServer>();
    const auto server = connect(*mock);
    server->check_alive();
    EXPECT_FALSE(server->lost());
    mock.reset();
    server->check_alive();
    EXPECT_TRUE(server->lost());
  }
  {
    MockServer mock({.reply = scripted_mini});
    const auto server = connect(mock);
    server->ask(gauntlet_tasks(*find_profile("mini", ""), false, false)[4].request);
    server->check_alive();
    EXPECT_FALSE(server->lost());
    mock.plant(MockFlaw::kCountersBack);
    server->check_alive();
    EXPECT_THAT(server->lost_reason(), HasSubstr("counters went back"));
  }
  std::atomic<int> start = 1000;
  MockServer mock({.live_metrics = [&] { return format("process_start_time_seconds {}\n", start.load()); }});
  const auto server = connect(mock);
  server->check_alive();
  EXPECT_FALSE(server->lost());
  start = 1001;
  server->check_alive();
  EXPECT_THAT(server->lost_reason(), HasSubstr("began anew"));
}

}  // namespace
}  // namespace onelane
