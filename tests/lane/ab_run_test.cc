// Arms here are shell commands that copy receipts made beforehand: everything but the measuring is real.
#include "lane/ab_run.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/format.h"
#include "base/mapped_file.h"
#include "lane/ab_support.h"
#include "lane/receipt_report.h"

namespace onelane {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

class AbRunTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / (std::to_string(::getpid()) + "_ab");
    fs::remove_all(root_);
    fs::create_directories(root_ / "made");
  }
  void TearDown() override { fs::remove_all(root_); }

  AbPlan plan(AbQuestion question = AbQuestion::kPromotion, int64_t quads = 0, int64_t extension = 0) const {
    AbPlan plan;
    plan.question = question;
    plan.control.command = plan.candidate.command =
        format("cp {}/{{order}}.json {{receipt}}", (root_ / "made").string());
    plan.quads = quads;
    plan.extension_quads = extension;
    return *complete_plan(plan);
  }
  void make(const AbPlan& plan, const Truth& truth, uint64_t seed = 1) {
    const auto blocks = test_blocks(plan, truth, seed);
    for (size_t i = 0; i < blocks.size(); ++i) {
      Receipt receipt = blocks[i].receipt;
      for (ReceiptCell& cell : receipt.cells) {
        cell.last_token_s = 30.0;
        cell.tokens = std::llround(*cell.tok_s * 30);  // so that tok_s follows from it
      }
      ASSERT_TRUE(save_receipt(receipt, (root_ / "made" / std::to_string(i + 1)).string() + ".json"));
    }
  }
  std::string folder() const { return (root_ / "run").string(); }
  std::string file(const char* name) const { return (root_ / "run" / name).string(); }
  Result<AbRun> run(const AbPlan& plan) {
    lines_.clear();
    return run_plan(plan, {folder(), "onelane", [this](const std::string& line) { lines_.push_back(line); }});
  }

  fs::path root_;
  std::vector<std::string> lines_;
};

TEST_F(AbRunTest, APromotionFromPlanToReceipt) {
  const AbPlan planned = plan();
  make(planned, {.effect = 0.03, .block_sd = 0.002});
  const auto done = run(planned);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->receipt.verdict, Verdict::kPass) << testing::PrintToString(done->receipt.reasons);
  EXPECT_EQ(lines_.size(), 16u);
  const std::string text = *read_file(file("ab.json"));
  EXPECT_THAT(verify_receipt(text, folder()), ElementsAre());
  const Receipt receipt = *parse_receipt(text);
  EXPECT_EQ(receipt.artifacts.size(), 18u);
  EXPECT_NEAR(receipt.cells[0].measures.at(kAbEffect), 3.0, 0.4);
  EXPECT_NEAR(receipt.cells[0].measures.at(kAbAccept), 3.05, 0.01);
  EXPECT_EQ(receipt.gates[0].id, "ab/promotion");

  const auto again = read_run(folder());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->comparison.all.quads, done->comparison.all.quads);
  const std::vector<NamedReceipt> shown = {{receipt, receipt_digest(text)}};
  const std::string page = render_markdown(receipts_document("A/B", shown));
  EXPECT_THAT(page, HasSubstr("| class prose | +"));
  EXPECT_THAT(page, HasSubstr("| ab/promotion | PASS | 4 sound quads of 4, 1 cells |"));
  EXPECT_THAT(run(planned).error().message, HasSubstr("must be empty"));
}

TEST_F(AbRunTest, ChangedFilesAreRefused) {
  const AbPlan planned = plan(AbQuestion::kBroken);
  make(planned, {});
  ASSERT_TRUE(run(planned));
  const std::string block = file("block-02-CAND.json"), good = *read_file(block);
  std::string bad = good;
  bad.replace(bad.find("after"), 5, "never");
  ASSERT_TRUE(write_file(block, bad));
  EXPECT_THAT(read_run(folder()).error().message, HasSubstr("digest: does not fit"));
  ASSERT_TRUE(write_file(block, *seal_receipt(bad)));
  EXPECT_THAT(read_run(folder()).error().message, HasSubstr("is not the receipt of the run"));
  ASSERT_TRUE(write_file(block, good));
  ASSERT_TRUE(read_run(folder()));

  std::string rosy = *read_file(file("ab.json"));
  rosy.replace(rosy.find("\"effect_percent\": "), 18, "\"effect_percent\": 4");
  ASSERT_TRUE(write_file(file("ab.json"), *seal_receipt(rosy)));
  EXPECT_THAT(read_run(folder()).error().message, HasSubstr("does not follow from the blocks"));
  fs::remove(file("block-01-CTL.json"));
  EXPECT_THAT(read_run(folder()).error().message, HasSubstr("block-01-CTL.json"));
}

// Two looks: the second only where the first could not tell.
TEST_F(AbRunTest, TheExtensionRunsWhenItIsNeeded) {
  const AbPlan planned = plan(AbQuestion::kPromotion, 4, 6);
  make(planned, {.effect = 0.03, .block_sd = 0.001});
  EXPECT_EQ(run(planned)->blocks.size(), 16u);
  fs::remove_all(folder());
  make(planned, {.effect = 0.001, .block_sd = 0.003}, 3);
  const auto extended = run(planned);
  ASSERT_TRUE(extended);
  EXPECT_EQ(extended->blocks.size(), 24u);
  EXPECT_THAT(lines_, Contains(HasSubstr("inconclusive")));
  EXPECT_TRUE(read_run(folder()));
}

TEST_F(AbRunTest, AnArmThatLeavesNoReceiptVoids) {
  AbPlan planned = plan();
  planned.candidate.command = "echo the port is taken >&2; exit 3; {receipt}";
  make(planned, {.effect = 0.03});
  const auto done = run(planned);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->receipt.verdict, Verdict::kVoid);
  EXPECT_THAT(done->receipt.void_reasons, Contains(HasSubstr("exited with 3 and last said: the port is taken")));
  EXPECT_EQ(done->blocks.size(), 4u);  // three sound quads cannot be enough
  EXPECT_TRUE(read_run(folder()));
}

// The receipt is the verdict; how its command exits is not.
TEST_F(AbRunTest, TheExitCodeIsNotTheVerdict) {
  AbPlan planned = plan(AbQuestion::kBroken);
  planned.control.command += "; exit 1";
  make(planned, {});
  EXPECT_EQ(run(planned)->receipt.verdict, Verdict::kPass);
}

TEST_F(AbRunTest, ATimeoutVoidsTheBlock) {
  AbPlan planned = plan(AbQuestion::kBroken);
  planned.block_timeout_s = 1;
  planned.candidate.command += "; sleep 100";
  make(planned, {});
  EXPECT_THAT(run(planned)->receipt.void_reasons, Contains(HasSubstr("block 2: the command was ended after 1 s")));
}

}  // namespace
}  // namespace onelane
