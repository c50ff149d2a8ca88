// The gates divergence and lossless against a scripted model: what is planted into one path is found there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lane/capture_run.h"
#include "lane/divergence.h"
#include "lane/gate_support.h"
#include "lane/scripted_logprobs.h"

namespace onelane {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Json = nlohmann::json;
using Damage = decltype(ScriptedLogprobs::damage);

GatePlan small_plan() {
  GatePlan plan{.profile = *find_profile("mini", ""), .quick = true};
  plan.profile.document_tokens = 40;
  plan.profile.continuation_tokens = 10;
  plan.profile.skipped_tokens = 2;
  plan.profile.parity_tokens = 8;
  plan.profile.quick_contexts = 2;
  plan.profile.quick_draws = 96;
  return plan;
}

MockScript script(Damage damage = {}) {
  return {.model = "mini-mock",
          .route = ScriptedLogprobs{std::move(damage)},
          .more_metrics = "onelane_pages 64\nprocess_start_time_seconds 1000\n"};
}

ReceiptGate run(const char* name, const MockServer& mock) { return run(name, mock, small_plan()); }

class ForcedGate : public ::testing::TestWithParam<const char*> {};
TEST_P(ForcedGate, PassesACleanServer) {
  MockServer mock(script());
  expect_clean_pass(run(GetParam(), mock));
}
TEST_P(ForcedGate, IsVoidWhenTheServerGoesAway) {
  auto mock = std::make_unique<MockServer>(script());
  const GatePlan plan = at_second_line(small_plan(), [&] { mock.reset(); });
  EXPECT_EQ(run(GetParam(), *mock, plan).verdict, Verdict::kVoid);
}
TEST_P(ForcedGate, IsVoidWhenTheServerBeginsAnew) {
  MockServer mock(script());
  expect_void_when_begun_anew(GetParam(), mock, small_plan());
}
TEST_P(ForcedGate, IsNotRunWithoutTheRoutes) {
  MockScript without = script();
  without.route = {};
  MockServer mock(without);
  const ReceiptGate gate = run(GetParam(), mock);
  EXPECT_EQ(gate.verdict, Verdict::kNotRun);
  EXPECT_THAT(gate.reasons, Contains(HasSubstr("POST /tokenize is answered with status 404")));
}
INSTANTIATE_TEST_SUITE_P(Both, ForcedGate, ::testing::Values("divergence", "lossless"),
                         [](const auto& named) { return std::string(named.param); });

bool drafts(const Json& request) { return !request.contains("draft_depth"); }

// The best token of every fifth position is another one, by far.
void flip(size_t position, std::vector<double>& logits) {
  if (position % 5 != 0) return;
  *std::min_element(logits.begin(), logits.end()) = *std::max_element(logits.begin(), logits.end()) + 2;
}

TEST(DivergenceGate, FindsAPathThatIsBroken) {
  MockServer mock(script([](const Json& request, size_t position, bool generated, std::vector<double>& logits) {
    if (generated && drafts(request) && request.value("user", "") == "candidate") flip(position, logits);
  }));
  const ReceiptGate gate = run("divergence", mock);
  EXPECT_EQ(gate.verdict, Verdict::kFail);
  EXPECT_THAT(gate.reasons, Contains(StartsWith("hard: verify, "))) << gates_text({.gates = {gate}});
  EXPECT_THAT(gate.reasons, Not(Contains(HasSubstr("decode, "))));
}

TEST(DivergenceGate, HoldsAServerAgainstACaptureOfAnother) {
  MockServer before(script());
  auto server = GateServer::connect({.url = before.url()}, "");
  ASSERT_TRUE(server);
  const auto documents = capture_documents(**server, {.documents = 1, .most_tokens = 40, .continuation = 10});
  ASSERT_TRUE(documents) << documents.error().message;
  const auto reference = run_capture(**server, CapturePath::kPrefill, *documents, "reference");
  ASSERT_TRUE(reference) << reference.error().message;
  EXPECT_TRUE(capture_bytes(*reference));
  GatePlan plan = small_plan();
  plan.reference = std::make_shared<const Capture>(*reference);
  const ReceiptGate same = run("divergence", before, plan);
  EXPECT_EQ(same.verdict, Verdict::kPass) << gates_text({.gates = {same}});

  MockServer after(script([](const Json&, size_t position, bool, std::vector<double>& logits) {
    logits[position % logits.size()] += 0.5;
  }));
  const ReceiptGate gate = run("divergence", after, plan);
  EXPECT_EQ(gate.verdict, Verdict::kFail);
  EXPECT_THAT(gate.reasons, Contains(StartsWith("kl: prefill, ")));
  EXPECT_THAT(gate.range, HasSubstr("against a reference capture"));
}

// Every path gives the same numbers for the same positions.
TEST(CaptureRun, PathsAgreeOnACleanServer) {
  MockServer mock(script());
  auto server = GateServer::connect({.url = mock.url()}, "");
  ASSERT_TRUE(server);
  const auto documents = capture_documents(**server, {.documents = 1, .most_tokens = 40, .continuation = 10}).value();
  ASSERT_EQ(documents.size(), 9u);
  const auto prefill = run_capture(**server, CapturePath::kPrefill, documents, "x").value();
  for (const CapturePath path : kCapturePaths) {
    const auto capture = run_capture(**server, path, documents, "x");
    ASSERT_TRUE(capture) << capture.error().message;
    EXPECT_EQ(capture->corpus_sha256, prefill.corpus_sha256);
    const auto classes = compare_captures(prefill, *capture);
    ASSERT_TRUE(classes) << classes.error().message;
    for (const ClassDivergence& of : *classes) {
      EXPECT_LT(of.kl(), 1e-6);
      EXPECT_EQ(of.flips(), 0);
      EXPECT_EQ(of.positions, path <= CapturePath::kMixed ? 39 : 10);
    }
  }
}

TEST(LosslessGate, FindsDraftsThatChangeTheAnswer) {
  MockServer mock(script([](const Json& request, size_t position, bool generated, std::vector<double>& logits) {
    if (generated && drafts(request)) flip(position, logits);
  }));
  const ReceiptGate gate = run("lossless", mock);
  EXPECT_EQ(gate.verdict, Verdict::kFail) << gates_text({.gates = {gate}});
  EXPECT_THAT(gate.reasons, Contains(AllOf(StartsWith("parity: "), HasSubstr("which is better by"))));
}

TEST(LosslessGate, FindsSamplesOfAnotherDistribution) {
  MockServer mock(script([](const Json& request, size_t, bool generated, std::vector<double>& logits) {
    if (!generated || request["temperature"] == 0) return;
    for (double& logit : logits) logit *= 0.5;
  }));
  const ReceiptGate gate = run("lossless", mock);
  EXPECT_EQ(gate.verdict, Verdict::kFail);
  EXPECT_THAT(gate.reasons, Contains(AllOf(StartsWith("sampling: "), HasSubstr("chi-squared"))));
}

TEST(LosslessGate, CountsNearTies) {
  // The two best are equal but for a hair, which drafts turn over.
  MockServer mock(script([](const Json& request, size_t position, bool, std::vector<double>& logits) {
    const size_t a = position % 7, b = a + 9;
    logits[a] = 9;
    logits[b] = 9 + (drafts(request) ? 0.01 : -0.01);
  }));
  const ReceiptGate gate = run("lossless", mock);
  EXPECT_GT(gate.observed.at("near_ties"), 0);
  EXPECT_EQ(gate.observed.at("parity"), 0);
}

TEST(CompletionAnswer, ErrorsNameTheField) {
  const std::vector<int32_t> prompt = {0, 5};
  const auto problem = [&](const char* json) {
    const auto answer = parse_completion(json, prompt);
    return answer ? std::string("taken") : answer.error().message;
  };
  EXPECT_THAT(problem("["), StartsWith("choices: "));
  EXPECT_THAT(problem(R"({"choices": []})"), StartsWith("choices: "));
  EXPECT_THAT(problem(R"({"choices": [{"prompt_logprobs": [null]}]})"), HasSubstr("no array of 2 entries"));
  EXPECT_THAT(problem(R"({"choices": [{"prompt_logprobs": [null, {"x": {"logprob": -1}}]}]})"),
              StartsWith("prompt_logprobs[1]: is no object"));
  EXPECT_THAT(problem(R"({"choices": [{"prompt_logprobs": [null, {"6": {"logprob": -1}}]}]})"),
              HasSubstr("without the prompt's token 5"));
  EXPECT_THAT(problem(R"({"choices": [{"logprobs": {"tokens": ["a"], "top_logprobs": [{"a": -1}]}}]})"),
              HasSubstr("return_tokens_as_token_ids"));
  EXPECT_THAT(problem(R"({"choices": [{"logprobs": {"tokens": ["token_id:1"], "top_logprobs": []}}]})"),
              HasSubstr("no arrays of one length"));
  const auto good = parse_completion(
      R"({"choices": [{"prompt_logprobs": [null, {"7": {"logprob": -0.1, "rank": 1}, "5": {"logprob": -9, "rank": 90}}],
          "logprobs": {"tokens": ["token_id:4"], "top_logprobs": [{"token_id:4": -2, "token_id:3": -0.5}]}}],
          "usage": {"prompt_tokens_details": {"cached_tokens": 3}, "speculation": {"drafted_tokens": 2}}})",
      prompt);
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(good->choices[0].prompt[0].rank, 90u);
  EXPECT_FLOAT_EQ(good->choices[0].prompt[0].logprob, -9);
  EXPECT_EQ(good->choices[0].tokens, std::vector<int32_t>{4});
  EXPECT_EQ(good->choices[0].positions[0].top.front().first, 3);
  EXPECT_EQ(good->choices[0].positions[0].rank, 2u);
  EXPECT_EQ(good->cached_tokens, 3);
  EXPECT_EQ(good->drafted_tokens, 2);
}

}  // namespace
}  // namespace onelane
