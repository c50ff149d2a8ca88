#include "lane/card.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include "base/format.h"
#include "base/mapped_file.h"
#include "lane/ab_support.h"
#include "lane/card_run.h"
#include "lane/sha256.h"

namespace onelane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kCard = R"(# a note
schema = "lane-card/1"
id = "wide-rows"
title = "64 heads a block | in the few-rows kernel"
hypothesis = "fewer waves"
prediction = "2 to 4 % at one stream"
[predicted]
low_percent = 2
high_percent = 4.0
[comparison]
question = "broken"
[comparison.control]
command = "cp made/{order}.json {receipt}"
[comparison.candidate]
command = "cp made/{order}.json {receipt}"
[[gates]]
id = "needle"
command = "cp made/gate.json {receipt}"
)";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kCard;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& text) {
  const auto card = parse_card(text);
  return card ? "" : card.error().message;
}

TEST(Card, IsReadWithDefaultsAndADrawnOrder) {
  const auto card = parse_card(kCard);
  ASSERT_TRUE(card) << card.error().message;
  EXPECT_EQ(card->id, "wide-rows");
  EXPECT_EQ(card->predicted->high_percent, 4);
  EXPECT_EQ(card->comparison.order.size(), 3u);
  EXPECT_EQ(card->comparison.metric, "tok_s");
  EXPECT_EQ(card->comparison.title, card->title);
  EXPECT_EQ(card->gates[0].id, "needle");
  EXPECT_FALSE(card->outcome);
  EXPECT_THAT(card_markdown(*card), HasSubstr("| predicted effect | +2 % to +4 % |"));
}

TEST(Card, RefusalsNameLineOrField) {
  EXPECT_THAT(refusal("a = ["), HasSubstr("line 1: "));
  EXPECT_THAT(refusal(with("lane-card/1", "lane-card/9")), HasSubstr("schema: must be"));
  EXPECT_THAT(refusal(with("hypothesis = \"fewer waves\"", "hypothesis = \" \"")), HasSubstr("hypothesis: is empty"));
  EXPECT_THAT(refusal(with("wide-rows", "wide rows")), HasSubstr("id: must be 1 to 64"));
  EXPECT_THAT(refusal(with("low_percent = 2", "low_percent = 5")), HasSubstr("predicted: low_percent"));
  EXPECT_THAT(refusal(with("low_percent = 2", "low_percent = nan")),
              HasSubstr("predicted.low_percent: must be a finite"));
  EXPECT_THAT(refusal(with("low_percent = 2", "low_percent = 2026-11-30")),
              HasSubstr("predicted.low_percent: must be text"));
  EXPECT_THAT(refusal(with("question = \"broken\"", "question = \"broke\"")),
              HasSubstr("comparison.question: must be one of"));
  EXPECT_THAT(refusal(with("question = \"broken\"", "quad = 3")), HasSubstr("comparison.quad: is not a field"));
  EXPECT_THAT(refusal(with("question = \"broken\"", "quads = 3")), HasSubstr("comparison: quads: must be 4"));
  EXPECT_THAT(refusal(with("{receipt}\"\n[comparison.cand", "x\"\n[comparison.cand")),
              HasSubstr("control.command: must say"));
  EXPECT_THAT(refusal(with("cp made/gate.json {receipt}", "true")), HasSubstr("gates[0].command: must say"));
  EXPECT_THAT(refusal(std::string(kCard) + "[[gates]]\nid = \"needle\"\ncommand = \"{receipt}\"\n"),
              HasSubstr("gates[1].id: is there twice"));
}

// toml++ 3.3 must not see these where white space may stand.
TEST(Card, LettersBeyondAsciiStandInQuotes) {
  EXPECT_THAT(refusal("a = 1\n\xC3\xA4 = 2\n"), HasSubstr("line 2: characters beyond ASCII"));
  EXPECT_THAT(refusal("a = \"x\" \xE3\x80\x81\n"), HasSubstr("line 1: characters"));
  EXPECT_THAT(refusal("a = \"\"\"x \\\n  \xC3\xA4\"\"\"\n"), HasSubstr("line 2: characters"));
  EXPECT_THAT(refusal("a = +\"ä\"\n"), HasSubstr("line 1: characters"));
  // These parse, and are no cards.
  for (const std::string text :
       {"title = \"ä\"", "# ä\n", "t = 'ä'", "t = \"\\\"ä\" # ä", "\"ä\" = 1", "t = '''\nä''ä'''''",
        "t = \"\"\"\"ä\"\"\"\"\"", "\xEF\xBB\xBFt = \"\\\\\"", "t = \"\" # ä"}) {
    EXPECT_THAT(refusal(text), HasSubstr("schema: must be")) << text;
  }
}

TEST(Card, ANewOneIsFilledInBeforeItReads) {
  const std::string text = new_card("an-id", "say \"why\" \\ not");
  EXPECT_THAT(refusal(text), HasSubstr("hypothesis: is empty"));
  std::string filled = text;
  for (const auto& [from, to] : {std::pair{"hypothesis = \"\"", "hypothesis = \"h\""},
                                 {"prediction = \"\"", "prediction = \"p\""},
                                 {"command = \"\"  #", "command = \"a {receipt}\" #"},
                                 {"command = \"\"", "command = \"b {receipt}\""}}) {
    filled.replace(filled.find(from), std::string(from).size(), to);
  }
  const auto card = parse_card(filled);
  ASSERT_TRUE(card) << card.error().message;
  EXPECT_EQ(card->title, "say \"why\" \\ not");
}

RC_GTEST_PROP(Card, OutcomesSurviveTheFile, (const std::string& raw)) {
  std::string sentence;  // any text that is UTF-8
  for (const char c : raw) sentence += static_cast<char>(c & 0x7f);
  const CardOutcome outcome{"2026-11-30", Verdict::kFail, sentence, false, "run", "digest"};
  const std::string text = with_outcome(kCard, outcome);
  RC_ASSERT(text.starts_with(kCard));
  const auto card = parse_card(text);
  RC_ASSERT(card.has_value());
  RC_ASSERT(card->outcome->sentence == sentence);
  RC_ASSERT(card->outcome->prediction_held == false);
}

TEST(Ledger, InsertsOneRowAndTouchesNothingElse) {
  const std::string ledger = *read_file(std::string(ONELANE_ROOT) + "/docs/ledger.md");
  const auto listed = insert_ledger_row(ledger, {"2026-12-01", "a | b\nc", "lost", "by hand"});
  ASSERT_TRUE(listed) << listed.error().message;
  const std::string row = "| 2026-12-01 | a \\| b c | lost | by hand |\n";
  const size_t at = listed->find(row);
  ASSERT_NE(at, std::string::npos);
  std::string without = *listed;
  EXPECT_EQ(without.erase(at, row.size()), ledger);
  EXPECT_EQ(listed->substr(0, at).substr(at - 18), "|---|---|---|---|\n");
  EXPECT_THAT(insert_ledger_row(*listed, {"2026-12-01", "a | b\nc", "lost", "by hand"}).error().message,
              HasSubstr("already"));
  EXPECT_THAT(insert_ledger_row("# Ledger\n\nnothing\n", {}).error().message, HasSubstr("has no table"));
  // The last bytes of a file count too.
  const std::string bare = "| date | idea | outcome | how measured |\n|---|---|---|---|\nlast\r\nwithout newline";
  EXPECT_TRUE(insert_ledger_row(bare, {"d", "i", "o", "h"})->ends_with("last\r\nwithout newline"));
}

class CardRunTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / (std::to_string(::getpid()) + "_card");
    fs::remove_all(root_);
    fs::create_directories(root_ / "made");
    text_ = kCard;
    for (size_t at; (at = text_.find("cp made")) != std::string::npos;) {
      text_.replace(at, 7, "cp " + (root_ / "made").string());
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  void make(double effect, Verdict gate) {
    const Card card = *parse_card(text_);
    const auto blocks = test_blocks(card.comparison, {.effect = effect});
    for (size_t i = 0; i < blocks.size(); ++i) {
      ASSERT_TRUE(save_receipt(blocks[i].receipt, (root_ / "made" / std::to_string(i + 1)).string() + ".json"));
    }
    Receipt receipt;
    receipt.kind = ReceiptKind::kGate;
    receipt.build.id = "after";
    receipt.gates = {{.id = "needle/1", .verdict = gate, .reasons = {"3 of 12 found"}}};
    receipt.verdict = gate;
    receipt.reasons = {"needle"};
    ASSERT_TRUE(save_receipt(receipt, (root_ / "made/gate.json").string()));
  }
  Result<CardRun> run() {
    return run_card(*parse_card(text_), text_, {(root_ / "run").string(), "onelane", [](const std::string&) {}});
  }
  std::vector<std::string> problems() {
    return verify_receipt(*read_file((root_ / "run/card.json").string()), (root_ / "run").string());
  }

  fs::path root_;
  std::string text_;
};

TEST_F(CardRunTest, ClosesWithAReceiptThatHolds) {
  make(0.03, Verdict::kPass);
  const auto done = run();
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_TRUE(done->closed);
  EXPECT_EQ(done->outcome.verdict, Verdict::kPass);
  EXPECT_EQ(done->outcome.prediction_held, true);
  EXPECT_EQ(done->outcome.sentence,
            "+3.05 % in tok_s (step rate +0.00 %, accept length +3.05 %); predicted were +2 to +4 %, which held");
  EXPECT_THAT(problems(), ElementsAre());
  EXPECT_EQ(done->receipt.gates.size(), 2u);
  EXPECT_EQ(done->receipt.protocol.sha256, sha256(text_));
  const LedgerRow row = ledger_row(*parse_card(text_), done->outcome, "onelane card run x.toml");
  EXPECT_THAT(row.how, HasSubstr(done->receipt.run_id));
  EXPECT_THAT(row.outcome, HasSubstr("PASS: +3.05 %"));
  const Card closed = *parse_card(with_outcome(text_, done->outcome));
  EXPECT_THAT(run_card(closed, text_, {(root_ / "again").string(), "", {}}).error().message,
              HasSubstr("outcome: the card was closed"));
  ASSERT_TRUE(write_file((root_ / "run/ab/plan.json").string(), "{}"));
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("artifact ab/plan.json: its SHA-256")));
}

TEST_F(CardRunTest, AFailedGateClosesItWithoutAComparison) {
  make(0.03, Verdict::kFail);
  const auto done = run();
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_TRUE(done->closed);
  EXPECT_EQ(done->outcome.sentence, "gate needle/1: FAIL (3 of 12 found)");
  EXPECT_FALSE(fs::exists(root_ / "run/ab"));
  EXPECT_EQ(done->receipt.build.id, "after");
  EXPECT_THAT(problems(), ElementsAre());
}

TEST_F(CardRunTest, WhatDidNotCountLeavesItOpen) {
  make(0.03, Verdict::kNotRun);
  EXPECT_FALSE(run()->closed);
  fs::remove_all(root_ / "run");
  make(0.03, Verdict::kPass);
  fs::remove(root_ / "made/2.json");
  const auto voided = run();
  EXPECT_FALSE(voided->closed);
  EXPECT_EQ(voided->receipt.verdict, Verdict::kVoid);
  fs::remove_all(root_ / "run");
  fs::remove(root_ / "made/gate.json");
  const auto unasked = run();
  EXPECT_FALSE(unasked->closed);
  EXPECT_EQ(unasked->receipt.verdict, Verdict::kNotRun);
  EXPECT_THAT(unasked->receipt.reasons, ElementsAre(HasSubstr("no receipt")));
}

}  // namespace
}  // namespace onelane
