// The Responses and Messages routes with a real engine: how a run begins, and all the ways in which it can end.
#include <gmock/gmock.h>

#include "api/api_fixture.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;
using ChatRunTest = ApiFixture;

Json messages_request() {
  return {{"max_tokens", 2000},
          {"ignore_eos", true},
          {"messages", Json::array({{{"role", "user"}, {"content", "Hello!"}}})}};
}

Json responses_request() { return {{"max_output_tokens", 2000}, {"ignore_eos", true}, {"input", "Hello!"}}; }

// The events of a stream; each is a name and its data.
std::vector<Json> events(const std::string& body) {
  std::vector<Json> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    const std::string frame = body.substr(at, end - at);
    at = end + 2;
    const size_t data = frame.find("\ndata: ");
    if (frame.starts_with(':') || data == std::string::npos) continue;
    out.push_back(Json::parse(frame.substr(data + 7)));
    EXPECT_EQ("event: " + out.back()["type"].get<std::string>(), frame.substr(0, data));
  }
  return out;
}

TEST_F(ChatRunTest, ADeadlineIsAnErrorOfTheProtocol) {
  services_.options.request_seconds = 0.001;
  Json message = messages_request(), response = responses_request();
  const auto refused = ask("/v1/messages", message);
  EXPECT_EQ(refused->status(), 504);
  EXPECT_EQ(refused->json()["error"]["type"], "api_error");
  EXPECT_EQ(ask("/v1/responses", response)->status(), 504);
  message["stream"] = response["stream"] = true;
  const Json error = events(ask("/v1/messages", message)->body).back();
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["error"]["type"], "api_error");
  const Json failed = events(ask("/v1/responses", response)->body).back();
  EXPECT_EQ(failed["type"], "response.failed");
  EXPECT_EQ(failed["response"]["status"], "failed");
  EXPECT_EQ(failed["response"]["error"]["code"], "server_error");
}

TEST_F(ChatRunTest, AFullQueueIsOverloaded) {
  Json message = messages_request(), response = responses_request();
  message["stream"] = true;
  std::vector<std::shared_ptr<FakeExchange>> running;
  while (running.size() < 13) running.push_back(send("POST", "/v1/messages", message.dump()));
  EXPECT_EQ(running.back()->status(), 503);
  EXPECT_EQ(running.back()->json()["error"]["type"], "overloaded_error");
  EXPECT_EQ(send("POST", "/v1/responses", response.dump())->json()["error"]["code"], "overloaded");
  running.pop_back();
  for (const auto& exchange : running) exchange->hang_up();
  wait_idle();
  EXPECT_EQ(ask("/v1/messages", {{"max_tokens", 1}, {"messages", message["messages"]}})->status(), 200);
}

TEST_F(ChatRunTest, AHangUpEndsTheGeneration) {
  for (const bool stream : {false, true}) {
    Json response = responses_request();
    response["stream"] = stream;
    const auto exchange = send("POST", "/v1/responses", response.dump());
    run_until([&] { return engine_->stats().generated_tokens > 0; });
    exchange->hang_up();
    wait_idle();
    EXPECT_FALSE(exchange->complete);
  }
}

// One call and no more: the generation ends behind it, although the model was made to go on.
TEST_F(ChatRunTest, WithoutParallelCallsTheFirstIsTheLast) {
  Json message = messages_request();
  message["tools"] = Json::parse(R"([{"name": "check_server", "description": "Use this to check the server.",
      "input_schema": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}}])");
  message["messages"][0]["content"] = "Check the server. id: 7.";
  message["tool_choice"] = {{"type", "any"}, {"disable_parallel_tool_use", true}};
  for (const bool stream : {false, true}) {
    message["stream"] = stream;
    const auto exchange = ask("/v1/messages", message);
    EXPECT_EQ(exchange->status(), 200);
    if (stream) {
      const auto told = events(exchange->body);
      EXPECT_EQ(told.back()["type"], "message_stop");
      EXPECT_EQ(told[told.size() - 2]["delta"]["stop_reason"], "tool_use");
    } else {
      EXPECT_EQ(exchange->json()["stop_reason"], "tool_use");
      EXPECT_EQ(exchange->json()["content"].back()["type"], "tool_use");
      EXPECT_LT(exchange->json()["usage"]["output_tokens"], 2000);
    }
    wait_idle();
  }
}

// While a prompt is read, a Messages stream pings; nothing else may come before its head.
TEST_F(ChatRunTest, PingsBeforeTheHead) {
  Json message = messages_request();
  message["stream"] = true;
  message["max_tokens"] = 2;
  const auto exchange = send("POST", "/v1/messages", message.dump());
  for (int half = 0; half < 2; ++half) advance(services_.options.keep_alive_seconds / 2);
  run_until([&] { return exchange->complete; });
  const auto told = events(exchange->body);
  EXPECT_EQ(told.front()["type"], "ping");
  size_t head = 0;
  while (told[head]["type"] == "ping") ++head;
  EXPECT_EQ(told[head]["type"], "message_start");
}

TEST_F(ChatRunTest, ProblemsSpeakOfTheClientsFields) {
  const auto error = [&](const Json& change) {
    Json response = responses_request();
    response.update(change);
    return ask("/v1/responses", response)->json()["error"];
  };
  EXPECT_EQ(error({{"max_output_tokens", "x"}})["param"], "max_output_tokens");
  EXPECT_EQ(error({{"text", {{"format", {{"type", "xml"}}}}}})["param"], "text.format.type");
  const Json bad = {{"type", "json_schema"}, {"name", "n"}, {"schema", {{"type", "thing"}}}};
  EXPECT_EQ(error({{"text", {{"format", bad}}}})["param"], "text.format.schema");
  EXPECT_EQ(error({{"tools", Json::array()}, {"tool_choice", "required"}})["param"], "tool_choice");
  EXPECT_EQ(error({{"model", "gpt-9"}})["code"], "model_not_found");
  EXPECT_THAT(error({{"input", Json::array({{{"role", "user"}, {"content", "<｜deepseek_image｜>"}}})}})["message"]
                  .get<std::string>(),
              HasSubstr("input[0].content: "));
}

}  // namespace
}  // namespace onelane
