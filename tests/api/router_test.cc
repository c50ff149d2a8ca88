#include "api/router.h"

#include <stdexcept>

#include <gmock/gmock.h>

#include "api/api_fixture.h"
#include "api/event_stream.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Headers = std::vector<std::pair<std::string, std::string>>;

using RouterTest = ApiFixture;

TEST_F(RouterTest, RefusesInTheShapeOfTheProtocol) {
  services_.options.api_keys = {"first", "second"};
  router_.add("POST", "/v1/messages", Protocol::kAnthropic, Router::Access::kKey,
              [](const HttpRequest&, const std::shared_ptr<ApiExchange>& to) { to->respond({.body = "yes"}); });

  EXPECT_EQ(send("GET", "/nowhere")->status(), 404);
  EXPECT_EQ(send("GET", "/nowhere")->json()["error"]["code"], "not_found");
  EXPECT_EQ(send("GET", "/nowhere", "", {{"anthropic-version", "1"}})->json()["error"]["type"], "not_found_error");
  const auto wrong_method = send("PUT", "/v1/completions");
  EXPECT_EQ(wrong_method->status(), 405);
  EXPECT_EQ(wrong_method->header("allow"), "POST");

  EXPECT_EQ(send("POST", "/v1/completions", "{}")->status(), 401);
  EXPECT_EQ(send("POST", "/v1/completions", "{}")->json()["error"]["code"], "invalid_api_key");
  EXPECT_EQ(send("POST", "/v1/messages")->status(), 401);
  EXPECT_EQ(send("POST", "/v1/messages")->json()["error"]["type"], "authentication_error");
  for (const Headers& good : {Headers{{"authorization", "Bearer first"}}, Headers{{"authorization", "bearer second"}},
                              Headers{{"x-api-key", "second"}}}) {
    EXPECT_EQ(send("POST", "/v1/messages", "", good)->body, "yes");
  }
  for (const Headers& bad : {Headers{{"authorization", "Bearer firs"}}, Headers{{"authorization", "first"}},
                             Headers{{"x-api-key", ""}}, Headers{{"authorization", "Bearer "}}}) {
    EXPECT_EQ(send("POST", "/v1/messages", "", bad)->status(), 401);
  }
  EXPECT_EQ(send("GET", "/health")->status(), 200);
  EXPECT_EQ(send("HEAD", "/health")->status(), 200);
  EXPECT_EQ(send("HEAD", "/tokenize")->status(), 405);
}

TEST_F(RouterTest, NoHandlerEndsTheProcess) {
  const auto add = [&](const char* path, auto handler) {
    router_.add("GET", path, Protocol::kOpenAi, Router::Access::kOpen, handler);
  };
  add("/throws", [](const HttpRequest&, const std::shared_ptr<ApiExchange>&) { throw std::runtime_error("secret"); });
  add("/forgets", [](const HttpRequest&, const std::shared_ptr<ApiExchange>&) {});
  add("/twice", [](const HttpRequest&, const std::shared_ptr<ApiExchange>& to) {
    to->respond({.status = 201});
    to->fail({.message = "too late"});
  });
  const auto thrown = send("GET", "/throws");
  EXPECT_EQ(thrown->status(), 500);
  EXPECT_THAT(thrown->body, ::testing::Not(HasSubstr("secret")));
  EXPECT_EQ(send("GET", "/forgets")->status(), 500);
  EXPECT_EQ(send("GET", "/twice")->status(), 201);
}

TEST_F(RouterTest, AnswersCarryARequestId) {
  EXPECT_THAT(send("GET", "/version")->header("x-request-id"), StartsWith("req_"));
  EXPECT_EQ(send("GET", "/version", "", {{"x-request-id", "mine"}})->header("x-request-id"), "mine");
  EXPECT_THAT(send("GET", "/version", "", {{"x-request-id", "a\nb"}})->header("x-request-id"), StartsWith("req_"));
}

TEST_F(RouterTest, PagesOfOtherOriginsAreRefused) {
  const auto post = [&](const Headers& headers) { return send("POST", "/tokenize", "{}", headers)->status(); };
  EXPECT_EQ(post({{"origin", "http://evil.example"}, {"host", "127.0.0.1:8000"}}), 403);
  EXPECT_EQ(post({{"origin", "http://127.0.0.1:8000"}, {"host", "127.0.0.1:8000"}}), 400);
  EXPECT_EQ(send("GET", "/health")->header("access-control-allow-origin"), "");
}

TEST_F(RouterTest, EventsAndKeepAlives) {
  services_.options.keep_alive_seconds = 4;
  auto exchange = std::make_shared<FakeExchange>();
  int closed = 0;
  auto stream = EventStream::start(services_, exchange, [&] { ++closed; });
  EXPECT_EQ(exchange->head->content_type, "text/event-stream; charset=utf-8");
  stream->data("{}");
  stream->event("ping", R"({"a":1})");
  EXPECT_EQ(exchange->body, "data: {}\n\nevent: ping\ndata: {\"a\":1}\n\n");
  exchange->body.clear();
  for (int i = 0; i < 3; ++i) advance(2);  // the first tick heard the events above
  EXPECT_EQ(exchange->body, ": keep-alive\n\n");
  stream->data("1");
  for (int i = 0; i < 2; ++i) advance(2);
  EXPECT_EQ(exchange->body, ": keep-alive\n\ndata: 1\n\n");
  stream->done();
  for (int i = 0; i < 4; ++i) advance(2);
  exchange->hang_up();
  EXPECT_EQ(exchange->body, ": keep-alive\n\ndata: 1\n\ndata: [DONE]\n\n");
  EXPECT_EQ(closed, 0);

  auto second = std::make_shared<FakeExchange>();
  auto lost = EventStream::start(services_, second, [&] { ++closed; });
  second->hang_up();
  lost->data("2");
  lost->done();
  EXPECT_EQ(closed, 1);
  EXPECT_EQ(second->body, "");
}

// 63: a dead engine must not look alive.
TEST_F(RouterTest, Complaint63HealthDependsOnProgress) {
  EXPECT_EQ(send("GET", "/health")->json()["status"], "ok");
  EXPECT_EQ(send("GET", "/ready")->status(), 200);
  services_.draining = true;
  EXPECT_EQ(send("GET", "/ready")->status(), 503);
  services_.options.health_seconds = -1;  // any age is too old for a request that runs
  auto exchange = send("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2000, "ignore_eos": true})");
  EXPECT_EQ(send("GET", "/health")->status(), 503);
  EXPECT_EQ(send("GET", "/health")->json()["error"]["code"], "stuck");
  EXPECT_EQ(send("GET", "/load")->json()["server_load"], 1);
  exchange->hang_up();
  wait_idle();
  EXPECT_EQ(send("GET", "/health")->status(), 200);
}

}  // namespace
}  // namespace onelane
