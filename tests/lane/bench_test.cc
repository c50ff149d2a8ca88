// Whole benches against the mock server, and what they leave: tables, JSON, receipts.
#include "lane/bench.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "lane/mock_server.h"

namespace onelane {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

BenchOptions short_bench(const MockServer& mock, BenchMode mode) {
  BenchOptions options{.url = mock.url(), .mode = mode, .concurrency = {2, 1}, .max_tokens = 100000};
  options.warmup_s = 0;
  options.prefill_s = 0.05;
  options.timing = {.window_s = 0.5,
                    .ready_least_s = 0.05,
                    .ready_hold_s = 0.05,
                    .ready_timeout_s = 5,
                    .poll_s = 0.05,
                    .drain_hold_s = 0.02,
                    .drain_timeout_s = 5,
                    .silence_s = 10,
                    .max_lag_s = 10};
  return options;
}

MockScript slow(MockScript script = {}) {
  script.first_token_seconds = script.token_seconds = 0.04;
  return script;
}

BenchReport run(const BenchOptions& options) {
  auto report = run_bench(options, {});
  EXPECT_TRUE(report) << report.error().message;
  return report ? *std::move(report) : BenchReport{};
}

BenchReport run_clean(const BenchOptions& options) {
  return best_of_three([&] { return run(options); },
                       [](const BenchReport& report) { return bench_receipt(report, "").verdict == Verdict::kPass; });
}

std::string content(const nlohmann::json& request, size_t message) { return request["messages"][message]["content"]; }

TEST(Bench, LibModeFollowsTheProtocol) {
  MockServer mock(slow());
  BenchOptions options = short_bench(mock, BenchMode::kLib);
  options.contexts = {0, 512};
  options.kv_tokens = 2 * (512 + 100000) - 1;
  options.prefill_contexts = {256};
  const BenchReport report = run_clean(options);

  ASSERT_EQ(report.cells.size(), 4u);
  EXPECT_EQ(report.cells[0].id, "filler/C1/ctx0");  // first the column of the smallest, then the row, then the rest
  EXPECT_EQ(report.cells[1].id, "filler/C1/ctx512");
  EXPECT_EQ(report.cells[2].id, "filler/C2/ctx0");
  EXPECT_EQ(report.cells[3].id, "filler/C2/ctx512");
  EXPECT_THAT(report.cells[3].skipped, HasSubstr("2 x (512 + 100000) tokens do not fit"));
  for (size_t i = 0; i < 3; ++i) EXPECT_THAT(report.cells[i].window.flags, IsEmpty());
  EXPECT_FALSE(report.original_texts);

  // All streams of a cell ask the same, in the protocol's words.
  std::vector<nlohmann::json> windows;
  for (const nlohmann::json& request : mock.seen()) {
    if (request["max_tokens"] == 100000) windows.push_back(request);
  }
  ASSERT_GE(windows.size(), 4u);
  windows.erase(windows.begin(), windows.end() - 4);  // of the last attempt
  EXPECT_EQ(windows[2], windows[3]);
  EXPECT_EQ(windows[0]["messages"].size(), 1u);
  ASSERT_EQ(windows[1]["messages"].size(), 3u);
  EXPECT_EQ(windows[1]["messages"][1]["role"], "assistant");
  EXPECT_EQ(content(windows[1], 2), content(windows[0], 0));
  EXPECT_THAT(content(windows[1], 0), ::testing::ContainsRegex("\\[BENCH_[a-z]+_CTX_512\\] "));
  EXPECT_EQ(windows[0]["ignore_eos"], true);
  EXPECT_FALSE(windows[0].contains("temperature"));
  EXPECT_EQ(windows[0]["stream_options"], nlohmann::json({{"include_usage", true}, {"continuous_usage_stats", true}}));

  // The mock counts words, so calibration comes close to what was asked for.
  ASSERT_EQ(report.prefill.size(), 1u);
  EXPECT_THAT(report.prefill[0].flags, IsEmpty());
  ASSERT_FALSE(report.prefill[0].samples.empty());
  EXPECT_NEAR(static_cast<double>(*report.prefill[0].samples[0].prompt_tokens), 256, 80);
  EXPECT_GT(*report.prefill[0].tok_s, 0);

  const auto json = nlohmann::json::parse(bench_json(report));
  EXPECT_EQ(json["metadata"]["mode"], "lib");
  EXPECT_EQ(json["results"].size(), 4u);
  EXPECT_EQ(json["summary_table"]["512"]["2"], -1);
  EXPECT_EQ(json["summary_table"]["0"]["1"], json["results"][0]["aggregate_tps"]);
  EXPECT_EQ(json["prefill"]["256"]["samples"].size(), report.prefill[0].samples.size());
  EXPECT_THAT(bench_tables(report), HasSubstr("skip"));

  const Receipt receipt = bench_receipt(report, "onelane bench serve");
  EXPECT_EQ(receipt.verdict, Verdict::kPass);
  EXPECT_EQ(receipt.protocol.mode, "lib");
  const auto text = receipt_json(receipt);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_THAT(verify_receipt(*text, ""), IsEmpty());
  const auto read = parse_receipt(*text);
  ASSERT_TRUE(read);
  ASSERT_EQ(read->cells.size(), 5u);
  EXPECT_EQ(read->cells[0].token_source, "usage");
  EXPECT_NEAR(*read->cells[0].tok_s, *report.cells[0].window.tok_s, 1e-9);
}

TEST(Bench, StrictModeAsksADifferentPromptEachTime) {
  MockServer mock(slow());
  BenchOptions options = short_bench(mock, BenchMode::kStrict);
  options.concurrency = {2};
  options.classes = {"prose"};
  options.contexts = {0, 256};
  options.temperature = 0.5;
  options.characters_per_token = 5;
  const BenchReport report = run_clean(options);
  ASSERT_EQ(report.cells.size(), 2u);
  for (const CellResult& cell : report.cells) EXPECT_THAT(cell.window.flags, IsEmpty()) << cell.id;
  std::vector<nlohmann::json> windows;
  for (const nlohmann::json& request : mock.seen()) {
    if (request["max_tokens"] == 100000) windows.push_back(request);
  }
  ASSERT_GE(windows.size(), 4u);
  windows.erase(windows.begin(), windows.end() - 4);  // of the last attempt
  EXPECT_NE(windows[0]["messages"], windows[1]["messages"]);
  EXPECT_EQ(windows[0]["temperature"], 0.5);
  // Behind a document that the streams of a cell share.
  EXPECT_EQ(windows[2]["messages"].size(), 3u);
  EXPECT_EQ(content(windows[2], 0), content(windows[3], 0));
  EXPECT_NE(windows[2]["messages"][2], windows[3]["messages"][2]);
  EXPECT_EQ(bench_receipt(report, "").verdict, Verdict::kPass);
}

TEST(Bench, AnswersThatMayEndAreGraded) {
  const WorkloadClass& of = *builtin_workloads().find("reasoning");
  MockScript script = slow();
  script.reply = [&](const nlohmann::json& request) {
    for (const WorkloadPrompt& prompt : of.prompts) {
      if (nlohmann::json::parse(prompt.messages_json()) != request["messages"]) continue;
      return MockReply{.content = mock_pieces(prompt.id == "reasoning/02" ? "It is -1." : prompt.reference)};
    }
    return MockReply{.content = {"no", " such", " prompt"}};
  };
  MockServer mock(script);
  BenchOptions options = short_bench(mock, BenchMode::kStrict);
  options.concurrency = {2};
  options.classes = {"reasoning"};
  options.respect_eos = true;
  const BenchReport report = run(options);
  ASSERT_EQ(report.cells.size(), 1u);
  EXPECT_GT(report.cells[0].right, 0);
  EXPECT_GT(report.cells[0].wrong, 0);
  EXPECT_THAT(bench_tables(report), HasSubstr("right"));
}

TEST(Bench, BurstsAndArrivalsAreMeasured) {
  MockServer mock(slow({.tokens_per_chunk = 4}));
  BenchOptions options = short_bench(mock, BenchMode::kLib);
  options.decode = false;
  options.burst = true;
  options.burst_per_stream = 2;
  options.concurrency = {3};
  options.max_tokens = 12;
  options.mixed_contexts = {128};
  options.mixed_streams = 2;
  options.mixed_prompt_tokens = 64;
  options.mixed_max_tokens = 100000;
  options.mixed_warmup_s = 0.8;
  options.mixed_after_s = 0.2;
  const BenchReport report = run_clean(options);
  ASSERT_EQ(report.bursts.size(), 1u);
  EXPECT_THAT(report.bursts[0].flags, IsEmpty());
  EXPECT_EQ(report.bursts[0].requests, 6);
  EXPECT_EQ(report.bursts[0].tokens, 72);
  EXPECT_EQ(report.bursts[0].latency_s.size(), 6u);
  ASSERT_EQ(report.mixed.size(), 1u);
  EXPECT_THAT(report.mixed[0].flags, IsEmpty());
  EXPECT_EQ(report.mixed[0].decoding_at_arrival, 2);
  EXPECT_TRUE(report.mixed[0].slowdown.has_value());
  EXPECT_GT(report.mixed[0].before_tok_s, 0);
  EXPECT_GT(report.mixed[0].after_tok_s, 0);
  EXPECT_THAT(bench_tables(report), HasSubstr("slowdown"));
  const Receipt receipt = bench_receipt(report, "");
  EXPECT_EQ(receipt.verdict, Verdict::kPass);
  ASSERT_TRUE(receipt_json(receipt));
}

TEST(Bench, AFlawDecidesTheVerdict) {
  MockServer sick(slow());
  sick.plant(MockFlaw::kUsageAtEnd);
  BenchOptions options = short_bench(sick, BenchMode::kLib);
  options.concurrency = {1};
  const Receipt failed = bench_receipt(run(options), "");
  EXPECT_EQ(failed.verdict, Verdict::kFail);
  EXPECT_THAT(failed.reasons, Contains(HasSubstr("filler/C1/ctx0: usage_missing")));
  ASSERT_TRUE(receipt_json(failed));

  MockServer doubled(slow());
  doubled.plant(MockFlaw::kDoubleCount);
  options.url = doubled.url();
  const Receipt distrusted = bench_receipt(run(options), "");
  EXPECT_EQ(distrusted.verdict, Verdict::kVoid);
  EXPECT_THAT(distrusted.void_reasons, Contains(HasSubstr("tokens_disagree")));
  ASSERT_TRUE(receipt_json(distrusted));

  MockServer refusing(slow({.reply = [](const nlohmann::json&) { return MockReply{.status = 400, .error = "no"}; }}));
  options.url = refusing.url();
  const BenchReport report = run(options);
  EXPECT_THAT(report.cells[0].window.flags, Contains("stream_error"));
  EXPECT_THAT(report.cells[0].window.problems, Contains(HasSubstr("status 400: no")));
  EXPECT_EQ(bench_receipt(report, "").verdict, Verdict::kFail);
}

TEST(Bench, AnInterruptEndsItBetweenPhases) {
  MockServer mock(slow());
  BenchOptions options = short_bench(mock, BenchMode::kLib);
  std::atomic<bool> interrupt = false;
  const auto report =
      run_bench(options, {.said = [&](const std::string&) { interrupt = true; }, .interrupt = &interrupt});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->cells.size(), 1u);
  const Receipt receipt = bench_receipt(*report, "");
  EXPECT_EQ(receipt.verdict, Verdict::kNotRun);
  EXPECT_THAT(receipt.reasons, Contains(HasSubstr("interrupted")));
}

TEST(Bench, RefusesWhatCannotBe) {
  MockServer mock;
  const auto refused = [&](auto change) {
    BenchOptions options = short_bench(mock, BenchMode::kStrict);
    change(options);
    const auto report = run_bench(options, {});
    return report ? std::string() : report.error().message;
  };
  EXPECT_THAT(refused([](BenchOptions& o) { o.classes = {"poetry"}; }), HasSubstr("\"poetry\" is not a class"));
  EXPECT_THAT(refused([](BenchOptions& o) { o.concurrency = {0}; }), HasSubstr("--concurrency: 0"));
  EXPECT_THAT(refused([](BenchOptions& o) { o.concurrency = {}; }), HasSubstr("--concurrency"));
  EXPECT_THAT(refused([](BenchOptions& o) { o.timing.window_s = 0; }), HasSubstr("--duration"));
  EXPECT_THAT(refused([](BenchOptions& o) { o.url = "localhost"; }), HasSubstr("http://"));
  EXPECT_THAT(refused([](BenchOptions& o) { o.model = "other"; }), HasSubstr("\"other\" is not served"));
  EXPECT_THAT(refused([](BenchOptions& o) { o.lib_texts = "/no/such/file"; }), HasSubstr("/no/such/file"));
}

TEST(LibTexts, AreReadFromAFileAndKnownByTheirHashes) {
  const std::string path = ::testing::TempDir() + "lib_texts.json";
  const auto read = [&](const std::string& text) {
    EXPECT_TRUE(write_file(path, text));
    return read_lib_texts(path);
  };
  const auto good = read(R"({"question": "Q?", "sentences": ["A.", "B."]})");
  ASSERT_TRUE(good);
  EXPECT_FALSE(good->original);
  EXPECT_EQ(lib_document(*good, "[M] ", 3, 2.5), "[M] A. B. A.");
  EXPECT_NE(good->sha256(), builtin_lib_texts().sha256());
  for (const char* bad : {"[]", "{", R"({"question": ""})", R"({"question": "Q"})",
                          R"({"question": "Q", "sentences": []})", R"({"question": "Q", "sentences": [1]})"}) {
    const auto refused = read(bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_THAT(refused.error().message, HasSubstr(path));
  }
  EXPECT_EQ(builtin_lib_texts().sentences.size(), 20u);
  EXPECT_EQ(builtin_lib_texts().question.size(), 384u);
}

}  // namespace
}  // namespace onelane
