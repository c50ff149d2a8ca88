// The API with mini-v41 and a real engine behind it, without a socket: requests go to the router, answers land in a
// FakeExchange. Time stands still until a test moves it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "api/metrics.h"
#include "api/router.h"
#include "api/routes.h"
#include "api/services.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "support/data.h"
#include "support/gpu.h"
#include "text/compressed_token_map.h"

namespace onelane {

using Json = nlohmann::ordered_json;

class FakeExchange final : public HttpExchange {
 public:
  void respond(HttpResponse response) override {
    EXPECT_FALSE(head) << "answered twice";
    body = response.body;
    head = std::move(response);
    complete = true;
  }
  void start(HttpResponse response) override {
    EXPECT_FALSE(head) << "answered twice";
    body = response.body;
    head = std::move(response);
  }
  void write(std::string piece) override {
    EXPECT_FALSE(complete) << "written after the end";
    body += piece;
  }
  void finish() override { complete = true; }
  size_t queued_bytes() const override { return 0; }
  void on_close(std::function<void()> closed) override { closed_ = std::move(closed); }

  void hang_up() {
    if (const auto closed = std::exchange(closed_, nullptr)) closed();
  }
  int status() const { return head ? head->status : 0; }
  std::string header(const std::string& name) const {
    for (const auto& [key, value] : head->headers) {
      if (key == name) return value;
    }
    return {};
  }
  Json json() const { return Json::parse(body); }
  // The data of all events; fails the test on anything that is no event.
  std::vector<std::string> events() const {
    std::vector<std::string> out;
    for (size_t at = 0; at < body.size();) {
      const size_t end = body.find("\n\n", at);
      EXPECT_NE(end, std::string::npos) << "an event without an end";
      if (end == std::string::npos) break;
      const std::string event = body.substr(at, end - at);
      at = end + 2;
      if (event.starts_with(':')) continue;
      EXPECT_TRUE(event.starts_with("data: ")) << event;
      out.push_back(event.substr(6));
    }
    return out;
  }

  std::optional<HttpResponse> head;
  std::string body;
  bool complete = false;

 private:
  std::function<void()> closed_;
};

class ApiFixture : public ::testing::Test {
 protected:
  ApiFixture()
      : tokenizer_(*Tokenizer::load(dir() + "/tokenizer.json")),
        model_(*Model::load(dir(), std::move(compressed_token_map(tokenizer_)->number), testing::model_kernels())),
        kernels_(testing::make_test_kernels(1)),
        engine_(make_engine()),
        grammars_(std::make_unique<GrammarCompiler>(tokenizer_, model_->spec.vocab, model_->spec.tokens.eos)),
        services_{ApiContext{.tokenizer = tokenizer_,
                             .format = kPromptFormatV41,
                             .spec = model_->spec,
                             .options = {.model_names = {"mini-v41", "other-name"}, .log_requests = false},
                             .max_model_len = engine_->max_model_len()},
                  *engine_,
                  metrics_,
                  *grammars_,
                  [this](std::function<void()> task) { post(std::move(task)); },
                  [this](double seconds, std::function<void()> task) { timers_.emplace_back(now_ + seconds, task); }},
        router_(services_) {
    services_.options.version = "test";
    add_chat_routes(router_, services_);
    add_completion_routes(router_, services_);
    add_messages_routes(router_, services_);
    add_responses_routes(router_, services_);
    add_info_routes(router_, services_);
  }
  ~ApiFixture() override {
    engine_.reset();
    grammars_.reset();
  }

  static std::string dir() { return repository_path("models/mini-v41"); }
  std::unique_ptr<Engine> make_engine() {
    // Sanitised, the self-test of a step as large as the default takes longer than most tests.
    constexpr int kStepRows = kSanitized ? 64 : 512;
    auto engine = Engine::create(*model_, *kernels_,
                                 {.max_sequences = 4, .max_waiting = 8, .max_model_len = 2048, .step_rows = kStepRows});
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().message);
    return *std::move(engine);
  }

  std::shared_ptr<FakeExchange> send(const std::string& method, const std::string& path, std::string body = "",
                                     std::vector<std::pair<std::string, std::string>> headers = {}) {
    auto exchange = std::make_shared<FakeExchange>();
    router_.handle(
        {.method = method, .path = path, .headers = std::move(headers), .body = std::move(body), .peer = "t"},
        exchange);
    return exchange;
  }
  // Sends and waits for the end of the answer.
  std::shared_ptr<FakeExchange> ask(const std::string& path, const Json& body) {
    auto exchange = send("POST", path, body.dump());
    run_until([&] { return exchange->complete; });
    return exchange;
  }

  // Does what was posted until `done`.
  template <class Done>
  void run_until(Done done) {
    while (!done()) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        if (!wake_.wait_for(lock, std::chrono::seconds(120), [&] { return !tasks_.empty(); })) {
          FAIL() << "nothing happens";
        }
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  void run_posted() {
    run_until([&] {
      const std::lock_guard lock(mutex_);
      return tasks_.empty();
    });
  }
  void advance(double seconds) {
    now_ += seconds;
    auto due = std::exchange(timers_, {});
    for (auto& [at, task] : due) {
      if (at > now_ + 1e-9) {
        timers_.emplace_back(at, std::move(task));
      } else {
        task();
      }
    }
  }
  void wait_idle() {
    while (!engine_->idle()) std::this_thread::yield();
  }

  Tokenizer tokenizer_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Kernels> kernels_;
  Metrics metrics_{"mini-v41"};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<GrammarCompiler> grammars_;
  Services services_;
  Router router_;

 private:
  void post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::pair<double, std::function<void()>>> timers_;
  double now_ = 0;
};

}  // namespace onelane
