#include "engine/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/tiny_model.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;

class Generate : public ::testing::Test {
 protected:
  std::unique_ptr<Session> session(int max_tokens) {
    auto created = Session::create(*model_, *kernels_, {.max_tokens = max_tokens});
    EXPECT_TRUE(created);
    return *std::move(created);
  }
  GenerateOptions greedy(int max_tokens, int depth = 5) const {
    return {.max_tokens = max_tokens, .sampling = {.temperature = 0}, .draft_depth = depth};
  }
  std::unique_ptr<Model> model_ = load_tiny_model("v41");
  std::unique_ptr<Kernels> kernels_ = testing::make_test_kernels(1);
  const std::vector<int32_t> prompt_ = {0, 17, 99, 41, 7, 200, 12};
  static constexpr int32_t kNoEos = -1;
};

TEST_F(Generate, StopsAtTheEndTokenWhereverADraftBlockPutsIt) {
  const auto all = generate(*session(256), prompt_, greedy(40), kNoEos);
  ASSERT_TRUE(all);
  ASSERT_EQ(all->tokens.size(), 40u);
  // Every token that occurs takes its turn as the end token.
  for (size_t at = 0; at < all->tokens.size(); ++at) {
    const int32_t eos = all->tokens[at];
    const auto first = std::find(all->tokens.begin(), all->tokens.end(), eos) - all->tokens.begin();
    for (const int depth : {0, 5}) {
      const auto run = session(256);
      const auto result = generate(*run, prompt_, greedy(40, depth), eos);
      ASSERT_TRUE(result);
      EXPECT_EQ(result->reason, FinishReason::kStop);
      EXPECT_EQ(result->tokens, std::vector<int32_t>(all->tokens.begin(), all->tokens.begin() + first));
      EXPECT_EQ(result->stats.tokens, first + 1);
      EXPECT_EQ(run->tokens().size(), prompt_.size() + static_cast<size_t>(first));
    }
  }
}

TEST_F(Generate, StopsAtTheLimitAndAtTheCapacity) {
  for (const int limit : {1, 2, 3, 7, 13}) {
    const auto result = generate(*session(256), prompt_, greedy(limit), kNoEos);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->tokens.size(), static_cast<size_t>(limit));
    EXPECT_EQ(result->reason, FinishReason::kLength);
  }
  for (const int room : {1, 2, 5, 9}) {
    const auto run = session(static_cast<int>(prompt_.size()) + room);
    const auto result = generate(*run, prompt_, greedy(100), kNoEos);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->reason, FinishReason::kLength);
    EXPECT_EQ(result->tokens.size(), static_cast<size_t>(room) + 1);  // the last one is decided, not read
  }
}

TEST_F(Generate, TheSinkSeesEveryTokenOnceAndCanStop) {
  std::vector<int32_t> seen;
  const auto run = session(256);
  const auto result = generate(*run, prompt_, greedy(40), kNoEos, [&](int32_t token) {
    seen.push_back(token);
    return seen.size() < 9;
  });
  ASSERT_TRUE(result);
  EXPECT_EQ(seen, result->tokens);
  EXPECT_EQ(seen.size(), 9u);
  EXPECT_EQ(result->reason, FinishReason::kStop);
}

TEST_F(Generate, GoesOnWhereItLeftOff) {
  const auto whole = generate(*session(256), prompt_, greedy(30), kNoEos);
  const auto run = session(256);
  const auto first = generate(*run, prompt_, greedy(12), kNoEos);
  ASSERT_TRUE(first);
  const auto second = generate(*run, std::span(first->tokens).last(1), greedy(18), kNoEos);
  ASSERT_TRUE(second);
  std::vector<int32_t> joined = first->tokens;
  joined.insert(joined.end(), second->tokens.begin(), second->tokens.end());
  EXPECT_EQ(joined, whole->tokens);
}

TEST_F(Generate, BadRequestsAreRefusedAndChangeNothing) {
  const auto run = session(64);
  ASSERT_TRUE(run->append(prompt_));
  const auto before = std::vector<int32_t>(run->tokens().begin(), run->tokens().end());
  EXPECT_THAT(run->append(std::vector<int32_t>(60, 5)).error().message, HasSubstr("64"));
  EXPECT_THAT(run->append(std::vector<int32_t>{5, 256}).error().message, HasSubstr("256"));
  EXPECT_THAT(run->append(std::vector<int32_t>{-1}).error().message, HasSubstr("-1"));
  EXPECT_FALSE(run->append({}));
  EXPECT_THAT(generate(*run, prompt_, {.max_tokens = 0}, 1).error().message, HasSubstr("max_tokens"));
  EXPECT_THAT(generate(*run, prompt_, {.sampling = {.temperature = -1}}, 1).error().message, HasSubstr("temperature"));
  EXPECT_EQ(std::vector<int32_t>(run->tokens().begin(), run->tokens().end()), before);
  EXPECT_THAT(Session::create(*model_, *kernels_, {.max_tokens = 1 << 30}).error().message,
              HasSubstr("max_position_embeddings"));
}

}  // namespace
}  // namespace onelane
