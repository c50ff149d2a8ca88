// What a request can ask for, and how it ends.
#include "engine/engine.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/sampler.h"
#include "engine_fixture.h"

namespace onelane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using EngineTest = TinyEngineTest;

TEST_F(EngineTest, OneRequestGivesWhatASessionGives) {
  TestEngine engine(model(), kernels(), small_options());
  const Answer answer = engine.run(greedy(prompt(), 40));
  EXPECT_TRUE(engine->idle());
  EXPECT_EQ(answer.tokens, plain(40));
  EXPECT_EQ(answer.finish, FinishReason::kLength);
  EXPECT_EQ(answer.stats.tokens, 40);
  EXPECT_EQ(answer.stats.prompt_tokens, 60);
  EXPECT_GE(answer.stats.decode_seconds, 0);
  EXPECT_EQ(answer.last_events, 1);
}

TEST_F(EngineTest, EndTokensEndWhereverADraftBlockPutsThem) {
  TestEngine engine(model(), kernels(), small_options());
  const auto all = plain(20);
  for (size_t at = 0; at < all.size(); at += 3) {
    const auto first = std::find(all.begin(), all.end(), all[at]);
    Request request = greedy(prompt(), 20);
    request.stop_tokens = {all[at]};
    const Answer answer = engine.run(request);
    EXPECT_EQ(answer.tokens, std::vector<int32_t>(all.begin(), first));
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    EXPECT_EQ(answer.stop_token, all[at]);
    EXPECT_EQ(answer.stats.tokens, first - all.begin() + 1);
    request.min_tokens = 20;  // and not before min_tokens
    const Answer longer = engine.run(request);
    EXPECT_EQ(longer.tokens.size(), 20u);
    EXPECT_EQ(std::count(longer.tokens.begin(), longer.tokens.end(), all[at]), 0);
  }
}

TEST_F(EngineTest, NegativeMaxTokensTakesTheContextThatIsLeft) {
  EngineOptions options = small_options();
  options.max_model_len = 100;
  TestEngine engine(model(), kernels(), options);
  const Answer answer = engine.run(greedy(prompt(), -1));
  EXPECT_EQ(answer.tokens, plain(40));
  EXPECT_EQ(answer.finish, FinishReason::kLength);
}

TEST_F(EngineTest, LogprobsAreTheModelsOwn) {
  TestEngine engine(model(), kernels(), small_options());
  Request request = greedy(prompt(), 6);
  request.logprobs = 3;
  request.prompt_logprobs = 2;
  request.sampling.logit_bias = {{plain(1)[0], -100.0f}};  // changes the choice, not the log-probabilities
  const Answer answer = engine.run(request);
  ASSERT_EQ(answer.logprobs.size(), 6u);
  ASSERT_EQ(answer.prompt_logprobs.size(), 59u);
  EXPECT_NE(answer.tokens[0], plain(1)[0]);
  EXPECT_EQ(answer.logprobs[0].rank, 2);
  EXPECT_EQ(answer.logprobs[0].top[0].first, plain(1)[0]);

  std::vector<int32_t> text = prompt();
  text.insert(text.end(), answer.tokens.begin(), answer.tokens.end());
  auto session = Session::create(model(), kernels(), {.max_tokens = 128});
  ASSERT_TRUE(session);
  ASSERT_TRUE((*session)->append_rows(text, [&](int row, std::span<const float> logits) {
    const auto next = static_cast<size_t>(row) + 1;
    if (next == text.size()) return;
    const TokenLogprobs& got = next < 60 ? answer.prompt_logprobs[next - 1] : answer.logprobs[next - 60];
    EXPECT_NEAR(got.logprob, log_probability(logits, text[next]), 1e-9);
    ASSERT_EQ(got.top.size(), next < 60 ? 2u : 3u);
    EXPECT_EQ(got.top[0].first, *best_token(logits));
    EXPECT_GE(got.top[0].second, got.top[1].second);
    EXPECT_EQ(got.rank == 1, got.top[0].first == text[next]);
  }));
}

TEST_F(EngineTest, ScoringTakesNoTokens) {
  EngineOptions options = small_options();
  options.max_model_len = 300;
  TestEngine engine(model(), kernels(), options);
  Request request = greedy(random_prompt(300, 3), 0);  // as long as the context
  request.prompt_logprobs = 0;
  const Answer first = engine.run(request);
  EXPECT_EQ(first.finish, FinishReason::kLength);
  EXPECT_EQ(first.tokens.size(), 0u);
  EXPECT_EQ(first.events, 1);
  ASSERT_EQ(first.prompt_logprobs.size(), 299u);
  request.prompt_logprobs = -1;
  EXPECT_EQ(engine.run(request).finish, FinishReason::kLength);  // reads the prompt into the cache
  request.prompt_logprobs = 0;
  const Answer again = engine.run(request);  // which a scored prompt does not use
  EXPECT_EQ(again.stats.cached_tokens, 0);
  for (size_t i = 0; i < 299; ++i) EXPECT_EQ(again.prompt_logprobs[i].logprob, first.prompt_logprobs[i].logprob);
  request.prompt = {5};
  EXPECT_EQ(engine.run(request).finish, FinishReason::kLength);
}

TEST_F(EngineTest, BadRequestsAreRefusedByName) {
  EngineOptions options = small_options();
  options.max_model_len = 200;
  TestEngine engine(model(), kernels(), options);
  const auto refused = [&](Request request) {
    EXPECT_EQ(engine.submit(std::move(request)), 0u);
    return engine.refusal().message;
  };
  EXPECT_THAT(refused(greedy({}, 5)), HasSubstr("empty"));
  EXPECT_THAT(refused(greedy({1, 256}, 5)), HasSubstr("256"));
  EXPECT_THAT(refused(greedy({-1}, 5)), HasSubstr("-1"));
  const auto long_prompt = refused(greedy(random_prompt(201, 1), -1));
  EXPECT_THAT(long_prompt, HasSubstr("201"));
  EXPECT_THAT(long_prompt, HasSubstr("max_model_len is 200"));
  const auto long_answer = refused(greedy(random_prompt(60, 1), 141));
  for (const char* number : {"60", "141", "201", "200"}) EXPECT_THAT(long_answer, HasSubstr(number));
  EXPECT_THAT(refused(greedy(random_prompt(200, 1), -1)), HasSubstr("no room"));
  Request request = greedy(prompt(), 5);
  request.sampling.top_p = 0;
  EXPECT_THAT(refused(request), HasSubstr("top_p"));
  request.sampling = {.logit_bias = {{256, 1.0f}}};
  EXPECT_THAT(refused(request), HasSubstr("logit_bias"));
  EXPECT_TRUE(engine->idle());
}

TEST_F(EngineTest, BadOptionsAreRefusedByName) {
  const auto refused = [&](auto change) {
    EngineOptions options = small_options();
    change(options);
    auto engine = Engine::create(model(), kernels(), options);
    EXPECT_FALSE(engine);
    return engine ? std::string() : engine.error().message;
  };
  EXPECT_THAT(refused([](EngineOptions& o) { o.max_sequences = 0; }), HasSubstr("max_sequences"));
  EXPECT_THAT(refused([](EngineOptions& o) { o.step_rows = 5; }), HasSubstr("step_rows must be at least 6"));
  EXPECT_THAT(refused([](EngineOptions& o) { o.max_model_len = 1 << 20; }), HasSubstr("max_position_embeddings"));
  EXPECT_THAT(refused([](EngineOptions& o) { o.kv_bytes = 10; }), HasSubstr("kv_bytes of 10 hold 0 pages"));
  EXPECT_THAT(refused([](EngineOptions& o) { o.max_gap_ms = 0; }), HasSubstr("max_gap_ms"));
  EXPECT_THAT(refused([](EngineOptions& o) { o.draft_confidence = 2; }), HasSubstr("draft_confidence"));
  EXPECT_THAT(refused([](EngineOptions& o) { o.checkpoint_bytes = int64_t{1} << 60; }), HasSubstr("checkpoint_bytes"));
}

TEST_F(EngineTest, AFullQueueRefusesAndADrainingEngineTakesNothing) {
  EngineOptions options = small_options();
  options.max_sequences = 2;
  options.max_waiting = 1;
  TestEngine engine(model(), kernels(), options);
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(engine.submit(greedy(prompt(), 60)));
  EXPECT_EQ(engine.submit(greedy(prompt(), 60)), 0u);
  EXPECT_EQ(engine.refusal().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(engine.refusal().message, HasSubstr("queue is full"));
  engine->drain();
  EXPECT_EQ(engine.submit(greedy(prompt(), 60)), 0u);
  EXPECT_THAT(engine.refusal().message, HasSubstr("draining"));
  for (const RequestId id : ids) EXPECT_EQ(engine.wait(id).tokens.size(), 60u);
  EXPECT_TRUE(engine->idle());
}

TEST_F(EngineTest, CancellingFreesEverythingAtEveryStage) {
  EngineOptions options = small_options();
  options.max_sequences = 2;
  options.prefix_cache = false;
  TestEngine engine(model(), kernels(), options);
  const RequestId decoding = engine.submit(greedy(prompt(), 900));
  engine.wait_tokens(decoding, 2);
  const RequestId reading = engine.submit(greedy(random_prompt(1000, 2), 5));
  const RequestId waiting = engine.submit(greedy(random_prompt(500, 3), 5));
  for (const RequestId id : {waiting, reading, decoding}) {
    engine->cancel(id);
    const Answer answer = engine.wait(id);
    EXPECT_EQ(answer.finish, FinishReason::kCancelled);
    EXPECT_EQ(answer.last_events, 1);
  }
  engine->cancel(decoding);
  engine->cancel(12345);
  EXPECT_EQ(engine.settled().pages_used, 0);
  EXPECT_EQ(engine.run(greedy(prompt(), 10)).tokens, plain(10));
}

TEST_F(EngineTest, ADeadlineEndsARequestWhereverItIs) {
  TestEngine engine(model(), kernels(), small_options());
  Request late = greedy(prompt(), 900);
  late.deadline = std::chrono::steady_clock::now();
  EXPECT_EQ(engine.run(late).finish, FinishReason::kDeadline);
  late.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  const Answer cut = engine.run(late);
  EXPECT_EQ(cut.finish, FinishReason::kDeadline);
  EXPECT_LT(cut.tokens.size(), 900u);
  EXPECT_EQ(engine.settled().pages_used, 0);
}

// Allows the tokens of one script, in order.
class Script : public TokenFilter {
 public:
  explicit Script(std::vector<int32_t> script) : script_(std::move(script)) {}
  void apply(std::span<float> logits) override {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (at_ >= script_.size() || static_cast<int32_t>(i) != script_[at_]) {
        logits[i] = -std::numeric_limits<float>::infinity();
      }
    }
  }
  void accept(int32_t token) override {
    if (token == 99) throw std::runtime_error("99 is not spoken of");
    EXPECT_EQ(token, script_[at_]);
    ++at_;
  }

 private:
  std::vector<int32_t> script_;
  size_t at_ = 0;
};

TEST_F(EngineTest, AFilterRulesEveryTokenAndItsFaultsCostOneRequest) {
  TestEngine engine(model(), kernels(), small_options());
  Request scripted = sampled(prompt(), 4, 1);
  scripted.filter = std::make_shared<Script>(std::vector<int32_t>{9, 8, 7, 6});
  Request short_script = scripted;
  short_script.filter = std::make_shared<Script>(std::vector<int32_t>{9, 8});
  Request throwing = scripted;
  throwing.filter = std::make_shared<Script>(std::vector<int32_t>{9, 99, 7, 6});
  const auto answers = engine.run_all({scripted, short_script, throwing, greedy(prompt(), 10)});
  EXPECT_THAT(answers[0].tokens, ElementsAre(9, 8, 7, 6));
  EXPECT_EQ(answers[1].finish, FinishReason::kError);
  EXPECT_THAT(answers[1].error, HasSubstr("every token is forbidden"));
  EXPECT_EQ(answers[2].finish, FinishReason::kError);
  EXPECT_THAT(answers[2].error, HasSubstr("99 is not spoken of"));
  EXPECT_EQ(answers[3].tokens, plain(10));
}

TEST_F(EngineTest, AThrowingSinkEndsItsRequestAlone) {
  TestEngine engine(model(), kernels(), small_options());
  const auto id = engine->submit(greedy(prompt(), 500), [](const RequestEvent&) { throw std::runtime_error("no"); });
  ASSERT_TRUE(id);
  EXPECT_EQ(engine.run(greedy(prompt(), 10)).tokens, plain(10));
  EXPECT_EQ(engine.settled().finished[static_cast<size_t>(FinishReason::kError)], 1u);
}

TEST_F(EngineTest, AnAnswerIsPartOfTheNextPrompt) {
  TestEngine engine(model(), kernels(), small_options());
  std::vector<int32_t> text = random_prompt(100, 4);
  const Answer first = engine.run(greedy(text, 60));
  text.insert(text.end(), first.tokens.begin(), first.tokens.end());
  text.push_back(17);
  const Answer second = engine.run(greedy(text, 10));
  EXPECT_EQ(second.stats.cached_tokens, 128);  // the boundary lies inside the answer
  EXPECT_EQ(second.tokens, session_tokens(model(), text, 10));
}

TEST_F(EngineTest, DraftsComeBackOnceTheDrafterHasSeenAWindowAgain) {
  EngineOptions options = small_options();
  options.draft_schedule = *DraftSchedule::parse("1:5");
  TestEngine engine(model(), kernels(), options);
  const std::vector<int32_t> beside = random_prompt(60, 2);
  // Side by side nobody drafts and the drafter is given nothing, so the first answer leaves a checkpoint without it.
  const RequestId first = engine.submit(greedy(prompt(), 240));
  const RequestId second = engine.submit(greedy(beside, 600));
  std::vector<int32_t> seen = prompt();
  for (const int32_t token : engine.wait(first).tokens) seen.push_back(token);
  const Answer alone_at_last = engine.wait(second);
  EXPECT_EQ(alone_at_last.tokens, session_tokens(model(), beside, 600));
  EXPECT_GT(alone_at_last.stats.draft_blocks, 0);
  EXPECT_GE(alone_at_last.stats.steps - alone_at_last.stats.draft_blocks, kWindow);

  const std::vector<int32_t> want = session_tokens(model(), seen, 150);
  const auto draft_blocks = [&](int count) {
    const Answer answer = engine.run(greedy(seen, count));
    EXPECT_EQ(answer.stats.cached_tokens, 2 * kPageTokens);
    EXPECT_EQ(answer.tokens, std::vector<int32_t>(want.begin(), want.begin() + count));
    return answer.stats.draft_blocks;
  };
  EXPECT_EQ(draft_blocks(2 * kPageTokens + kWindow - static_cast<int>(seen.size())), 0);
  EXPECT_GT(draft_blocks(150), 0);
}

TEST_F(EngineTest, ThePlanIsWhatIsAllocated) {
  TestEngine engine(model(), kernels(), small_options());
  int64_t planned = 0;
  for (const PlannedBytes& line : engine->plan()) {
    EXPECT_GT(line.bytes, 0) << line.what;
    planned += line.bytes;
  }
  EXPECT_GT(planned, 0);
  EXPECT_EQ(engine->max_model_len(), 1024);
}

}  // namespace
}  // namespace onelane
