#include <filesystem>

#include "text/completion.h"
#include "text_fixture.h"

namespace onelane {
namespace {

using Calls = std::vector<ToolCall>;

constexpr const char* kV4Call =
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
    "<｜DSML｜parameter name=\"a\" string=\"true\">x\"y\n</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"b\" string=\"false\">[1, 2.50]</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

TEST(ParseCompletion, ReasoningContentAndCalls) {
  const auto message =
      parse_completion(std::string("why</think>text") + kV4Call + "<｜end▁of▁sentence｜>", kPromptFormatV4, true);
  ASSERT_TRUE(message) << message.error().message;
  EXPECT_EQ(*message, (AssistantMessage{"why", "text", {{"f", R"({"a": "x\"y\n", "b": [1, 2.50]})", true}}}));
  EXPECT_EQ(
      message_json(*message),
      R"({"role": "assistant", "reasoning_content": "why", "content": "text", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{\"a\": \"x\\\"y\\n\", \"b\": [1, 2.50]}"}}]})");
}

TEST(ParseCompletion, EosMayBeAbsent) {
  EXPECT_EQ(parse_completion("hi", kPromptFormatV4, false)->content, "hi");
  EXPECT_EQ(parse_completion("</think>hi", kPromptFormatV41, true)->content, "hi");
  EXPECT_EQ(parse_completion("", kPromptFormatV41, false)->content, "");
}

TEST(ParseCompletion, CallWithoutParameters) {
  const auto message =
      parse_completion("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
                       kPromptFormatV41, false);
  ASSERT_TRUE(message) << message.error().message;
  EXPECT_EQ(message->tool_calls, (Calls{{"f", "{}", true}}));
}

TEST(ParseCompletion, RefusesWithOffsetAndExpectation) {
  const std::string open = "\n\n<｜DSML｜tool_calls>\n";  // 27 bytes
  const std::string invoke = open + "<｜DSML｜invoke name=\"f\">\n";
  const std::string parameter = invoke + "<｜DSML｜parameter name=\"a\" string=\"false\">";
  const std::string close = "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  struct Case {
    std::string text;
    bool thinking;
    std::string message;
  };
  const Case cases[] = {
      {"no end", true, "offset 6: expected </think>, found the end"},
      {"r" + open + "</think>", true, "offset 1: expected </think>"},
      {"a<think>b", false, "offset 1: expected text without the control token <think>"},
      {"a</think>b", false, "control token </think>"},
      {"x｜DSML｜", false, "offset 1: expected text without the control token ｜DSML｜"},
      {"a<｜end▁of▁sentence｜>b", false, "expected the end of the text, found \"b\""},
      {open + "x", false, "offset " + std::to_string(open.size()) + ": expected <｜DSML｜invoke"},
      {"\n\n<｜DSML｜tool_calls\n", false, "expected \">\\n\""},
      {invoke, false, "expected <｜DSML｜parameter or </｜DSML｜invoke, found the end"},
      {open + "<｜DSML｜invoke name=f>\n", false, "expected \" name=\\\"\""},
      {parameter + "1", false, "expected \"</｜DSML｜parameter\", found the end"},
      {parameter + "one" + close, false,
       "offset " + std::to_string(parameter.size()) + ": expected JSON (string=\"false\"), found \"one"},
      {parameter + "1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"a\" string=\"false\">2" + close, false,
       "expected a new parameter name, not \"a\" again"},
      {invoke + "<｜DSML｜parameter name=\"a\" string=\"maybe\">2" + close, false, "expected true\"> or false\">"},
      {parameter + "1" + close + "more", false, "expected the end of the text"},
      {invoke + "</｜DSML｜invoke></｜DSML｜tool_calls>", false, "expected \">\\n\""},
  };
  for (const Case& c : cases) {
    const auto message = parse_completion(c.text, kPromptFormatV4, c.thinking);
    ASSERT_FALSE(message) << c.text;
    EXPECT_EQ(message.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(message.error().message.find(c.message), std::string::npos)
        << message.error().message << "\nwanted " << c.message;
  }
}

// The README of the published pairs says what the assistant turns of pair 1 parse to.
TEST(ParseCompletion, AssistantTurnsOfGoldenPair1) {
  const std::string path = repository_file("../shared/data/encoding_v4/output_1.txt");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  const std::string prompt = read_or_fail(path);
  std::vector<AssistantMessage> turns;
  const std::string header = "<｜Assistant｜><think>";
  for (size_t at = prompt.find(header); at != std::string::npos; at = prompt.find(header, at + 1)) {
    const size_t begin = at + header.size();
    const size_t end = prompt.find(kEosText, begin) + kEosText.size();
    const auto message = parse_completion(prompt.substr(begin, end - begin), kPromptFormatV4, true);
    ASSERT_TRUE(message) << message.error().message;
    turns.push_back(*message);
  }
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0],
            (AssistantMessage{"The user wants to know the weather in Beijing. I should use the get_weather tool.",
                              "",
                              {{"get_weather", R"({"location": "Beijing", "unit": "celsius"})", true}}}));
  EXPECT_EQ(turns[1].reasoning, "Got the weather data. Let me format a nice response.");
  EXPECT_TRUE(turns[1].tool_calls.empty());
}

}  // namespace
}  // namespace onelane
