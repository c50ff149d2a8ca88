// Faults that users of other engines reported, as tests; the numbers are those of the list in spec/peers.md.
#include <cmath>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "support/forwarding_kernels.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;

class Complaints : public TinyEngineTest {
 protected:
  static EngineOptions options(const char* schedule, int sequences = 8) {
    EngineOptions options = small_options();
    options.max_sequences = sequences;
    options.draft_schedule = *DraftSchedule::parse(schedule);
    return options;
  }
};

// Turns the logits of every row that holds the token into NaN, from the `after`-th such row on.
class PoisonedKernels : public ForwardingKernels {
 public:
  PoisonedKernels(Kernels& inner, int32_t token) : ForwardingKernels(inner), token_(token) {}
  std::atomic<bool> on = false;
  void head(const StepRows& rows, const HeadArgs& args) override {
    inner_.head(rows, args);
    if (!on) return;
    const auto width = static_cast<size_t>(args.head.out);
    for (int i = 0; i < args.count; ++i) {
      if (rows.token[args.rows[i]] != token_) continue;
      const float poison = i % 2 == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
      memory().copy(args.logits + static_cast<size_t>(i) * width + 7, &poison, sizeof(poison));
    }
    if (args.best != nullptr) inner_.choose(rows, choice_of(args));
  }

 private:
  const int32_t token_;
};

TEST_F(Complaints, Complaint01_NanInOneRowFailsThatRequestAlone) {
  const auto healthy = random_prompt(40, 11);
  const auto expected = session_tokens(model(), healthy, 20);
  // A token that the healthy request never sees, and the sick one sees at the end of its prompt.
  std::vector<int32_t> sick = random_prompt(50, 12);
  int32_t poison = 4;
  const auto has = [&](const auto& tokens) { return std::find(tokens.begin(), tokens.end(), poison) != tokens.end(); };
  while (has(healthy) || has(expected) || has(sick)) ++poison;
  sick.push_back(poison);
  PoisonedKernels poisoned(kernels(), poison);
  for (const char* schedule : {"0", "64:5"}) {
    poisoned.on = false;
    TestEngine engine(model(), poisoned, options(schedule));
    poisoned.on = true;
    const auto answers =
        engine.run_all({greedy(healthy, 20), greedy(sick, 20), sampled(sick, 20, 3), greedy(healthy, 20)});
    EXPECT_EQ(answers[0].tokens, expected);
    EXPECT_EQ(answers[3].tokens, expected);
    for (const size_t i : {1u, 2u}) {
      EXPECT_EQ(answers[i].finish, FinishReason::kError);
      EXPECT_THAT(answers[i].error, HasSubstr("not finite"));
    }
    EXPECT_EQ(engine.settled().pages_used, 0);
    EXPECT_EQ(engine.run(greedy(healthy, 20)).tokens, expected);
  }
}

TEST_F(Complaints, Complaint05_06_DrainingFromManyToNone) {
  for (const float confidence : {0.0f, 0.4f}) {  // fixed and adaptive depth
    EngineOptions drained = options("2:5,4:3,64:2");
    drained.draft_confidence = confidence;
    TestEngine engine(model(), kernels(), drained);
    std::vector<Request> requests;
    for (int i = 0; i < 8; ++i) requests.push_back(greedy(prompt(), 1 + i * 5));
    const auto answers = engine.run_all(requests);
    for (int i = 0; i < 8; ++i)
      EXPECT_EQ(answers[static_cast<size_t>(i)].tokens, plain(static_cast<size_t>(1 + i * 5)));
    const EngineStats stats = engine.settled();
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_EQ(stats.progress_age_seconds, 0);
  }
}

TEST_F(Complaints, Complaint09_EveryKindOfStepIsTriedBeforeTheFirstRequest) {
  // Rows without finite logits anywhere: the engine does not open.
  class NoHead : public ForwardingKernels {
   public:
    using ForwardingKernels::ForwardingKernels;
    void head(const StepRows& rows, const HeadArgs& args) override {
      const auto count = static_cast<size_t>(args.count) * static_cast<size_t>(args.head.out);
      memory().fill(args.logits, 0xff, count * sizeof(float));  // NaN
      if (args.best != nullptr) inner_.choose(rows, choice_of(args));
    }
  } broken(kernels());
  const auto refused = Engine::create(model(), broken, small_options());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("self-test"));
}

TEST_F(Complaints, Complaint12_AFailingStepEndsItsRequestsAndNotTheProcess) {
  class Throwing : public ForwardingKernels {
   public:
    using ForwardingKernels::ForwardingKernels;
    std::atomic<int> in = -1;
    void experts(const StepRows& rows, const ExpertsArgs& args) override {
      if (in >= 0 && in-- == 0) throw std::bad_alloc();
      inner_.experts(rows, args);
    }
  } throwing(kernels());
  TestEngine engine(model(), throwing, small_options());
  throwing.in = 100;
  const auto answers = engine.run_all({greedy(prompt(), 300), greedy(prompt(), 300)});
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.finish, FinishReason::kError);
    EXPECT_THAT(answer.error, HasSubstr("step failed"));
  }
  EXPECT_EQ(engine.run(greedy(prompt(), 10)).tokens, plain(10));
  EXPECT_EQ(engine.settled().pages_used, 0);
}

TEST_F(Complaints, Complaint15_EveryDepthUnderBurstsGivesTheSameTokens) {
  // The default block is 5: depths above it are asked for as well.
  std::vector<std::vector<int32_t>> prompts, expected;
  for (unsigned i = 0; i < 6; ++i) {
    prompts.push_back(random_prompt(8 + static_cast<int>(i) * 9, 30 + i));
    expected.push_back(session_tokens(model(), prompts.back(), 16));
  }
  for (int depth = 0; depth <= 7; ++depth) {
    TestEngine engine(model(), kernels(), options(("64:" + std::to_string(depth)).c_str(), 5));
    for (const size_t burst : {1u, 6u, 2u}) {
      std::vector<Request> requests;
      for (size_t i = 0; i < burst; ++i) requests.push_back(greedy(prompts[i], 16));
      const auto answers = engine.run_all(std::move(requests));
      for (size_t i = 0; i < burst; ++i) EXPECT_EQ(answers[i].tokens, expected[i]) << depth << " " << burst;
    }
  }
}

TEST_F(Complaints, Complaint32_ShortQuestionsOvertakeALongPrompt) {
  EngineOptions mixed = options("64:5");
  mixed.prefix_cache = false;
  TestEngine engine(model(), kernels(), mixed);
  const RequestId book = engine.submit(greedy(random_prompt(1000, 9), 4));
  std::vector<RequestId> questions;
  for (int i = 0; i < 4; ++i) questions.push_back(engine.submit(greedy(prompt(), 8)));
  // Counted in steps: a chunk holds 48 rows, so the book alone takes 21 steps, and a quarter of every chunk is its own.
  for (const RequestId id : questions) {
    const Answer answer = engine.wait(id);
    EXPECT_EQ(answer.tokens, plain(8));
  }
  const EngineStats stats = engine->stats();
  if (testing::model_kernels() == nullptr) {  // a GPU may have read the book before this thread looks
    EXPECT_LE(stats.steps, 20u) << "the questions waited for the book";
  }
  EXPECT_EQ(engine.wait(book).tokens.size(), 4u);
}

TEST_F(Complaints, Complaint48_AcceptanceIsCountedByPosition) {
  TestEngine engine(model(), kernels(), options("64:5"));
  const Answer answer = engine.run(greedy(prompt(), 60));
  const RequestStats& stats = answer.stats;
  EXPECT_EQ(stats.tokens, 60);
  EXPECT_GT(stats.draft_blocks, 0);
  EXPECT_GE(stats.drafted_tokens, stats.draft_blocks);
  EXPECT_EQ(stats.tokens, 1 + stats.steps + stats.accepted_tokens());
  for (size_t i = 1; i < kMaxDraftDepth; ++i) EXPECT_LE(stats.accepted[i], stats.accepted[i - 1]) << i;
  EXPECT_EQ(stats.accepted[5], 0);
  const EngineStats totals = engine.settled();
  EXPECT_EQ(totals.draft_blocks, static_cast<uint64_t>(stats.draft_blocks));
  EXPECT_EQ(totals.drafted_tokens, static_cast<uint64_t>(stats.drafted_tokens));
  for (size_t i = 0; i < kMaxDraftDepth; ++i) EXPECT_EQ(totals.accepted[i], static_cast<uint64_t>(stats.accepted[i]));
  EXPECT_EQ(totals.generated_tokens, 60u);
}

TEST_F(Complaints, Complaint52_DepthsOtherThanTheBlockWork) {
  TestEngine engine(model(), kernels(), options("64:9"));
  for (const int depth : {1, 4, 7}) {
    Request request = greedy(prompt(), 12);
    request.draft_depth = depth;
    const Answer answer = engine.run(request);
    EXPECT_EQ(answer.tokens, plain(12));
    EXPECT_LE(answer.stats.drafted_tokens, std::min(depth, 5) * answer.stats.draft_blocks);
  }
}

TEST_F(Complaints, Complaint53_MemoryStaysFlatOverAThousandCycles) {
  EngineOptions small = options("64:5", 4);
  small.max_model_len = 256;
  TestEngine engine(model(), kernels(), small);
  const auto resident_pages = [] {
    std::ifstream statm("/proc/self/statm");
    long size = 0;
    long resident = 0;
    statm >> size >> resident;
    return resident;
  };
  long before = 0;
  for (int cycle = 0; cycle < 1000; cycle += 4) {
    std::vector<Request> requests;
    for (int i = 0; i < 4; ++i) requests.push_back(greedy({0, 10 + i, 20 + cycle % 200}, 2));
    engine.run_all(std::move(requests));
    if (cycle == 500) before = resident_pages();
  }
  const EngineStats stats = engine.settled();
  EXPECT_EQ(stats.pages_used, 0);
  EXPECT_EQ(stats.finished[static_cast<size_t>(FinishReason::kLength)], 1000u);
  EXPECT_LT(resident_pages() - before, 1024) << "4 MiB in 500 cycles";
}

TEST_F(Complaints, CancelStormsLeaveNothingBehind) {
  TestEngine engine(model(), kernels(), options("64:5", 3));
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    std::vector<RequestId> ids;
    for (int i = 0; i < 8; ++i) {
      ids.push_back(engine.submit(
          greedy(random_prompt(1 + static_cast<int>(random() % 150), static_cast<unsigned>(random())), 40)));
    }
    std::shuffle(ids.begin(), ids.end(), random);
    if (round % 3 == 0) engine.wait_tokens(ids[0], 1);
    for (const RequestId id : ids) engine->cancel(id);
    for (const RequestId id : ids) EXPECT_EQ(engine.wait(id).last_events, 1);
  }
  EXPECT_EQ(engine.settled().pages_used, 0);
  EXPECT_EQ(engine.run(greedy(prompt(), 10)).tokens, plain(10));
}

TEST_F(Complaints, AnEngineThatGoesAwayCancelsWhatRuns) {
  std::atomic<int> cancelled = 0;
  {
    auto engine = Engine::create(model(), kernels(), small_options());
    ASSERT_TRUE(engine);
    for (int i = 0; i < 6; ++i) {
      ASSERT_TRUE((*engine)->submit(greedy(prompt(), 900), [&](const RequestEvent& event) {
        cancelled += event.finish == FinishReason::kCancelled;
      }));
    }
  }
  EXPECT_EQ(cancelled, 6);
}

}  // namespace
}  // namespace onelane
