#include "lane/chat_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "lane/mock_server.h"

namespace onelane {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> payloads(std::string_view bytes, SseOptions options = {}) {
  std::vector<std::string> found;
  SseReader reader(options);
  EXPECT_TRUE(reader.feed(bytes, [&](std::string_view data) { found.emplace_back(data); }));
  return found;
}

TEST(SseReader, GivesTheDataLines) {
  constexpr std::string_view kStream =
      ": keep-alive\n\nevent: message\ndata: {\"a\":1}\r\n\r\ndata:{}\ndata:  two\nid: 3\ndata\ndata: [DONE]\n\ndata: "
      "open";
  EXPECT_THAT(payloads(kStream), ElementsAre("{\"a\":1}", "{}", " two", "[DONE]"));
  EXPECT_THAT(payloads(kStream, {.literal_space = true}), ElementsAre("{\"a\":1}", " two", "[DONE]"));
}

TEST(SseReader, RefusesAnEndlessLine) {
  SseReader reader({.max_line_bytes = 10});
  const auto ignore = [](std::string_view) {};
  EXPECT_TRUE(reader.feed("data: 1234", ignore));
  const auto fed = reader.feed("5", ignore);
  ASSERT_FALSE(fed);
  EXPECT_THAT(fed.error().message, HasSubstr("more than 10 bytes"));
}

RC_GTEST_PROP(SseReaderProperty, ReadsTheSameHoweverTheBytesAreCut, ()) {
  const auto bytes = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("data: x\r\n:{}")));
  std::vector<std::string> cut;
  SseReader reader;
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = *rc::gen::inRange<size_t>(1, 9);
    RC_ASSERT(
        reader.feed(std::string_view(bytes).substr(at, length), [&](std::string_view d) { cut.emplace_back(d); }));
    at += length;
  }
  RC_ASSERT(cut == payloads(bytes));
}

TEST(ChatRequest, WritesTheFieldsInTheProtocolsOrder) {
  const ChatRequest request{
      .model = "m", .messages = {{"user", "hi"}}, .max_tokens = 7, .continuous_usage = true, .ignore_eos = true};
  EXPECT_EQ(*chat_request_json(request),
            "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,\"max_tokens\":7,"
            "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},\"ignore_eos\":true}");
  const ChatRequest more{.model = "m", .stream = false, .temperature = 0.5, .more = "{\"n\":2,\"model\":\"x\"}"};
  EXPECT_EQ(*chat_request_json(more), "{\"model\":\"x\",\"messages\":[],\"stream\":false,\"temperature\":0.5,\"n\":2}");
  EXPECT_FALSE(chat_request_json({.more = "[1]"}));
  EXPECT_FALSE(chat_request_json({.more = "{"}));
}

// Events with their arrival in milliseconds.
ChatResult read(const std::vector<std::pair<int, std::string>>& events, bool continuous = true, HttpReply reply = {},
                std::vector<ChatDelta>* deltas = nullptr) {
  const HttpClock::time_point start{};
  ChatOptions options;
  if (deltas != nullptr) options.on_delta = [deltas](const ChatDelta& delta) { deltas->push_back(delta); };
  ChatReader reader(start, continuous, options);
  for (const auto& [ms, data] : events) reader.feed("data: " + data + "\n\n", start + milliseconds(ms));
  if (reply.status == 0) reply.status = 200;
  reply.ended = start + milliseconds(1000);
  return reader.finish(reply);
}

TEST(ChatReader, StampsTextAndCountsTokensByUsage) {
  std::vector<ChatDelta> deltas;
  const ChatResult result = read(
      {{5, R"({"choices":[{"delta":{"role":"assistant","content":""}}],"usage":{"completion_tokens":0}})"},
       {20, R"({"choices":[{"delta":{"reasoning_content":"hm","reasoning":"hm"}}],"usage":{"completion_tokens":1}})"},
       {30, R"({"choices":[{"delta":{"content":"one"}}],"usage":{"completion_tokens":4}})"},
       {60, R"({"choices":[{"delta":{"content":" two"},"finish_reason":"length"}],"usage":{"completion_tokens":5}})"},
       {61,
        R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":3}}})"},
       {62, "[DONE]"}},
      true, {}, &deltas);
  EXPECT_TRUE(result.complete()) << result.problem;
  EXPECT_EQ(result.reasoning, "hm");
  EXPECT_EQ(result.content, "one two");
  EXPECT_EQ(result.finish_reason, "length");
  EXPECT_EQ(result.prompt_tokens, 9);
  EXPECT_EQ(result.cached_tokens, 3);
  EXPECT_EQ(result.completion_tokens, 5);
  EXPECT_DOUBLE_EQ(*result.first_text_s, 0.020);
  EXPECT_DOUBLE_EQ(*result.first_reasoning_s, 0.020);
  EXPECT_DOUBLE_EQ(*result.first_content_s, 0.030);
  EXPECT_DOUBLE_EQ(*result.last_text_s, 0.060);
  EXPECT_DOUBLE_EQ(*result.itl_s(), 0.010);
  EXPECT_EQ(result.text_chunks, 3);
  EXPECT_EQ(result.text_chunks_without_usage, 0);
  ASSERT_EQ(deltas.size(), 5u);
  EXPECT_FALSE(deltas[0].text);
  EXPECT_EQ(deltas[2].tokens, 3);
  EXPECT_EQ(deltas[4].tokens, 0);
}

TEST(ChatReader, PutsToolCallsTogether) {
  const ChatResult result = read(
      {{1,
        R"({"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\""}}]}}]})"},
       {2,
        R"({"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}},{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]}}]})"},
       {3, "[DONE]"}});
  ASSERT_EQ(result.tool_calls.size(), 2u);
  EXPECT_EQ(result.tool_calls[0].arguments, "{\"x\":1}");
  EXPECT_EQ(result.tool_calls[1].name, "g");
  EXPECT_FALSE(result.first_text_s);  // calls are no text
  EXPECT_FALSE(result.itl_s());
}

TEST(ChatReader, SaysWhatWasWrong) {
  const std::string text = R"({"choices":[{"delta":{"content":"x"}}]})";
  EXPECT_EQ(read({{1, text}, {2, "[DONE]"}}).text_chunks_without_usage, 1);
  EXPECT_EQ(read({{1, text}, {2, "[DONE]"}}, false).text_chunks_without_usage, 0);
  EXPECT_EQ(read({{1, R"({"choices":[],"usage":{"completion_tokens":4}})"},
                  {2, R"({"choices":[],"usage":{"completion_tokens":3}})"},
                  {3, "[DONE]"}})
                .usage_decreases,
            1);
  const ChatResult null_delta = read({{1, text}, {2, R"({"choices":[{"delta":null}]})"}, {3, text}, {4, "[DONE]"}});
  EXPECT_EQ(null_delta.outcome, ChatOutcome::kFailed);
  EXPECT_EQ(null_delta.null_deltas, 1);
  EXPECT_EQ(null_delta.content, "x");
  EXPECT_THAT(null_delta.problem, HasSubstr("delta is not an object"));
  EXPECT_THAT(read({{1, text}, {2, R"({"error":{"message":"out of luck"}})"}}).problem, HasSubstr("out of luck"));
  EXPECT_THAT(read({{1, text}}).problem, HasSubstr("without data: [DONE]"));
  EXPECT_THAT(read({{1, "{oops"}}).problem, HasSubstr("not a JSON object: {oops"));
  EXPECT_THAT(read({}, true, {.status = 503, .body = R"({"error":{"message":"full"}})"}).problem,
              HasSubstr("status 503: full"));
  const ChatResult cancelled = read({{1, text}}, true, {.end = HttpEnd::kCancelled, .problem = "cancelled"});
  EXPECT_EQ(cancelled.outcome, ChatOutcome::kCancelled);
  EXPECT_EQ(cancelled.content, "x");
  const ChatResult broken = read({{1, text}}, true, {.end = HttpEnd::kBroken, .problem = "reset"});
  EXPECT_EQ(broken.outcome, ChatOutcome::kFailed);
  EXPECT_EQ(broken.problem, "reset");
}

std::unique_ptr<HttpClient> client_of(const MockServer& mock) {
  auto client = HttpClient::create({.url = mock.url()});
  EXPECT_TRUE(client);
  return std::move(*client);
}

TEST(Chat, AsksTheScriptedModel) {
  MockServer mock({.first_token_seconds = 0, .token_seconds = 0, .reply = [](const nlohmann::json&) {
                     return MockReply{.reasoning = {"let", " me"},
                                      .content = mock_pieces("the answer is 7"),
                                      .tool_calls = {{"call_1", "add", "{\"a\":3}"}},
                                      .finish_reason = "tool_calls"};
                   }});
  const auto client = client_of(mock);
  for (const bool stream : {true, false}) {
    const ChatResult result = chat(*client, {.model = "mock", .messages = {{"user", "3 + 4"}}, .stream = stream});
    ASSERT_TRUE(result.complete()) << result.problem;
    EXPECT_EQ(result.reasoning, "let me");
    EXPECT_EQ(result.content, "the answer is 7");
    EXPECT_EQ(result.finish_reason, "tool_calls");
    ASSERT_EQ(result.tool_calls.size(), 1u);
    EXPECT_EQ(result.tool_calls[0].arguments, "{\"a\":3}");
    EXPECT_EQ(result.completion_tokens, 6);
    EXPECT_EQ(result.first_text_s.has_value(), stream);
  }
  EXPECT_EQ(mock.seen().at(0)["messages"][0]["content"], "3 + 4");
}

TEST(Chat, ReportsARefusalAndACancellation) {
  std::atomic<bool> refuse = true;
  MockServer mock({.token_seconds = 0.001, .reply = [&](const nlohmann::json&) {
                     if (refuse) return MockReply{.status = 400, .error = "too long"};
                     return MockReply{.content = std::vector<std::string>(100000, " x")};
                   }});
  const auto client = client_of(mock);
  EXPECT_THAT(chat(*client, {.model = "mock"}).problem, HasSubstr("status 400: too long"));
  refuse = false;
  std::atomic<int> seen = 0;
  const auto call = start_chat(*client, *chat_request_json({.model = "mock"}), true, false,
                               {.on_delta = [&](const ChatDelta&) { ++seen; }});
  while (seen < 3) std::this_thread::yield();
  call->cancel();
  EXPECT_EQ(call->wait().outcome, ChatOutcome::kCancelled);
  EXPECT_GE(call->wait().text_chunks, 1);
}

TEST(Chat, SeesFlawsThatAreNotTimed) {
  struct Case {
    MockFlaw flaw;
    const char* problem;
  };
  for (const auto& [flaw, problem] : {Case{MockFlaw::kErrorEvent, "out of luck"}, Case{MockFlaw::kHangUp, "[DONE]"},
                                      Case{MockFlaw::kNullDelta, "not an object"}}) {
    MockServer mock;
    mock.plant(flaw);
    const ChatResult result = chat(*client_of(mock), {.model = "mock"});
    EXPECT_EQ(result.outcome, ChatOutcome::kFailed);
    EXPECT_THAT(result.problem, HasSubstr(problem));
  }
}

}  // namespace
}  // namespace onelane
