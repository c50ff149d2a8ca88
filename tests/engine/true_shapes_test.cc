// An engine on the published shapes, cut to a few layers, on a device (see tests/model/true_shapes_test.cc).
#include <gtest/gtest.h>

#include "engine_support.h"
#include "model/synthetic.h"
#include "support/gpu.h"

namespace onelane {
namespace {

class TrueShapesEngine : public ::testing::TestWithParam<const char*> {};

// Its self-test is part of what is tested. Prompts are read beside the answers of others, 4 sequences with 5 drafts
// each.
TEST_P(TrueShapesEngine, AnswersAreThoseOfOneTokenAtATime) {
  if (testing::model_kernels() == nullptr) GTEST_SKIP() << "for GPUs: ONELANE_TEST_BACKEND=cuda";
  const auto kernels = testing::make_test_kernels(1);
  const auto model = synthetic_model({.family = GetParam(), .layers = 5}, kernels.get());
  ASSERT_TRUE(model) << model.error().message;
  constexpr int kTokens = 24;
  std::vector<Request> requests;
  for (const int length : {5, 130, 333, 700}) {
    const int vocab = (*model)->spec.vocab;
    requests.push_back(greedy(random_prompt(length, static_cast<unsigned>(length), vocab), kTokens));
  }
  EngineOptions options = small_options();
  options.step_rows = 256;
  options.draft_schedule = *DraftSchedule::parse("64:5");
  std::vector<Answer> answers;
  {
    TestEngine engine(**model, *kernels, options);
    answers = engine.run_all(requests);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(answers[i].tokens, session_tokens(**model, requests[i].prompt, kTokens)) << requests[i].prompt.size();
  }
}

INSTANTIATE_TEST_SUITE_P(Published, TrueShapesEngine, ::testing::Values("v4", "v41"));

}  // namespace
}  // namespace onelane
