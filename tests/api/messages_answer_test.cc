#include "api/messages_answer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "api/messages_input.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;
using Kind = CompletionEvent::Kind;

// Puts a message together as the Python client does, and checks the order of events.
struct Client {
  std::string state = "new";  // between, block, ending, done, error
  Json message;
  std::string json;  // of a tool use
  Json error;

  void take(std::string_view type_view, const std::string& text) {
    const std::string type(type_view);
    const Json event = Json::parse(text);
    EXPECT_EQ(event["type"], type);
    if (type == "message_start") {
      EXPECT_EQ(state, "new");
      message = event["message"];
      EXPECT_TRUE(message["stop_reason"].is_null());
      EXPECT_TRUE(message["content"].empty());
      state = "between";
    } else if (type == "content_block_start") {
      EXPECT_EQ(state, "between");
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
      json.clear();
      state = "block";
    } else if (type == "content_block_delta") {
      EXPECT_EQ(state, "block");
      EXPECT_EQ(event["index"], message["content"].size() - 1);
      take_delta(event["delta"]);
    } else if (type == "content_block_stop") {
      EXPECT_EQ(state, "block");
      EXPECT_EQ(event["index"], message["content"].size() - 1);
      Json& block = message["content"].back();
      if (block["type"] == "tool_use" && Json::accept(json)) block["input"] = Json::parse(json);
      if (block["type"] == "thinking") {
        EXPECT_NE(block["signature"], "");
      }
      state = "between";
    } else if (type == "message_delta") {
      EXPECT_EQ(state, "between");
      message.update(event["delta"]);
      message["usage"].update(event["usage"]);
      state = "ending";
    } else if (type == "message_stop") {
      EXPECT_EQ(state, "ending");
      state = "done";
    } else if (type == "error") {
      EXPECT_NE(state, "done");
      error = event["error"];
      state = "error";
    } else {
      ADD_FAILURE() << "unknown event " << type;
    }
  }

  void take_delta(const Json& delta) {
    Json& block = message["content"].back();
    const std::string type = delta["type"];
    const auto append = [&](const char* block_type, const char* field) {
      EXPECT_EQ(block["type"], block_type);
      block[field] = block[field].get<std::string>() + delta[field].get<std::string>();
    };
    if (type == "text_delta") return append("text", "text");
    if (type == "thinking_delta") return append("thinking", "thinking");
    if (type == "signature_delta") return append("thinking", "signature");
    ASSERT_EQ(type, "input_json_delta");
    EXPECT_EQ(block["type"], "tool_use");
    json += delta["partial_json"].get<std::string>();
  }
};

struct Story {
  Client client;
  Json body;
};

Story tell(const std::vector<CompletionEvent>& events, const AnswerEnd& end, bool hide = false) {
  Story story;
  MessagesAnswer streamed("m", hide), silent("m", hide);
  streamed.stream_to([&](std::string_view type, const std::string& event) { story.client.take(type, event); });
  for (MessagesAnswer* answer : {&streamed, &silent}) {
    answer->open();
    answer->use({100, 60, 0, 0});
    answer->begin();
    answer->use({100, 60, 20, 5});
    for (const CompletionEvent& event : events) answer->add(event);
    answer->end(end);
  }
  if (end.failed()) return story;
  story.body = Json::parse(silent.body());
  EXPECT_EQ(story.client.state, "done");
  EXPECT_EQ(Json::parse(streamed.body())["usage"], story.client.message["usage"]);
  return story;
}

const std::vector<CompletionEvent> kToolTurn = {{Kind::kReasoning, -1, "Let "},
                                                {Kind::kReasoning, -1, "me."},
                                                {Kind::kContent, -1, "I run"},
                                                {Kind::kCallBegin, 0, "sh"},
                                                {Kind::kCallArguments, 0, R"({"n": 12345678901234567890, )"},
                                                {Kind::kCallArguments, 0, R"("b": false, "s": "1"})"},
                                                {Kind::kCallEnd, 0, ""},
                                                {Kind::kCallBegin, 1, "ls"},
                                                {Kind::kCallArguments, 1, "{}"},
                                                {Kind::kCallEnd, 1, ""}};

TEST(MessagesAnswer, ThinkingThenTextThenTools) {
  const Story story = tell(kToolTurn, {});
  for (const Json& message : {story.body, story.client.message}) {
    const Json& content = message["content"];
    ASSERT_EQ(content.size(), 4);
    EXPECT_EQ(content[0]["thinking"], "Let me.");
    EXPECT_EQ(content[0]["signature"], thinking_signature());
    EXPECT_EQ(content[1]["text"], "I run");
    EXPECT_EQ(content[2]["name"], "sh");
    EXPECT_TRUE(content[2]["id"].get<std::string>().starts_with("toolu_"));
    EXPECT_EQ(content[2]["input"]["b"], false);
    EXPECT_EQ(content[2]["input"]["s"], "1");
    EXPECT_EQ(content[3]["input"], Json::object());
    EXPECT_EQ(message["stop_reason"], "tool_use");
    EXPECT_EQ(message["role"], "assistant");
    // Complaint 66: how much of the prompt was cached.
    EXPECT_EQ(message["usage"]["input_tokens"], 40);
    EXPECT_EQ(message["usage"]["cache_read_input_tokens"], 60);
    EXPECT_EQ(message["usage"]["cache_creation_input_tokens"], 0);
    EXPECT_EQ(message["usage"]["output_tokens"], 20);
  }
}

TEST(MessagesAnswer, ArgumentsKeepTheirDigits) {
  MessagesAnswer answer("m", false);
  for (const CompletionEvent& event : kToolTurn) answer.add(event);
  answer.end({});
  EXPECT_NE(answer.body().find("12345678901234567890"), std::string::npos);
}

TEST(MessagesAnswer, StopReasons) {
  const auto reason = [](const AnswerEnd& end) { return tell({{Kind::kContent, -1, "x"}}, end).body; };
  EXPECT_EQ(reason({})["stop_reason"], "end_turn");
  EXPECT_TRUE(reason({})["stop_sequence"].is_null());
  EXPECT_EQ(reason({.reason = FinishReason::kLength})["stop_reason"], "max_tokens");
  const Json stopped = reason({.stop = "END"});
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "END");
}

TEST(MessagesAnswer, ACallThatWasCutOffIsNotHandedOut) {
  for (const AnswerEnd& end : {AnswerEnd{.reason = FinishReason::kLength}, AnswerEnd{.stop = "END"}}) {
    const Story story = tell({{Kind::kCallBegin, 0, "sh"}, {Kind::kCallArguments, 0, R"({"a": "b)"}}, end);
    EXPECT_EQ(story.body["stop_reason"], end.stop.empty() ? "max_tokens" : "stop_sequence");
    EXPECT_TRUE(story.body["content"].empty());
  }
}

// Complaint 45.
TEST(MessagesAnswer, ReasoningThatEatsTheLimit) {
  const Story story = tell({{Kind::kReasoning, -1, "long"}}, {.reason = FinishReason::kLength});
  EXPECT_EQ(story.body["stop_reason"], "max_tokens");
  EXPECT_EQ(story.body["content"][0]["thinking"], "long");
  EXPECT_EQ(story.body["usage"]["output_tokens_details"]["thinking_tokens"], 5);
}

TEST(MessagesAnswer, HiddenThinkingTravelsInTheSignature) {
  const Story story = tell(kToolTurn, {}, true);
  for (const Json& message : {story.body, story.client.message}) {
    EXPECT_EQ(message["content"][0]["thinking"], "");
    EXPECT_EQ(text_of_signature(message["content"][0]["signature"].get<std::string>()), "Let me.");
  }
}

TEST(MessagesAnswer, ErrorsInAStreamAreEvents) {
  const Story story = tell({{Kind::kContent, -1, "x"}},
                           {.reason = FinishReason::kError, .error = {.status = 500, .message = "NaN in row 3"}});
  EXPECT_EQ(story.client.state, "error");
  EXPECT_EQ(story.client.error["type"], "api_error");
  EXPECT_EQ(story.client.error["message"], "NaN in row 3");
}

// What goes out comes in again as the same turn.
TEST(MessagesAnswer, OutputIsInputOfTheNextTurn) {
  const Story story = tell(kToolTurn, {});
  const Json results = Json::array({{{"type", "tool_result"}, {"tool_use_id", "1"}, {"content", "ok"}}});
  const Json body = {{"messages",
                      {{{"role", "user"}, {"content", "q"}},
                       {{"role", "assistant"}, {"content", story.body["content"]}},
                       {{"role", "user"}, {"content", results}}}}};
  const auto again = read_messages_input(*parse_json(body.dump()));
  ASSERT_TRUE(again) << again.error().message;
  const JsonValue& turn = again->chat.json["messages"].items[1];
  EXPECT_EQ(turn["reasoning_content"].text, "Let me.");
  EXPECT_EQ(turn["content"].text, "I run");
  EXPECT_EQ(turn["tool_calls"].items[0]["function"]["arguments"]["b"].text, "false");
}

}  // namespace
}  // namespace onelane
