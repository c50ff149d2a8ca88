// Hits of every shape, on real forward passes: the logits and drafts after a hit are those of a cold run, to the bit.
// Numbers in test names are those of the complaints about other engines that they rule out.
#include "cache/prefix_cache.h"

#include "serving.h"

namespace onelane {
namespace {

class PrefixCacheHits : public CacheTest {};

constexpr const char* kSameCopies = "tiers_test makes the same copies without minutes of checked arithmetic";

INSTANTIATE_TEST_SUITE_P(Generations, PrefixCacheHits, ::testing::Values("v4", "v41"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST_P(PrefixCacheHits, Complaint20_ColdPartialExactShorterAndDivergentPrefixesGiveTheSameBits) {
  if (kSanitized) GTEST_SKIP() << kSameCopies;
  const auto serving = serve(roomy());
  const auto base = text(384, 1);
  const auto prompt = base + text(60, 2);
  const auto whole = cold(prompt);
  expect_answer(serving->run(prompt), whole, 0);
  // Exact: the same again. Partial: another tail. Shorter: the first part of it, where a checkpoint was taken.
  expect_answer(serving->run(prompt), whole, 384);
  const auto partial = base + text(100, 3);
  expect_answer(serving->run(partial), cold(partial), 384);
  const auto shorter = std::span<const int32_t>(base).first(300) + text(7, 4);
  expect_answer(serving->run(shorter), cold(shorter), 0);  // leaves the path at 256: a checkpoint is taken there
  const auto divergent = std::span<const int32_t>(base).first(256) + text(200, 5);
  expect_answer(serving->run(divergent), cold(divergent), 256);
  const auto longer = prompt + text(200, 6);
  const auto expected = cold(longer);
  expect_answer(serving->run(longer), expected, 384);
  expect_answer(serving->run(longer), expected, 640);
}

TEST_P(PrefixCacheHits, Complaint21_AHitFromAnotherSlotBringsItsOwnWindow) {
  const auto serving = serve(roomy());
  const auto base = text(256, 1);
  const auto other = text(500, 2);
  const auto prompt = base + text(40, 3);
  serving->run(prompt, 0);
  serving->run(other, 1);  // leaves its own rings behind in slot 1
  expect_answer(serving->run(prompt, 1), cold(prompt), 256);
  expect_answer(serving->run(prompt, 2), cold(prompt), 256);
}

TEST_P(PrefixCacheHits, Complaint29_IdenticalPromptReportsCachedTokens) {
  const auto serving = serve(roomy());
  const auto prompt = text(150, 1);
  EXPECT_EQ(serving->run(prompt).cached, 0);
  EXPECT_EQ(serving->run(prompt).cached, 128);
  EXPECT_EQ(serving->run(prompt).cached, 128);
}

TEST_P(PrefixCacheHits, Complaint31_LengthsAroundPageMultiples) {
  if (kSanitized) GTEST_SKIP() << kSameCopies;
  for (const int pages : {1, 2, 4}) {
    for (const int delta : {-1, 0, 1}) {
      const auto serving = serve(roomy());
      const int length = pages * kPageTokens + delta;
      const auto prompt = text(length, 1);
      const auto expected = cold(prompt);
      SCOPED_TRACE(length);
      expect_answer(serving->run(prompt), expected, 0);
      expect_answer(serving->run(prompt, 1), expected, (length - 1) / kPageTokens * kPageTokens);
    }
  }
}

TEST_P(PrefixCacheHits, ACheckpointStaysRightWhenTheRingsHoldADraftBlockBehindIt) {
  // A verify step may have run over the boundary: the rings then hold rejected tokens when the checkpoint is taken.
  const auto serving = serve(roomy());
  const auto base = text(256, 1);
  const int ahead = model_->spec.dspark.block_size;
  const auto junk = base + text(ahead, 2);
  const std::vector<int> pages = serving->take_pages(3);
  serving->compute(junk, 0, pages, 0, /*use_cache=*/false);
  serving->cache().insert(base, pages);
  serving->cache().checkpoint(base, 0);
  for (const int page : pages) serving->pool().release(page);
  const auto prompt = base + text(40, 3);
  expect_answer(serving->run(prompt, 1), cold(prompt), 256);
}

TEST_P(PrefixCacheHits, PagesComeBackFromHostMemory) {
  if (kSanitized) GTEST_SKIP() << kSameCopies;
  auto options = roomy();
  options.host_bytes = int64_t{1} << 30;
  options.checkpoint_bytes = 0;  // checkpoints go there at once
  const auto serving = serve(options, 8);
  const auto prompt = text(400, 1);
  const auto expected = cold(prompt);
  serving->run(prompt);
  EXPECT_EQ(serving->cache().stats().checkpoints, 0);
  EXPECT_EQ(serving->cache().reclaim(100), 3);
  EXPECT_EQ(serving->pool().free(), 8);
  expect_answer(serving->run(prompt, 2), expected, 384);
  EXPECT_EQ(serving->cache().stats().restored_pages, 3u);
  serving->run(text(900, 2));  // pushes the others out
  expect_answer(serving->run(prompt, 1), expected, 384);
}

TEST_P(PrefixCacheHits, ARestartedServerGoesOnFromDisk) {
  const TempDir dir("restart");
  auto options = roomy();
  options.disk_dir = dir.path();
  options.disk_bytes = int64_t{1} << 30;
  const auto prompt = text(400, 1);
  const auto expected = cold(prompt);
  expect_answer(serve(options)->run(prompt), expected, 0);
  const auto serving = serve(options);
  expect_answer(serving->run(prompt, 2), expected, 384);
  EXPECT_EQ(serving->cache().stats().restored_pages, 3u);
  const auto partial = std::span<const int32_t>(prompt).first(384) + text(30, 2);
  expect_answer(serving->run(partial), cold(partial), 384);
}

TEST_P(PrefixCacheHits, WithoutHostMemoryWhatIsReclaimedIsForgotten) {
  if (kSanitized) GTEST_SKIP() << kSameCopies;
  const auto serving = serve(roomy());
  const auto prompt = text(300, 1);
  serving->run(prompt);
  EXPECT_EQ(serving->cache().reclaim(1), 1);  // the end of the path goes first
  expect_answer(serving->run(prompt), cold(prompt), 0);
  expect_answer(serving->run(prompt), cold(prompt), 256);
}

}  // namespace
}  // namespace onelane
