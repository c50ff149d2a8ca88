#include "text/prompt_encoder.h"

#include <filesystem>

#include "text_fixture.h"

namespace onelane {
namespace {

std::string encode(std::string_view json, const PromptFormat& format) {
  const auto prompt = encode_prompt(json, format);
  EXPECT_TRUE(prompt) << prompt.error().message;
  return prompt ? prompt->text : "";
}

// The pairs published with the V4 checkpoints, byte for byte.
TEST(PromptEncoder, GoldenPairs) {
  const std::string folder = repository_file("../shared/data/encoding_v4");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent: the published pairs are not compared";
  for (const int pair : {1, 2, 3, 4}) {
    const std::string input = read_or_fail(folder + "/input_" + std::to_string(pair) + ".json");
    const std::string output = read_or_fail(folder + "/output_" + std::to_string(pair) + ".txt");
    auto conversation = parse_conversation(input, kPromptFormatV4);
    ASSERT_TRUE(conversation) << conversation.error().message;
    conversation->thinking = pair != 4;
    const auto prompt = encode_prompt(*conversation, kPromptFormatV4);
    ASSERT_TRUE(prompt);
    EXPECT_EQ(prompt->text, output) << pair;
  }
}

// tests/cases/text/prompts.json: requests and their prompts, named after what they cover.
TEST(PromptEncoder, Cases) {
  const auto cases = nlohmann::ordered_json::parse(read_or_fail(repository_file("tests/cases/text/prompts.json")));
  ASSERT_FALSE(cases.empty());
  for (const auto& test : cases) {
    const PromptFormat* format = find_prompt_format(test["format"].get<std::string>());
    ASSERT_NE(format, nullptr);
    EXPECT_EQ(encode(test["request"].dump(), *format), test["prompt"].get<std::string>()) << test["name"];
  }
}

TEST(PromptEncoder, SaysWhereTheCompletionStarts) {
  const auto starts = [](const char* json) { return encode_prompt(json, kPromptFormatV41)->starts_in_thinking; };
  EXPECT_TRUE(starts(R"([{"role": "user", "content": "x"}])"));
  EXPECT_FALSE(starts(R"({"messages": [{"role": "user", "content": "x"}], "thinking_mode": "chat"})"));
  EXPECT_FALSE(
      starts(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "say <think>", "wo_eos": true}])"));
  EXPECT_FALSE(starts(R"([{"role": "user", "content": "x", "task": "action"}])"));
  EXPECT_FALSE(starts(R"([{"role": "system", "content": "<think>"}])"));
}

TEST(PromptEncoder, ChatWithoutSystemIsTheSameInBothGenerations) {
  const char* json = R"({"messages": [{"role": "user", "content": "Hello"}], "thinking_mode": "chat"})";
  EXPECT_EQ(encode(json, kPromptFormatV4), encode(json, kPromptFormatV41));
}

// Trap 44 (spec/model.md 10): key order and separators of a schema are part of the prompt.
TEST(PromptEncoder, SchemasKeepOrderAndNumbers) {
  const std::string prompt = encode(
      R"({"messages":[{"role":"system","content":"s"}],"tools":[{"type":"function","function":{"z":1e5,"a":[1,2.50],"name":"é\u4f60"}}]})",
      kPromptFormatV4);
  EXPECT_NE(prompt.find(R"({"z": 100000.0, "a": [1, 2.5], "name": "é你"})"), std::string::npos) << prompt;
}

TEST(PromptEncoder, BadEffortIsRefusedOnlyWhereItMatters) {
  EXPECT_FALSE(
      encode_prompt(R"({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": 0})", kPromptFormatV41));
  EXPECT_TRUE(encode_prompt(
      R"({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": 0, "thinking_mode": "chat"})",
      kPromptFormatV41));
}

}  // namespace
}  // namespace onelane
