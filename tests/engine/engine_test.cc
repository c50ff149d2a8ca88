#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine_support.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = load_tiny_model("v41").release();
    kernels_ = make_cpu_kernels(1).release();
  }
  static Model* model_;
  static Kernels* kernels_;
};
Model* EngineTest::model_ = nullptr;
Kernels* EngineTest::kernels_ = nullptr;

TEST_F(EngineTest, OneRequestGivesWhatASessionGives) {
  const auto prompt = random_prompt(200, 1);
  const auto expected = session_tokens(*model_, *kernels_, prompt, 40);
  TestEngine engine(*model_, *kernels_, small_options());
  const auto answer = engine.run(greedy(prompt, 40));
  EXPECT_EQ(answer.tokens, expected);
  EXPECT_EQ(answer.finish, FinishReason::kLength);
  EXPECT_EQ(answer.stats.tokens, 40);
  EXPECT_TRUE(engine->idle());
}

}  // namespace
}  // namespace onelane
