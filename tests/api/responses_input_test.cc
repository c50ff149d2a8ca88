#include "api/responses_input.h"

#include <gtest/gtest.h>

#include "text/prompt_encoder.h"

namespace onelane {
namespace {

Result<ResponsesInput> read(std::string_view body) {
  const auto json = parse_json(body);
  EXPECT_TRUE(json) << body;
  return read_responses_input(*json);
}

std::string prompt(std::string_view body) {
  const auto input = read(body);
  if (!input) return "error: " + input.error().message;
  const auto prompt = encode_prompt(dump_json(input->chat.json), kPromptFormatV41);
  return prompt ? prompt->text : "error: " + input->chat.in_client_words(prompt.error().message);
}

// What a chat request gives: the converters may take other words, but not lead to another prompt.
std::string chat_prompt(std::string_view body) { return encode_prompt(body, kPromptFormatV41)->text; }

TEST(ResponsesInput, ATextIsAQuestion) {
  EXPECT_EQ(prompt(R"({"input": "Hi"})"), chat_prompt(R"([{"role": "user", "content": "Hi"}])"));
  EXPECT_EQ(prompt(R"({"input": "Hi", "instructions": "Be brief."})"),
            chat_prompt(R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])"));
  EXPECT_EQ(prompt(R"({"input": [{"role": "user", "content": "Hi"}]})"),
            chat_prompt(R"([{"role": "user", "content": "Hi"}])"));
}

TEST(ResponsesInput, LeadingInstructionsBecomeOneSystemText) {
  EXPECT_EQ(prompt(R"({"instructions": "A", "input": [
              {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "B"}]},
              {"type": "message", "role": "system", "content": "C"},
              {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]})"),
            chat_prompt(R"([{"role": "system", "content": "A\n\nB\n\nC"}, {"role": "user", "content": "Hi"}])"));
}

// One turn of the model arrives in pieces; the prompt must hold the bytes that it wrote, or no cached prefix fits.
TEST(ResponsesInput, AToolLoopAsCodexSendsItBack) {
  const std::string tools = R"("tools": [{"type": "function", "name": "sh", "description": "Runs.", "strict": false,
      "parameters": {"type": "object", "properties": {"cmd": {"type": "array"}}}}, {"type": "web_search"}])";
  const std::string got = prompt(R"({"instructions": "S", )" + tools + R"(, "input": [
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go"}]},
      {"type": "reasoning", "summary": [], "encrypted_content": ")" +
                                 reasoning_token("Think.") + R"("},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Running."}]},
      {"type": "function_call", "name": "sh", "arguments": "{\"cmd\": [\"ls\", 1.50, true]}", "call_id": "c1"},
      {"type": "function_call", "name": "sh", "arguments": "{}", "call_id": "c2"},
      {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
      {"type": "function_call_output", "call_id": "c1", "output": "one"}]})");
  EXPECT_EQ(got, chat_prompt(R"({"tools": [{"type": "function", "function": {"name": "sh", "description": "Runs.",
      "parameters": {"type": "object", "properties": {"cmd": {"type": "array"}}}}}], "messages": [
      {"role": "system", "content": "S"}, {"role": "user", "content": "Go"},
      {"role": "assistant", "reasoning_content": "Think.", "content": "Running.", "tool_calls": [
        {"id": "c1", "function": {"name": "sh", "arguments": "{\"cmd\": [\"ls\", 1.50, true]}"}},
        {"id": "c2", "function": {"name": "sh", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "one"},
      {"role": "tool", "tool_call_id": "c2", "content": "two"}]})"));
  EXPECT_NE(got.find("Think.</think>Running."), std::string::npos) << got;
}

// An image in a tool's result would otherwise end an agent's session: it comes back with every request.
TEST(ResponsesInput, ImagesInResultsAreNamedAndOthersCounted) {
  const std::string got = prompt(R"({"input": [{"role": "user", "content": "x"},
      {"type": "function_call", "call_id": "1", "name": "view_image", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": "u"}]}]})");
  EXPECT_NE(got.find("<tool_result>[image: this server reads text only]</tool_result>"), std::string::npos) << got;
  const auto asked = read(R"({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]})");
  EXPECT_EQ(parse_conversation(dump_json(asked->chat.json), kPromptFormatV41)->images, 1);
  EXPECT_EQ(asked->chat.in_client_words("messages: 1 images"), "input: 1 images");
}

TEST(ResponsesInput, ReasoningOfOtherServersIsLeftOut) {
  EXPECT_EQ(prompt(R"({"input": [{"role": "user", "content": "a"},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "gAAAA"},
      {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]})"),
            prompt(R"({"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
      {"role": "user", "content": "c"}]})"));
  EXPECT_EQ(reasoning_of_token(reasoning_token("x\ny")), "x\ny");
  EXPECT_EQ(reasoning_of_token("x"), "");
}

TEST(ResponsesInput, AnAnswerAtTheEndIsContinued) {
  const std::string got = prompt(R"({"input": [{"role": "user", "content": "a"},
      {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "T"}]},
      {"role": "assistant", "content": "b"}]})");
  EXPECT_TRUE(got.ends_with("<think>T</think>b")) << got;
}

TEST(ResponsesInput, EffortDecidesAboutThinking) {
  const auto ends = [](const char* body) { return prompt(body).substr(prompt(body).rfind("<｜Assistant｜>")); };
  EXPECT_EQ(ends(R"({"input": "x", "reasoning": {"effort": "none"}})"), "<｜Assistant｜></think>");
  EXPECT_EQ(ends(R"({"input": "x", "reasoning": {"effort": "minimal"}})"), "<｜Assistant｜><think>");
  EXPECT_EQ(ends(R"({"input": "x", "reasoning": {"effort": null, "summary": "auto"}})"), "<｜Assistant｜><think>");
  EXPECT_NE(prompt(R"({"input": "x", "reasoning": {"effort": "xhigh"}})").find("Effort: 100"), std::string::npos);
  // Complaint 46: a name that the model does not have is mapped, not refused.
  EXPECT_NE(prompt(R"({"input": "x", "reasoning": {"effort": "medium"}})").find("Effort: 75"), std::string::npos);
}

TEST(ResponsesInput, CustomAndNamespacedToolsAreFunctionsToTheModel) {
  const auto input = read(R"({"input": "x", "tools": [
      {"type": "custom", "name": "apply_patch", "description": "Edits.",
       "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
      {"type": "namespace", "name": "mcp__db", "description": "d", "tools": [
        {"type": "function", "name": "query", "parameters": {"type": "object"}}]},
      {"type": "image_generation", "output_format": "png"}, {"type": "tool_search"}]})");
  ASSERT_TRUE(input) << input.error().message;
  ASSERT_EQ(input->tools.size(), 2);
  EXPECT_TRUE(input->tool("apply_patch")->custom);
  const ResponsesTool* query = input->tool("mcp__db__query");
  ASSERT_NE(query, nullptr);
  EXPECT_EQ(query->name, "query");
  EXPECT_EQ(query->space, "mcp__db");
  EXPECT_EQ(input->tool("query"), nullptr);
  EXPECT_EQ(input->chat.ignored, (std::vector<std::string>{"tools[2] (image_generation)", "tools[3] (tool_search)"}));
  const std::string description = input->chat.json["tools"].items[0]["function"]["description"].text;
  EXPECT_EQ(description, "Edits.\n\nThe input must match this lark grammar:\nstart: x");

  const std::string history = prompt(R"({"input": [{"role": "user", "content": "x"},
      {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": "*** Begin"},
      {"type": "custom_tool_call_output", "call_id": "1", "output": "ok"},
      {"type": "function_call", "call_id": "2", "namespace": "mcp__db", "name": "query", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "2", "output": "42"}]})");
  EXPECT_NE(history.find(R"( name="input" string="true">*** Begin<)"), std::string::npos) << history;
  EXPECT_NE(history.find(R"( name="mcp__db__query">)"), std::string::npos) << history;
}

TEST(ResponsesInput, ToolChoice) {
  using Mode = ToolChoice::Mode;
  const auto choice = [](const std::string& value) {
    const auto input = read(R"({"input": "x", "tools": [{"type": "function", "name": "a"}, {"type": "custom",
        "name": "b"}, {"type": "web_search"}], "tool_choice": )" +
                            value + "}");
    if (!input) return std::pair(Mode::kAuto, input.error().message);
    return std::pair(input->chat.tool_choice.mode, input->chat.tool_choice.name);
  };
  EXPECT_EQ(choice(R"("auto")").first, Mode::kAuto);
  EXPECT_EQ(choice(R"("none")").first, Mode::kNone);
  EXPECT_EQ(choice(R"("required")").first, Mode::kRequired);
  EXPECT_EQ(choice(R"({"type": "function", "name": "a"})"), std::pair(Mode::kNamed, std::string("a")));
  EXPECT_EQ(choice(R"({"type": "custom", "name": "b"})"), std::pair(Mode::kNamed, std::string("b")));
  EXPECT_EQ(choice(R"({"type": "web_search"})"), std::pair(Mode::kAuto, std::string()));
  EXPECT_EQ(choice(R"({"type": "function", "name": "c"})").second, R"(tool_choice.name: tools has no "c")");
  EXPECT_EQ(choice(R"("maybe")").second, R"(tool_choice: "maybe" is not one of auto, none, required)");
  EXPECT_EQ(choice("3").second, "tool_choice: 3 is not one of auto, none, required");
  const auto allowed = read(R"({"input": "x", "tools": [{"type": "function", "name": "a"}, {"type": "function",
      "name": "b"}], "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [
      {"type": "function", "name": "b"}]}})");
  ASSERT_TRUE(allowed);
  EXPECT_EQ(allowed->chat.json["tools"].items.size(), 1);
  EXPECT_EQ(allowed->chat.tool_choice.mode, Mode::kRequired);
}

TEST(ResponsesInput, FieldsAreHandedOnUnderChatsNames) {
  const auto input = read(R"({"input": "x", "model": "m", "max_output_tokens": 7, "temperature": 0.5, "stream": true,
      "store": false, "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "strict": true,
      "schema": {"type": "object"}}}})");
  ASSERT_TRUE(input) << input.error().message;
  const JsonValue& chat = input->chat.json;
  EXPECT_EQ(chat["max_tokens"].text, "7");
  EXPECT_EQ(chat["temperature"].text, "0.5");
  EXPECT_EQ(dump_json(chat["response_format"]),
            R"({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": {"type": "object"}}})");
  EXPECT_TRUE(input->carry_reasoning);
  EXPECT_EQ(input->chat.in_client_words("max_tokens: must be an integer"), "max_output_tokens: must be an integer");
  EXPECT_EQ(input->chat.in_client_words("max_tokens_x: y"), "max_tokens_x: y");
  EXPECT_EQ(input->chat.in_client_words("messages[9]: y"), "messages[9]: y");
  EXPECT_FALSE(read(R"({"input": "x"})")->carry_reasoning);
}

TEST(ResponsesInput, RefusalsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "request: "},
      {R"({})", "input: must be"},
      {R"({"input": []})", "input: must be"},
      {R"({"input": 3})", "input: must be"},
      {R"({"input": [3]})", "input[0]: must be an object"},
      {R"({"input": [{}]})", "input[0].type: "},
      {R"({"input": [{"type": "dance"}]})", "input[0].type: \"dance\""},
      {R"({"input": [{"type": "web_search_call"}]})", "input: holds nothing"},
      {R"({"input": [{"type": "item_reference", "id": "msg_1"}]})", "input[0]: items are not kept"},
      {R"({"input": [{"role": "boss", "content": "x"}]})", "input[0].role: \"boss\""},
      {R"({"input": [{"role": "user"}]})", "input[0].content: "},
      {R"({"input": [{"role": "user", "content": [{"type": "input_text"}]}]})", "input[0].content[0].text: "},
      {R"({"input": [{"role": "user", "content": [{"text": "x"}]}]})", "input[0].content[0].type: "},
      {R"({"input": [{"role": "system", "content": [{"type": "input_image"}]}]})", "input[0].content[0].type: "},
      {R"({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]})", "input[0].call_id: "},
      {R"({"input": [{"type": "function_call", "call_id": "1", "arguments": "{}"}]})", "input[0].name: "},
      {R"({"input": [{"type": "function_call", "call_id": "1", "name": "a"}]})", "input[0].arguments: "},
      {R"({"input": [{"role": "user", "content": "x"},
          {"type": "function_call", "call_id": "1", "name": "a", "arguments": ""}]})",
       "input[1]: the conversation ends with a tool call"},
      {R"({"input": [{"type": "function_call_output", "output": "x"}]})", "input[0].call_id: "},
      {R"({"input": [{"type": "reasoning", "content": "x"}]})", "input[0].content: "},
      {R"({"input": [{"role": "user", "content": "<｜deepseek_image｜>"}]})", "input[0].content: contains the image"},
      {R"({"input": "x", "previous_response_id": "resp_1"})", "previous_response_id: nothing is kept"},
      {R"({"input": "x", "conversation": "conv_1"})", "conversation: "},
      {R"({"input": "x", "background": true})", "background: "},
      {R"({"input": "x", "instructions": 3})", "instructions: "},
      {R"({"input": "x", "tools": {}})", "tools: must be an array"},
      {R"({"input": "x", "tools": [{"type": "function"}]})", "tools[0].name: "},
      {R"({"input": "x", "tools": [{"name": "x"}]})", "tools[0].type: "},
      {R"({"input": "x", "tools": [{"type": "namespace", "name": "n"}]})", "tools[0].tools: "},
      {R"({"input": "x", "reasoning": "high"})", "reasoning: must be an object"},
      {R"({"input": "x", "reasoning": {"effort": 500}})", "reasoning.effort: 500 is outside"},
      {R"({"input": "x", "text": {"format": {"type": "xml"}}})", "text.format.type: "},
      {R"({"input": "x", "text": {"format": {"type": "json_schema"}}})", "text.format.schema: "},
      {R"({"input": "x", "include": "y"})", "include: "},
  };
  for (const auto& [body, expected] : cases) {
    EXPECT_TRUE(prompt(body).starts_with(std::string("error: ") + expected)) << body << "\n" << prompt(body);
  }
}

}  // namespace
}  // namespace onelane
