#include "engine/scheduler.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "engine/memory_plan.h"

namespace onelane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ShareChunk, TheShortestGoesFirstAndTheOldestKeepsAQuarter) {
  const std::vector<PromptView> prompts = {{10000, 10000}, {300, 300}, {20, 20}, {30, 30}};
  EXPECT_THAT(share_chunk(prompts, {100, 10}), ElementsAre(25, 25, 20, 30));
  EXPECT_THAT(share_chunk(prompts, {1000, 10}), ElementsAre(650, 300, 20, 30));
}

TEST(ShareChunk, WaitingMakesAPromptShorter) {
  std::vector<PromptView> prompts = {{10000, 10000}, {400, 400}, {200, 200}};
  EXPECT_THAT(share_chunk(prompts, {100, 10}), ElementsAre(25, 0, 75));
  prompts[1].waited = 20;
  EXPECT_THAT(share_chunk(prompts, {100, 10}), ElementsAre(25, 75, 0));
}

TEST(ShareChunk, EndsAtCheckpointsAndLeavesTheRestToOthers) {
  EXPECT_THAT(share_chunk(std::vector<PromptView>{{500, 28}, {400, 100}}, {200, 10}), ElementsAre(28, 100));
}

TEST(ShareChunk, LogitsAreCounted) {
  // The last row of a prompt asks for logits, and every row of one that is scored.
  EXPECT_THAT(share_chunk(std::vector<PromptView>{{5, 5}, {6, 6}, {7, 7}}, {100, 2}), ElementsAre(5, 6, 6));
  EXPECT_THAT(share_chunk(std::vector<PromptView>{{50, 50, true}, {6, 6}}, {100, 20}), ElementsAre(19, 6));
}

TEST(ShareChunk, NeverGivesMoreThanThereIs) {
  rc::check([] {
    const auto count = *rc::gen::inRange<size_t>(0, 8);
    std::vector<PromptView> prompts(count);
    for (PromptView& prompt : prompts) {
      prompt.left = *rc::gen::inRange(1, 2000);
      prompt.chunk = *rc::gen::inRange(1, prompt.left + 1);
      prompt.logits = *rc::gen::arbitrary<bool>();
      prompt.waited = *rc::gen::inRange(0, 100);
    }
    const ChunkLimits limits{*rc::gen::inRange(0, 600), *rc::gen::inRange(0, 100)};
    const auto rows = share_chunk(prompts, limits);
    int total = 0;
    int logits = 0;
    for (size_t i = 0; i < count; ++i) {
      RC_ASSERT(rows[i] >= 0 && rows[i] <= prompts[i].chunk);
      total += rows[i];
      logits += prompts[i].logits ? rows[i] : rows[i] == prompts[i].left;
    }
    RC_ASSERT(total <= limits.rows);
    RC_ASSERT(logits <= limits.logit_rows);
    if (count > 0 && limits.rows > 0 && limits.logit_rows > 0) RC_ASSERT(rows[0] > 0);
  });
}

TEST(ShareChunk, EveryPromptIsReadInTheEnd) {
  // Short prompts keep coming; the two long ones must end nevertheless.
  std::vector<PromptView> prompts = {{4000, 4000}, {3000, 3000}};
  int turns = 0;
  while (prompts.size() > 1 && ++turns < 10000) {
    while (prompts.size() < 4) prompts.push_back({64, 64});
    const auto rows = share_chunk(prompts, {64, 8});
    std::vector<PromptView> left;
    for (size_t i = 0; i < prompts.size(); ++i) {
      prompts[i].left -= rows[i];
      prompts[i].chunk = prompts[i].left;
      prompts[i].waited = rows[i] > 0 ? 0 : prompts[i].waited + 1;
      if (prompts[i].left > 0) left.push_back(prompts[i]);
    }
    prompts = left;
    if (prompts.empty() || prompts[0].left <= 64) break;
  }
  EXPECT_LT(turns, 600);
}

TEST(DraftDepth, FollowsTheScheduleAndTheRows) {
  const DraftSchedule schedule;
  EXPECT_EQ(draft_depth(schedule, 0, 5, 512, false), 0);
  EXPECT_EQ(draft_depth(schedule, 1, 5, 512, true), 5);
  EXPECT_EQ(draft_depth(schedule, 1, 3, 512, true), 3);
  EXPECT_EQ(draft_depth(schedule, 8, 5, 512, true), 3);
  EXPECT_EQ(draft_depth(schedule, 9, 5, 512, true), 0);
  EXPECT_EQ(draft_depth(*DraftSchedule::parse("64:1"), 16, 5, 512, true), 1);
  EXPECT_EQ(draft_depth(schedule, 4, 5, 20, false), 4);
  EXPECT_EQ(draft_depth(schedule, 4, 5, 20, true), 2);  // a quarter of the rows is for prompts
  EXPECT_EQ(draft_depth(schedule, 16, 5, 16, true), 0);
}

TEST(DraftSchedule, ReadsAndWritesTables) {
  const auto schedule = DraftSchedule::parse("4:5,8:3,64:1");
  ASSERT_TRUE(schedule);
  EXPECT_EQ(schedule->text(), "4:5,8:3,64:1");
  const DraftSchedule usual;
  EXPECT_EQ(usual.text(), "4:5,8:3,64:0");
  EXPECT_EQ(DraftSchedule::parse(usual.text())->text(), usual.text());
  for (const auto& [sequences, depth] : {std::pair{1, 5}, {4, 5}, {5, 3}, {8, 3}, {9, 1}, {64, 1}, {65, 0}}) {
    EXPECT_EQ(schedule->depth(sequences), depth) << sequences;
  }
  EXPECT_EQ(DraftSchedule::parse("0")->depth(1), 0);
  EXPECT_EQ(DraftSchedule::parse("")->text(), "0");
  for (const char* bad : {"4", "4:", ":5", "4:5,", "4:5,4:3", "8:1,4:2", "4:17", "4:-1", "0:5", "a:b", "4:5 ,8:3"}) {
    const auto refused = DraftSchedule::parse(bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_THAT(refused.error().message, HasSubstr("draft schedule")) << bad;
  }
}

TEST(CostModel, BoundsTheChunkByWhatRowsCost) {
  CostModel cost;
  EXPECT_EQ(cost.prompt_rows(4, 200), CostModel::kLeast);  // nothing is known yet
  for (int i = 0; i < 50; ++i) {
    cost.observe(4, 0, 20);
    cost.observe(4, 100, 120);
  }
  EXPECT_NEAR(cost.prompt_row_ms(), 1, 0.05);
  EXPECT_NEAR(cost.prompt_rows(4, 200), 180, 10);
  EXPECT_EQ(cost.prompt_rows(4, 10), CostModel::kLeast);
}

TEST(MemoryPlan, LogitRowsCoverEveryNumberOfSequencesAtItsDepth) {
  const auto schedule = *DraftSchedule::parse("4:5,8:3,64:1");
  // 8 sequences of 3 drafts need more rows than 4 of 5, or 16 of 1 do.
  EXPECT_EQ(logit_rows_needed(schedule, 16, 5, 512), 8 * 4 + 8 + kScoreRows);
  EXPECT_EQ(logit_rows_needed(schedule, 1, 5, 512), 6 + kScoreRows);
  EXPECT_EQ(logit_rows_needed(schedule, 64, 5, 512), 128 + kScoreRows);
  EXPECT_EQ(logit_rows_needed(schedule, 64, 5, 100), 100);
  EXPECT_EQ(logit_rows_needed(*DraftSchedule::parse("0"), 3, 5, 512), 3 + kScoreRows);
}

TEST(MemoryPlan, SaysWhatToLower) {
  const std::vector<PlannedBytes> plan = {{"weights (mapped from the checkpoint)", int64_t{1} << 40},
                                          {"KV pages (kv_bytes)", int64_t{6} << 30},
                                          {"logits (max_sequences)", int64_t{1} << 30}};
  EXPECT_TRUE(check_memory(plan, int64_t{8} << 30));  // mapped weights need no memory of their own
  EXPECT_TRUE(check_memory(plan, -1));
  const auto refused = check_memory(plan, int64_t{4} << 30);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("7.0 GiB"));
  EXPECT_THAT(refused.error().message, HasSubstr("4.0 GiB"));
  EXPECT_THAT(refused.error().message, HasSubstr("kv_bytes"));
}

}  // namespace
}  // namespace onelane
