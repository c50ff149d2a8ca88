// Steps that are asked for before the one ahead of them is read: the tokens are those of plain decoding, what ends a
// step late leaves nothing behind, and a steady decode allocates nothing and waits once a step.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine_support.h"
#include "kernels/forwarding_kernels.h"
#include "support/gpu.h"

namespace onelane {
namespace {

// Passes everything on but run(), and spoils the logits of one head() call.
class Spoiling final : public ForwardingKernels {
 public:
  using ForwardingKernels::ForwardingKernels;
  std::atomic<int> in = -1;
  void head(const StepRows& rows, const HeadArgs& args) override {
    inner_.head(rows, args);
    if (in < 0 || in-- > 0) return;
    memory().fill(args.logits, 0xff, static_cast<size_t>(args.head.out) * sizeof(float));
    if (args.best != nullptr) inner_.choose(rows, choice_of(args));
  }
};

class Ahead : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int kTokens = 80;  // two of three across a page boundary
  struct World {
    std::unique_ptr<Model> model;
    std::unique_ptr<Kernels> kernels = testing::make_kernels_beside_host(1);
    std::vector<std::vector<int32_t>> prompts, expected;
  };
  World& world() {
    static auto& worlds = *new std::map<std::string, World>;  // a device is gone after main()
    World& world = worlds[GetParam()];
    if (world.model) return world;
    world.model = load_tiny_model(GetParam());
    for (const int length : {5, 127, 60}) {
      world.prompts.push_back(random_prompt(length, static_cast<unsigned>(length)));
      world.expected.push_back(session_tokens(*world.model, world.prompts.back(), kTokens));
    }
    return world;
  }
  const Model& model() { return *world().model; }
  Kernels& kernels() { return *world().kernels; }
  const std::vector<int32_t>& prompt(size_t i) { return world().prompts[i]; }
  const std::vector<int32_t>& expected(size_t i) { return world().expected[i]; }

  static EngineOptions options(int depth) {
    EngineOptions options = small_options();
    options.draft_schedule = *DraftSchedule::parse("64:" + std::to_string(depth));
    return options;
  }
};

TEST_P(Ahead, MostStepsOfGreedyRequestsAreAndNoTokenDiffers) {
  for (const int depth : {0, 1, 5}) {
    TestEngine engine(model(), kernels(), options(depth));
    const EngineStats before = engine.settled();
    EXPECT_EQ(engine.run(greedy(prompt(0), kTokens)).tokens, expected(0)) << depth;
    const EngineStats alone = engine.settled();
    EXPECT_GT(alone.steps_ahead - before.steps_ahead, (alone.steps - before.steps) * 2 / 3) << depth;
    const auto answers = engine.run_all({greedy(prompt(0), 40), greedy(prompt(1), kTokens), greedy(prompt(2), 75)});
    for (size_t i = 0; i < answers.size(); ++i) {
      const auto count = static_cast<ptrdiff_t>(answers[i].tokens.size());
      EXPECT_EQ(answers[i].tokens, std::vector<int32_t>(expected(i).begin(), expected(i).begin() + count)) << depth;
      EXPECT_EQ(answers[i].finish, FinishReason::kLength);
    }
    const EngineStats together = engine.settled();
    EXPECT_GT(together.steps_ahead, alone.steps_ahead) << depth;
    EXPECT_EQ(together.pages_used, 0);
  }
}

TEST_P(Ahead, HostsThatMustSeeLogitsGoStepByStep) {
  TestEngine engine(model(), kernels(), options(5));
  Request request = greedy(prompt(0), 30);
  request.logprobs = 0;
  const Answer answer = engine.run(request);
  EXPECT_EQ(answer.tokens, std::vector<int32_t>(expected(0).begin(), expected(0).begin() + 30));
  EXPECT_EQ(answer.logprobs.size(), 30u);
  EXPECT_EQ(engine.run(sampled(prompt(0), 30, 7)).tokens,
            session_tokens(model(), prompt(0), 30, sampled(prompt(0), 30, 7).sampling));
  EXPECT_EQ(engine.settled().steps_ahead, 0u);
}

// At every place of an answer: an end token, which the host finds when the next step is under way. The pages and the
// checkpoint that are left are then continued by a longer prompt.
TEST_P(Ahead, AnEndFoundAStepLateLeavesNothingBehind) {
  EngineOptions roomy = options(5);
  roomy.kv_bytes = int64_t{64} << 20;
  for (const int depth : {0, 5}) {
    roomy.draft_schedule = *DraftSchedule::parse("64:" + std::to_string(depth));
    TestEngine engine(model(), kernels(), roomy);
    for (const size_t place : {3u, 66u, 67u, 68u, 72u}) {
      // The first token from there on that was not there before.
      size_t end = place;
      const auto& all = expected(2);
      while (std::find(all.begin(), all.begin() + static_cast<ptrdiff_t>(end), all[end]) !=
             all.begin() + static_cast<ptrdiff_t>(end)) {
        if (++end == all.size()) break;
      }
      if (end == all.size()) continue;
      Request request = greedy(prompt(2), kTokens);
      request.stop_tokens = {all[end]};
      const Answer answer = engine.run(request);
      EXPECT_EQ(answer.finish, FinishReason::kStop);
      EXPECT_EQ(answer.stop_token, all[end]);
      EXPECT_EQ(answer.tokens, std::vector<int32_t>(all.begin(), all.begin() + static_cast<ptrdiff_t>(end)));
      std::vector<int32_t> longer = prompt(2);
      longer.insert(longer.end(), answer.tokens.begin(), answer.tokens.end());
      const Answer next = engine.run(greedy(longer, 8));
      const size_t count = std::min<size_t>(8, all.size() - end);
      EXPECT_EQ(std::vector<int32_t>(next.tokens.begin(), next.tokens.begin() + static_cast<ptrdiff_t>(count)),
                std::vector<int32_t>(all.begin() + static_cast<ptrdiff_t>(end),
                                     all.begin() + static_cast<ptrdiff_t>(end + count)));
    }
    EXPECT_EQ(engine.settled().pages_used, 0);
  }
}

TEST_P(Ahead, CancelledAndLateOnesEndBetweenStepsAndOthersGoOn) {
  TestEngine engine(model(), kernels(), options(5));
  for (int round = 0; round < 3; ++round) {
    const RequestId going = engine.submit(greedy(prompt(1), kTokens));
    const RequestId leaving = engine.submit(greedy(prompt(0), 900));
    engine.wait_tokens(leaving, static_cast<size_t>(5 + 3 * round));
    engine->cancel(leaving);
    const Answer cancelled = engine.wait(leaving);
    EXPECT_EQ(cancelled.finish, FinishReason::kCancelled);
    const auto count = static_cast<ptrdiff_t>(std::min(cancelled.tokens.size(), expected(0).size()));
    EXPECT_TRUE(std::equal(expected(0).begin(), expected(0).begin() + count, cancelled.tokens.begin()));
    EXPECT_EQ(engine.run(greedy(prompt(2), 20)).tokens,
              std::vector<int32_t>(expected(2).begin(), expected(2).begin() + 20));
    EXPECT_EQ(engine.wait(going).tokens, expected(1));
  }
  EXPECT_EQ(engine.settled().pages_used, 0);
}

TEST_P(Ahead, ARowThatIsNotFiniteEndsItsRequestAlone) {
  Spoiling spoiling(kernels());
  TestEngine engine(model(), spoiling, options(0));
  for (const int after : {3, 4, 11}) {
    const RequestId hurt = engine.submit(greedy(prompt(0), 900));  // the first of every step
    const RequestId other = engine.submit(greedy(prompt(2), 60));
    engine.wait_tokens(other, 2);
    spoiling.in = after;
    const Answer answer = engine.wait(hurt);
    EXPECT_EQ(answer.finish, FinishReason::kError);
    EXPECT_THAT(answer.error, ::testing::HasSubstr("finite"));
    EXPECT_EQ(engine.wait(other).tokens, std::vector<int32_t>(expected(2).begin(), expected(2).begin() + 60));
  }
  EXPECT_EQ(engine.run(greedy(prompt(0), 40)).tokens,
            std::vector<int32_t>(expected(0).begin(), expected(0).begin() + 40));
}

// The trace: what the host calls while one request decodes, from one event to the next.
TEST_P(Ahead, ASteadyDecodeAllocatesNothingAndWaitsOnceAStep) {
  for (const int depth : {0, 5}) {
    auto engine = Engine::create(model(), kernels(), options(depth));
    ASSERT_TRUE(engine) << engine.error().message;
    for (int round = 0; round < 2; ++round) {  // in the first, graphs are recorded
      std::vector<HostCalls> calls;
      std::vector<int> steps, tokens;
      std::atomic<bool> done = false;
      ASSERT_TRUE((*engine)->submit(greedy(prompt(0), 70), [&](RequestEvent event) {
        calls.push_back(kernels().host_calls());
        steps.push_back(event.stats.steps);
        tokens.push_back(event.stats.tokens);
        if (event.finish != FinishReason::kNone) done = true;
      }));
      while (!done) std::this_thread::yield();
      if (round == 0) continue;
      HostCalls steady;
      int counted = 0;
      const auto prompt_tokens = static_cast<int>(prompt(0).size());
      for (size_t i = 2; i + 2 < calls.size(); ++i) {
        const int at = prompt_tokens + tokens[i - 1] - 1;
        // A page's end, where the prefix cache puts the slot's state by, is not a steady step.
        if ((at - 6) / kPageTokens != (at + 12) / kPageTokens) continue;
        EXPECT_EQ(steps[i] - steps[i - 1], 1);
        steady.allocations += calls[i].allocations - calls[i - 1].allocations;
        steady.waits += calls[i].waits - calls[i - 1].waits;
        steady.other_waits += calls[i].other_waits - calls[i - 1].other_waits;
        ++counted;
      }
      std::printf("%s, %d drafts, on %s: %d steady steps, %lld allocations, %lld waits for a step, %lld other waits\n",
                  GetParam(), depth, std::string(kernels().name()).c_str(), counted,
                  static_cast<long long>(steady.allocations), static_cast<long long>(steady.waits),
                  static_cast<long long>(steady.other_waits));
      EXPECT_GT(counted, 10);
      EXPECT_EQ(steady.allocations, 0);
      EXPECT_EQ(steady.waits, counted);
      EXPECT_EQ(steady.other_waits, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Generations, Ahead, ::testing::Values("v4", "v41"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace onelane
