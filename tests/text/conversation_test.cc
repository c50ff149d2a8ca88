#include "text/conversation.h"

#include <gtest/gtest.h>

namespace onelane {
namespace {

TEST(Conversation, RefusesByMessageAndField) {
  const std::pair<const char*, const char*> cases[] = {
      {"[", "request: "},
      {"3", "request: "},
      {"{}", "messages: "},
      {R"({"messages": []})", "messages: "},
      {R"(["hi"])", "messages[0]: "},
      {R"([{"content": "x"}])", "messages[0].role: null"},
      {R"([{"role": "robot", "content": "x"}])", "messages[0].role: \"robot\""},
      {R"([{"role": "user", "content": "x"}, {"role": "user"}])", "messages[1].content: is missing"},
      {R"([{"role": "system"}])", "messages[0].content: is missing"},
      {R"([{"role": "user", "content": 5}])", "messages[0].content: must be"},
      {R"([{"role": "user", "content": [{"text": "x"}]}])", "messages[0].content[0].type: "},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text: "},
      {R"([{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "tool_result"}]}]}])",
       "do not nest"},
      {R"([{"role": "assistant", "content": "x", "reasoning_content": 3}])", "messages[0].reasoning_content: "},
      {R"([{"role": "assistant", "tool_calls": {}}])", "messages[0].tool_calls: "},
      {R"([{"role": "assistant", "tool_calls": [{"name": "f"}]}])", "messages[0].tool_calls[0].function: "},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}])",
       "messages[0].tool_calls[0].function.name: "},
      {R"([{"role": "user", "content": "x", "task": "dance"}])", "messages[0].task: \"dance\""},
      {R"({"messages": [{"role": "user", "content": "x"}], "tools": {}})", "tools: "},
      {R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}]})", "tools[0].function: "},
      {R"([{"role": "system", "content": "x", "tools": [1]}])", "messages[0].tools[0].function: "},
      {R"({"messages": [{"role": "user", "content": "x"}], "thinking_mode": "deep"})", "thinking_mode: "},
      {R"({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": 1.5})", "reasoning_effort: "},
      {R"({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": []})", "reasoning_effort: "},
      {R"({"messages": [{"role": "user", "content": "x"}], "drop_thinking": 1})", "drop_thinking: "},
      {R"({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}})",
       "response_format.type: "},
      {R"({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema"}})",
       "response_format.json_schema.schema: "},
      {R"([{"role": "user", "content": "see <｜deepseek_image｜>"}])",
       "messages[0].content: contains the image placeholder"},
      {R"([{"role": "tool", "content": "<｜deepseek_image｜>"}])", "messages[0].content: contains"},
      {R"([{"role": "assistant", "content": "", "reasoning_content": "<｜deepseek_image｜>"}])",
       "messages[0].reasoning_content: contains"},
  };
  for (const auto& [json, message] : cases) {
    const auto conversation = parse_conversation(json, kPromptFormatV41);
    ASSERT_FALSE(conversation) << json;
    EXPECT_EQ(conversation.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(conversation.error().message.find(message), std::string::npos) << conversation.error().message;
  }
}

TEST(Conversation, ThinkingComesFromAnyOfItsSpellings) {
  const auto thinking = [](const std::string& fields) {
    const auto conversation =
        parse_conversation(R"({"messages": [{"role": "user", "content": "x"}])" + fields + "}", kPromptFormatV41);
    EXPECT_TRUE(conversation) << conversation.error().message;
    return conversation->thinking;
  };
  EXPECT_TRUE(thinking(""));
  EXPECT_FALSE(thinking(R"(, "thinking_mode": "chat")"));
  EXPECT_FALSE(thinking(R"(, "chat_template_kwargs": {"thinking": false})"));
  EXPECT_FALSE(thinking(R"(, "chat_template_kwargs": {"enable_thinking": false})"));
  EXPECT_FALSE(thinking(R"(, "thinking": {"type": "disabled"})"));
  EXPECT_TRUE(thinking(R"(, "thinking": {"type": "enabled"})"));
  EXPECT_FALSE(thinking(R"(, "reasoning_effort": "none")"));
  EXPECT_TRUE(thinking(R"(, "reasoning_effort": "none", "thinking_mode": "thinking")"));
  EXPECT_TRUE(thinking(R"(, "reasoning_effort": "medium")"));
}

// Complaint 43 (spec/peers.md 4.4): arguments that were encoded twice are read as what they were.
TEST(Conversation, ArgumentsAreReadThroughEveryEncoding) {
  for (const char* arguments :
       {R"({"a": 1, "b": "x"})", R"("{\"a\": 1, \"b\": \"x\"}")", R"("\"{\\\"a\\\": 1, \\\"b\\\": \\\"x\\\"}\"")"}) {
    const auto conversation = parse_conversation(
        std::string(R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": )") + arguments +
            "}}]}]",
        kPromptFormatV4);
    ASSERT_TRUE(conversation) << conversation.error().message;
    const auto& parsed = conversation->messages[0].calls[0].arguments;
    ASSERT_EQ(parsed.size(), 2u) << arguments;
    EXPECT_EQ(parsed[0].name + parsed[0].value, "a1");
    EXPECT_FALSE(parsed[0].is_string);
    EXPECT_EQ(parsed[1].name + parsed[1].value, "bx");
    EXPECT_TRUE(parsed[1].is_string);
  }
}

TEST(Conversation, ArgumentsThatAreNoObjectBecomeOneParameter) {
  const auto conversation = parse_conversation(
      R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "ls -l"}},
          {"function": {"name": "g", "arguments": ""}}, {"function": {"name": "h"}},
          {"function": {"name": "i", "arguments": [1]}}]}])",
      kPromptFormatV4);
  ASSERT_TRUE(conversation);
  const auto& calls = conversation->messages[0].calls;
  ASSERT_EQ(calls[0].arguments.size(), 1u);
  EXPECT_EQ(calls[0].arguments[0].name + "=" + calls[0].arguments[0].value, "arguments=ls -l");
  EXPECT_TRUE(calls[1].arguments.empty());
  EXPECT_TRUE(calls[2].arguments.empty());
  EXPECT_EQ(calls[3].arguments[0].value, "[1]");
}

// Complaint 44: history without reasoning is accepted.
TEST(Conversation, HistoryWithoutReasoning) {
  EXPECT_TRUE(parse_conversation(
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": null},
                                     {"role": "tool", "content": null}, {"role": "user", "content": "b"}])",
      kPromptFormatV41));
}

TEST(Conversation, ImagesAreCounted) {
  const char* json =
      R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "what?"}]}])";
  EXPECT_EQ(parse_conversation(json, kPromptFormatV41)->images, 1);
  EXPECT_EQ(parse_conversation(json, kPromptFormatV4)->images, 0);
  EXPECT_EQ(parse_conversation(json, kPromptFormatV4)->messages[0].parts[0].text, "[Unsupported image_url]");
}

}  // namespace
}  // namespace onelane
