#include "api/responses_answer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;
using Kind = CompletionEvent::Kind;

// Reads an event stream as a client does and checks what the protocol promises.
struct Client {
  int sequence = 0;
  std::string state = "new";  // created, in_progress, item, part, text_done, part_done, done
  std::vector<Json> items;    // as done
  Json item = {{"id", ""}};   // as added
  std::string text;           // of its deltas
  Json final;

  void expect(const std::string& wanted, const std::string& type) { EXPECT_EQ(state, wanted) << type; }

  void take(std::string_view type_view, const std::string& text_of_event) {
    const std::string type(type_view);
    const Json event = Json::parse(text_of_event);
    EXPECT_EQ(event["type"], type);
    EXPECT_EQ(event["sequence_number"], sequence++);
    if (event.contains("response")) return take_response(type, event["response"]);
    EXPECT_EQ(event["output_index"], items.size()) << type;
    EXPECT_EQ(event.value("item_id", item["id"]), item["id"]) << type;
    EXPECT_EQ(event.value("content_index", 0), 0);
    if (type == "response.output_item.added") {
      expect("in_progress", type);
      item = event["item"];
      text.clear();
      EXPECT_EQ(item["status"], "in_progress");
      state = "item";
    } else if (type == "response.content_part.added") {
      expect("item", type);
      EXPECT_EQ(event["part"]["text"], "");
      state = "part";
    } else if (type.ends_with(".delta")) {
      const bool call = item["type"] == "function_call" || item["type"] == "custom_tool_call";
      expect(call ? "item" : "part", type);
      text += event["delta"].get<std::string>();
    } else if (type.ends_with("text.done")) {
      expect("part", type);
      EXPECT_EQ(event["text"], text);
      state = "text_done";
    } else if (type == "response.content_part.done") {
      expect("text_done", type);
      EXPECT_EQ(event["part"]["text"], text);
      state = "part_done";
    } else if (type.ends_with("arguments.done") || type.ends_with("input.done")) {
      expect("item", type);
      EXPECT_EQ(event[type.ends_with("input.done") ? "input" : "arguments"], text);
      state = "part_done";
    } else if (type == "response.output_item.done") {
      if (event["item"]["status"] == "completed") expect("part_done", type);
      EXPECT_EQ(event["item"]["id"], item["id"]);
      EXPECT_EQ(event["item"]["type"], item["type"]);
      items.push_back(event["item"]);
      state = "in_progress";
    } else {
      ADD_FAILURE() << "unknown event " << type;
    }
  }

  void take_response(const std::string& type, const Json& response) {
    EXPECT_EQ(response["object"], "response");
    if (type == "response.created") {
      expect("new", type);
      state = "created";
    } else if (type == "response.in_progress") {
      expect("created", type);
      state = "in_progress";
    } else {
      expect("in_progress", type);
      EXPECT_EQ(type, "response." + response["status"].get<std::string>());
      state = "done";
      final = response;
      EXPECT_EQ(response["output"], Json(items));
      return;
    }
    EXPECT_EQ(response["status"], "in_progress");
    EXPECT_TRUE(response["output"].empty());
    EXPECT_TRUE(response["usage"].is_null());
  }
};

struct Story {
  Client client;
  Json body;
};

Story tell(const std::vector<CompletionEvent>& events, const AnswerEnd& end,
           const char* request = R"({"input": "x", "store": false, "metadata": {"k": "v"}, "tools": [
               {"type": "function", "name": "sh"}, {"type": "custom", "name": "patch"},
               {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "q"}]}]})") {
  const JsonValue json = *parse_json(request);
  Story story;
  ResponsesAnswer streamed(json, *read_responses_input(json), "m", 7);
  streamed.stream_to([&](std::string_view type, const std::string& event) { story.client.take(type, event); });
  ResponsesAnswer silent(json, *read_responses_input(json), "m", 7);
  for (ResponsesAnswer* answer : {&streamed, &silent}) {
    answer->open();
    answer->use({100, 60, 20, 5});
    answer->begin();
    for (const CompletionEvent& event : events) answer->add(event);
    answer->end(end);
  }
  EXPECT_EQ(story.client.state, "done");
  story.body = Json::parse(silent.body());
  EXPECT_EQ(Json::parse(streamed.body()), story.client.final);
  return story;
}

std::vector<std::string> types(const Json& items) {
  std::vector<std::string> out;
  for (const Json& item : items) out.push_back(item["type"]);
  return out;
}

TEST(ResponsesAnswer, ReasoningThenTextThenCalls) {
  const Story story = tell({{Kind::kReasoning, -1, "Let "},
                            {Kind::kReasoning, -1, "me."},
                            {Kind::kContent, -1, "I "},
                            {Kind::kContent, -1, "run"},
                            {Kind::kCallBegin, 0, "sh"},
                            {Kind::kCallArguments, 0, R"({"a": )"},
                            {Kind::kCallArguments, 0, "1}"},
                            {Kind::kCallEnd, 0, ""},
                            {Kind::kCallBegin, 1, "patch"},
                            {Kind::kCallArguments, 1, R"({"input": "*** a\nb"})"},
                            {Kind::kCallEnd, 1, ""},
                            {Kind::kCallBegin, 2, "mcp__q"},
                            {Kind::kCallArguments, 2, "{}"},
                            {Kind::kCallEnd, 2, ""}},
                           {});
  const Json& out = story.body["output"];
  EXPECT_EQ(types(out),
            (std::vector<std::string>{"reasoning", "message", "function_call", "custom_tool_call", "function_call"}));
  EXPECT_EQ(types(out), types(story.client.final["output"]));
  EXPECT_EQ(out[0]["content"][0]["text"], "Let me.");
  EXPECT_EQ(out[0]["encrypted_content"], reasoning_token("Let me."));
  EXPECT_TRUE(out[0]["id"].get<std::string>().starts_with("rs_"));
  EXPECT_EQ(out[1]["content"][0]["text"], "I run");
  EXPECT_TRUE(out[1]["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(out[2]["arguments"], R"({"a": 1})");
  EXPECT_TRUE(out[2]["id"].get<std::string>().starts_with("fc_"));
  EXPECT_TRUE(out[2]["call_id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(out[3]["input"], "*** a\nb");
  EXPECT_EQ(out[4]["name"], "q");
  EXPECT_EQ(out[4]["namespace"], "mcp");
  const Json& usage = story.body["usage"];
  EXPECT_EQ(usage["input_tokens"], 100);
  EXPECT_EQ(usage["input_tokens_details"]["cached_tokens"], 60);
  EXPECT_EQ(usage["output_tokens"], 20);
  EXPECT_EQ(usage["output_tokens_details"]["reasoning_tokens"], 5);
  EXPECT_EQ(usage["total_tokens"], 120);
  EXPECT_EQ(story.body["metadata"]["k"], "v");
  EXPECT_EQ(story.body["created_at"], 7);
}

// Complaint 47: a client that shows the first block of reasoning must find the second in the same place.
TEST(ResponsesAnswer, EveryBlockOfReasoningHasTheSameShape) {
  const Story story = tell({{Kind::kReasoning, -1, "a"}, {Kind::kContent, -1, "b"}, {Kind::kReasoning, -1, "c"}}, {});
  const Json& out = story.body["output"];
  EXPECT_EQ(types(out), (std::vector<std::string>{"reasoning", "message", "reasoning"}));
  EXPECT_EQ(out[2]["content"][0]["type"], "reasoning_text");
  EXPECT_EQ(out[2]["content"][0]["text"], "c");
}

// Complaint 45: reasoning that eats the limit is told as such, and where the tokens went.
TEST(ResponsesAnswer, ReasoningThatEatsTheLimit) {
  const Story story = tell({{Kind::kReasoning, -1, "long"}}, {.reason = FinishReason::kLength});
  EXPECT_EQ(story.body["status"], "incomplete");
  EXPECT_EQ(story.body["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(story.body["output"][0]["status"], "incomplete");
  EXPECT_EQ(story.body["usage"]["output_tokens_details"]["reasoning_tokens"], 5);
}

TEST(ResponsesAnswer, ACallThatWasCutOffIsNotDone) {
  for (const AnswerEnd& end : {AnswerEnd{.reason = FinishReason::kLength}, AnswerEnd{.stop = "END"}}) {
    const Story story = tell({{Kind::kCallBegin, 0, "sh"}, {Kind::kCallArguments, 0, R"({"a": "b)"}}, end);
    EXPECT_EQ(story.body["output"][0]["status"], "incomplete");
    EXPECT_EQ(story.body["output"][0]["arguments"], R"({"a": "b)");
  }
}

TEST(ResponsesAnswer, NothingAndErrors) {
  EXPECT_EQ(tell({}, {}).body["status"], "completed");
  const Story failed = tell({{Kind::kContent, -1, "a"}},
                            {.reason = FinishReason::kError, .error = {.status = 500, .message = "NaN in row 3"}});
  EXPECT_EQ(failed.client.final["status"], "failed");
  EXPECT_EQ(failed.client.final["error"]["code"], "server_error");
  EXPECT_EQ(failed.client.final["error"]["message"], "NaN in row 3");
  const Story full =
      tell({}, {.reason = FinishReason::kError, .error = {.message = "too long", .code = "context_length_exceeded"}});
  EXPECT_EQ(full.client.final["error"]["code"], "context_length_exceeded");
}

// Without store: false or include, nobody asked for a copy of the reasoning.
TEST(ResponsesAnswer, ReasoningIsCarriedOnlyWhereAskedFor) {
  const Story story = tell({{Kind::kReasoning, -1, "a"}}, {}, R"({"input": "x"})");
  EXPECT_TRUE(story.body["output"][0]["encrypted_content"].is_null());
}

// What goes out comes in again as the same turn, whatever the text.
TEST(ResponsesAnswer, OutputIsInputOfTheNextTurn) {
  const Story story = tell({{Kind::kReasoning, -1, "r\n"},
                            {Kind::kContent, -1, " c\n"},
                            {Kind::kCallBegin, 0, "patch"},
                            {Kind::kCallArguments, 0, R"({"input": "x"})"},
                            {Kind::kCallEnd, 0, ""}},
                           {});
  Json input = Json::array({{{"role", "user"}, {"content", "q"}}});
  for (const Json& item : story.body["output"]) input.push_back(item);
  input.push_back({{"type", "custom_tool_call_output"}, {"call_id", input.back()["call_id"]}, {"output", "ok"}});
  const auto again = read_responses_input(*parse_json(Json({{"input", input}}).dump()));
  ASSERT_TRUE(again) << again.error().message;
  const JsonValue& turn = again->chat.json["messages"].items[1];
  EXPECT_EQ(turn["reasoning_content"].text, "r\n");
  EXPECT_EQ(turn["content"].text, " c\n");
  EXPECT_EQ(turn["tool_calls"].items[0]["function"]["arguments"]["input"].text, "x");
}

}  // namespace
}  // namespace onelane
