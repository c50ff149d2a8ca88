// An engine on a tiny model, and its answers collected.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/generate.h"
#include "support/tiny_model.h"

namespace onelane {

inline std::vector<int32_t> random_prompt(int count, unsigned seed, int vocab = 256) {
  std::mt19937 generator(seed);
  std::vector<int32_t> tokens = {0};
  while (static_cast<int>(tokens.size()) < count) {
    tokens.push_back(static_cast<int32_t>(4 + generator() % static_cast<unsigned>(vocab - 4)));
  }
  return tokens;
}

// What an engine test asks for unless it says otherwise: the end token is ignored, so that answers are long.
inline Request greedy(std::vector<int32_t> prompt, int max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

inline Request sampled(std::vector<int32_t> prompt, int max_tokens, uint64_t seed) {
  Request request = greedy(std::move(prompt), max_tokens);
  request.sampling = {.temperature = 1, .seed = seed};
  return request;
}

// Small in every way: the self-test of create() costs as much as step_rows rows.
inline EngineOptions small_options() {
  EngineOptions options;
  options.max_sequences = 4;
  options.max_model_len = 1024;
  options.step_rows = 48;
  options.max_gap_ms = 1e6;
  return options;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  int32_t stop_token = -1;
  std::string error;
  RequestStats stats;
  int events = 0;
  int last_events = 0;  // events with a finish reason, and events after one
};

// The oracle: one token at a time, alone, on kernels of its own (an engine may be at work on the others).
inline std::vector<int32_t> session_tokens(const Model& model, const std::vector<int32_t>& prompt, int count,
                                           SamplingParams sampling = {.temperature = 0}) {
  const auto kernels = testing::make_test_kernels(1);
  auto session = Session::create(model, *kernels, {.max_tokens = static_cast<int>(prompt.size()) + count});
  EXPECT_TRUE(session);
  const auto result = generate(**session, prompt,
                               {.max_tokens = count, .sampling = sampling, .ignore_eos = true, .draft_depth = 0}, -1);
  EXPECT_TRUE(result);
  return result ? result->tokens : std::vector<int32_t>();
}

class TestEngine {
 public:
  TestEngine(const Model& model, Kernels& kernels, const EngineOptions& options) {
    auto engine = Engine::create(model, kernels, options);
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().message);
    if (engine) engine_ = *std::move(engine);
  }
  ~TestEngine() { engine_.reset(); }

  Engine* operator->() { return engine_.get(); }
  Engine& operator*() { return *engine_; }

  // 0 when refused.
  RequestId submit(Request request) {
    const int ticket = next_++;
    auto id =
        engine_->submit(std::move(request), [this, ticket](RequestEvent event) { take(ticket, std::move(event)); });
    if (!id) {
      refusal_ = id.error();
      return 0;
    }
    const std::lock_guard lock(mutex_);
    tickets_[*id] = ticket;
    return *id;
  }
  const Error& refusal() const { return refusal_; }

  Answer wait(RequestId id) {
    std::unique_lock lock(mutex_);
    const int ticket = tickets_.at(id);
    const bool done = changed_.wait_for(lock, std::chrono::seconds(120),
                                        [&] { return answers_[ticket].finish != FinishReason::kNone; });
    EXPECT_TRUE(done) << "request " << id << " does not end";
    return answers_[ticket];
  }
  // Waits until `id` has at least `count` tokens, or has ended.
  void wait_tokens(RequestId id, size_t count) {
    std::unique_lock lock(mutex_);
    const int ticket = tickets_.at(id);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(120), [&] {
      return answers_[ticket].tokens.size() >= count || answers_[ticket].finish != FinishReason::kNone;
    }));
  }
  Answer run(Request request) {
    const RequestId id = submit(std::move(request));
    EXPECT_NE(id, 0u) << refusal_.message;
    return id == 0 ? Answer{} : wait(id);
  }
  std::vector<Answer> run_all(std::vector<Request> requests) {
    std::vector<RequestId> ids;
    for (Request& request : requests) {
      ids.push_back(submit(std::move(request)));
      EXPECT_NE(ids.back(), 0u) << refusal_.message;
    }
    std::vector<Answer> answers;
    for (const RequestId id : ids) answers.push_back(id == 0 ? Answer{} : wait(id));
    return answers;
  }
  // The counters once nothing runs any more: the last events come a moment before the engine is idle.
  EngineStats settled() {
    while (!engine_->idle()) std::this_thread::yield();
    return engine_->stats();
  }

 private:
  void take(int ticket, RequestEvent event) {
    const std::lock_guard lock(mutex_);
    Answer& answer = answers_[ticket];
    ++answer.events;
    answer.last_events += answer.finish != FinishReason::kNone || event.finish != FinishReason::kNone;
    answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
    answer.logprobs.insert(answer.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    if (!event.prompt_logprobs.empty()) answer.prompt_logprobs = std::move(event.prompt_logprobs);
    answer.finish = event.finish;
    answer.stop_token = event.stop_token;
    answer.error = event.error;
    answer.stats = event.stats;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Answer> answers_;
  std::map<RequestId, int> tickets_;
  std::atomic<int> next_ = 0;
  Error refusal_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace onelane
