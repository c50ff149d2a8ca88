#include "api/messages_input.h"

#include <gtest/gtest.h>

#include "text/prompt_encoder.h"

namespace onelane {
namespace {

Result<MessagesInput> read(std::string_view body) {
  const auto json = parse_json(body);
  EXPECT_TRUE(json) << body;
  return read_messages_input(*json);
}

std::string prompt(std::string_view body) {
  const auto input = read(body);
  if (!input) return "error: " + input.error().message;
  const auto prompt = encode_prompt(dump_json(input->chat.json), kPromptFormatV41);
  return prompt ? prompt->text : "error: " + input->chat.in_client_words(prompt.error().message);
}

std::string chat_prompt(std::string_view body) { return encode_prompt(body, kPromptFormatV41)->text; }

TEST(MessagesInput, ThinkingIsOffUnlessAskedFor) {
  const std::string question = R"("messages": [{"role": "user", "content": "Hi"}])";
  const std::string chat = chat_prompt("{" + question + R"(, "thinking_mode": "chat"})");
  EXPECT_EQ(prompt("{" + question + "}"), chat);
  EXPECT_EQ(prompt("{" + question + R"(, "thinking": {"type": "disabled"}})"), chat);
  EXPECT_EQ(prompt("{" + question + R"(, "thinking": {"type": "adaptive"}})"), chat_prompt("{" + question + "}"));
  EXPECT_EQ(prompt("{" + question + R"(, "thinking": {"type": "enabled", "budget_tokens": 31999}})"),
            chat_prompt("{" + question + "}"));
  EXPECT_EQ(prompt("{" + question + R"(, "thinking": {"type": "enabled", "budget_tokens": 1024}})"),
            chat_prompt("{" + question + R"(, "reasoning_effort": "low"})"));
  EXPECT_EQ(prompt("{" + question + R"(, "thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}})"),
            chat_prompt("{" + question + R"(, "reasoning_effort": "max"})"));
}

TEST(MessagesInput, SystemIsATextOrBlocks) {
  const std::string rest = R"("messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]})";
  const std::string expected = chat_prompt(R"({"thinking_mode": "chat", "messages": [
      {"role": "system", "content": "A\n\nB"}, {"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(prompt(R"({"system": "A\n\nB", )" + rest), expected);
  EXPECT_EQ(prompt(R"({"system": [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}},
                      {"type": "text", "text": "B"}], )" +
                   rest),
            expected);
}

// ATOM 1563: arguments that lost their types came back as "invalid tool parameters".
TEST(MessagesInput, AToolLoopKeepsTypesAndReasoning) {
  const std::string got = prompt(R"({"thinking": {"type": "adaptive"},
      "tools": [{"name": "edit", "description": "Edits.", "input_schema": {"type": "object", "properties": {}}},
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
      "messages": [
      {"role": "user", "content": "Go"},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Plan.", "signature": "stale"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "Editing."},
        {"type": "tool_use", "id": "t1", "name": "edit", "input": {"line": 12345678901234567890, "all": false,
          "ratio": 2.50, "path": "a\"b", "tags": ["x", null], "deep": {"n": 1}}},
        {"type": "tool_use", "id": "t2", "name": "edit", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": "no such file"},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "done"}]},
        {"type": "text", "text": "And now?"}]}]})");
  EXPECT_EQ(got, chat_prompt(R"({"tools": [{"type": "function", "function": {"name": "edit",
      "description": "Edits.", "parameters": {"type": "object", "properties": {}}}}], "messages": [
      {"role": "user", "content": "Go"},
      {"role": "assistant", "reasoning_content": "Plan.", "content": "Editing.", "tool_calls": [
        {"id": "t1", "function": {"name": "edit", "arguments": {"line": 12345678901234567890, "all": false,
          "ratio": 2.50, "path": "a\"b", "tags": ["x", null], "deep": {"n": 1}}}},
        {"id": "t2", "function": {"name": "edit", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "t1", "content": "done"},
      {"role": "tool", "tool_call_id": "t2", "content": "Error: no such file"},
      {"role": "user", "content": "And now?"}]})"));
  EXPECT_NE(got.find(R"(name="line" string="false">12345678901234567890<)"), std::string::npos) << got;
}

TEST(MessagesInput, FailedToolsSayThatTheyFailed) {
  const auto result = [](const std::string& content) {
    const std::string text = prompt(R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content":
        [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "1", "is_error": true)" +
                                    content + "}]}]}");
    const size_t begin = text.find("<tool_result>");
    return text.substr(begin + 13, text.find("</tool_result>") - begin - 13);
  };
  EXPECT_EQ(result(""), "Error: the tool failed without output");
  EXPECT_EQ(result(R"(, "content": "Error: EPERM")"), "Error: EPERM");
  EXPECT_EQ(result(R"(, "content": "<tool_use_error>bad</tool_use_error>")"), "<tool_use_error>bad</tool_use_error>");
  EXPECT_EQ(result(R"(, "content": [{"type": "text", "text": "EPERM"}])"), "Error: EPERM");
}

TEST(MessagesInput, AnAssistantMessageAtTheEndIsContinued) {
  EXPECT_TRUE(prompt(R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]})")
                  .ends_with("</think>{"));
}

TEST(MessagesInput, HiddenThinkingComesBackInTheSignature) {
  const auto input = read(R"({"thinking": {"type": "adaptive", "display": "omitted"},
                             "messages": [{"role": "user", "content": "x"}]})");
  EXPECT_TRUE(input->hide_thinking);
  const std::string got = prompt(R"({"thinking": {"type": "adaptive"}, "tools": [{"name": "f", "input_schema": {}}],
      "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "thinking",
      "thinking": "", "signature": ")" +
                                 thinking_signature("T") + R"("}, {"type": "text", "text": "y"}]},
      {"role": "user", "content": "z"}]})");
  EXPECT_NE(got.find("<think>T</think>y"), std::string::npos) << got;
  EXPECT_EQ(text_of_signature(thinking_signature()), "");
  EXPECT_EQ(text_of_signature("EqQBCg"), "");
}

TEST(MessagesInput, OtherBlocksBecomeText) {
  const std::string got = prompt(R"({"messages": [{"role": "user", "content": [
      {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
      {"type": "search_result", "title": "S", "source": "u", "content": [{"type": "text", "text": "R"}]},
      {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}]}]})");
  EXPECT_NE(got.find("<｜User｜>T\n\nD\n\nS\n\nR\n\n[Unsupported document]<"), std::string::npos) << got;
}

// An image in a tool's result would otherwise end an agent's session: it comes back with every request.
TEST(MessagesInput, ImagesInResultsAreNamed) {
  const std::string got = prompt(R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content":
      [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}, {"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": {}}]}]}]})");
  EXPECT_NE(got.find("<tool_result>[image: this server reads text only]</tool_result>"), std::string::npos) << got;
}

TEST(MessagesInput, ToolChoice) {
  using Mode = ToolChoice::Mode;
  const auto choice = [](const std::string& value, const char* tools) {
    const auto input = read(R"({"messages": [{"role": "user", "content": "x"}], "tools": )" + std::string(tools) +
                            R"(, "tool_choice": )" + value + "}");
    if (!input) return std::pair(Mode::kAuto, input.error().message);
    return std::pair(input->chat.tool_choice.mode, input->chat.tool_choice.name);
  };
  const char* one = R"([{"name": "a", "input_schema": {"type": "object"}}])";
  const char* search = R"([{"type": "web_search_20250305", "name": "web_search"}])";
  EXPECT_EQ(choice(R"({"type": "auto"})", one).first, Mode::kAuto);
  EXPECT_EQ(choice(R"({"type": "none"})", one).first, Mode::kNone);
  EXPECT_EQ(choice(R"({"type": "any"})", one).first, Mode::kRequired);
  EXPECT_EQ(choice(R"({"type": "tool", "name": "a"})", one), std::pair(Mode::kNamed, std::string("a")));
  EXPECT_EQ(choice(R"({"type": "tool", "name": "b"})", one).second, R"(tool_choice.name: tools has no "b")");
  EXPECT_EQ(choice(R"({"type": "tool"})", one).second, "tool_choice.name: must be a string");
  EXPECT_EQ(choice(R"({"type": "all"})", one).second, R"(tool_choice.type: "all" is not one of auto, any, tool, none)");
  // Claude Code's web search, which was a 400 on other servers.
  EXPECT_EQ(choice(R"({"type": "tool", "name": "web_search"})", search), std::pair(Mode::kAuto, std::string()));
  EXPECT_EQ(choice(R"({"type": "any"})", search), std::pair(Mode::kAuto, std::string()));
}

TEST(MessagesInput, FieldsAreHandedOnUnderChatsNames) {
  const auto input = read(R"({"model": "m", "max_tokens": 9, "top_k": 5, "stop_sequences": ["a", "b"], "metadata":
      {"user_id": "u"}, "messages": [{"role": "user", "content": "x"}], "output_config": {"format": {"type":
      "json_schema", "schema": {"type": "object"}}}, "tools": [{"name": "f", "input_schema": {}}],
      "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}})");
  ASSERT_TRUE(input) << input.error().message;
  const JsonValue& chat = input->chat.json;
  EXPECT_EQ(chat["max_tokens"].text, "9");
  EXPECT_EQ(chat["top_k"].text, "5");
  EXPECT_EQ(dump_json(chat["stop"]), R"(["a", "b"])");
  EXPECT_EQ(chat["parallel_tool_calls"].text, "false");
  EXPECT_EQ(dump_json(chat["response_format"]["json_schema"]["schema"]), R"({"type": "object"})");
  EXPECT_EQ(input->chat.in_client_words("stop[3]: x"), "stop_sequences[3]: x");
}

TEST(MessagesInput, RefusalsNameTheField) {
  const auto with = [](const char* more) {
    return R"({"messages": [{"role": "user", "content": "x"}], )" + std::string(more) + "}";
  };
  const auto said = [](const char* message) { return R"({"messages": [)" + std::string(message) + "]}"; };
  const std::pair<std::string, const char*> cases[] = {
      {"3", "request: "},
      {"{}", "messages: must be"},
      {R"({"messages": []})", "messages: must be"},
      {said("3"), "messages[0]: must be an object"},
      {said(R"({"role": "tool", "content": "x"})"), "messages[0].role: \"tool\""},
      {said(R"({"role": "user"})"), "messages[0].content: "},
      {said(R"({"role": "user", "content": [3]})"), "messages[0].content[0].type: "},
      {said(R"({"role": "user", "content": [{"type": "text", "text": 3}]})"), "messages[0].content[0].text: "},
      {said(R"({"role": "user", "content": [{"type": "tool_result", "content": "x"}]})"),
       "messages[0].content[0].tool_use_id: "},
      {said(R"({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": 3}]})"),
       "messages[0].content[0].content: "},
      {said(R"({"role": "user", "content": "x"}, {"role": "assistant", "content": [
          {"type": "tool_use", "id": "1", "name": "f", "input": {}}]})"),
       "messages[1]: the conversation ends with a tool call"},
      {said(R"({"role": "user", "content": "x"}, {"role": "assistant", "content": [
          {"type": "tool_use", "id": "1", "name": "f", "input": 3}]})"),
       "messages[1].content[0].input: "},
      {said(R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
               {"role": "user", "content": "<｜deepseek_image｜>"})"),
       "messages[2].content: contains the image"},
      {with(R"("system": 3)"), "system: "},
      {with(R"("system": [{"type": "image"}])"), "system[0].type: "},
      {with(R"("tools": 3)"), "tools: "},
      {with(R"("tools": [{"name": "f"}])"), "tools[0].input_schema: "},
      {with(R"("tools": [{"input_schema": {}}])"), "tools[0].name: "},
      {with(R"("tool_choice": "auto")"), "tool_choice: must be an object"},
      {with(R"("thinking": true)"), "thinking: must be an object"},
      {with(R"("thinking": {"type": "deep"})"), "thinking.type: \"deep\""},
      {with(R"("thinking": {"type": "adaptive"}, "output_config": {"effort": []})"), "output_config.effort: "},
      {with(R"("output_config": {"format": {"type": "json_object"}})"), "output_config.format.type: "},
      {with(R"("output_config": {"format": {"type": "json_schema"}})"), "output_config.format.schema: "},
      {with(R"("output_format": {"type": "json_object"})"), "output_format.type: "},
      {with(R"("output_format": {"type": "json_schema"})"), "output_format.schema: "},
  };
  for (const auto& [body, expected] : cases) {
    EXPECT_TRUE(prompt(body).starts_with(std::string("error: ") + expected)) << body << "\n" << prompt(body);
  }
}

}  // namespace
}  // namespace onelane
