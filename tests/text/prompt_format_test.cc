#include "text/prompt_format.h"

#include "text_fixture.h"

namespace onelane {
namespace {

// Digests: spec/model.md 8.3.
void expect_digest(std::string_view text, size_t bytes, std::string_view head, std::string_view tail) {
  EXPECT_EQ(text.size(), bytes);
  const std::string digest = sha256(text);
  EXPECT_TRUE(digest.starts_with(head) && digest.ends_with(tail)) << digest;
}

TEST(PromptFormat, Sha256IsRight) {
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(PromptFormat, ToolsTextHasThePublishedDigests) {
  expect_digest(tools_text(kPromptFormatV4, {}), 989, "c7d31593", "dcd904");
  expect_digest(tools_text(kPromptFormatV41, {}), 983, "3c2b43c0", "c477ac");
}

TEST(PromptFormat, EffortTextsHaveThePublishedDigests) {
  expect_digest(*effort_text(kPromptFormatV4, "high"), 476, "f7a24f3b", "7350f7");
  expect_digest(*effort_text(kPromptFormatV4, "max"), 528, "53fb31b8", "5d2c");
  EXPECT_EQ(*effort_text(kPromptFormatV4, "low"), "");
}

TEST(PromptFormat, EffortOfV41IsANumber) {
  const auto line = [](int n) {
    return "Reasoning Effort: " + std::to_string(n) +
           " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
  };
  const std::pair<const char*, int> cases[] = {
      {"", 75},       {"low", 50},     {"high", 75},   {"max", 100}, {"1", 1},         {"100", 100}, {"42", 42},
      {"medium", 75}, {"minimal", 50}, {"xhigh", 100}, {"none", 50}, {"whatever", 75}, {"7 ", 75}};
  for (const auto& [effort, number] : cases) EXPECT_EQ(*effort_text(kPromptFormatV41, effort), line(number)) << effort;
}

TEST(PromptFormat, EffortOfV4TakesNumbersAndUnknownNames) {
  const auto text = [](const char* effort) { return *effort_text(kPromptFormatV4, effort); };
  for (const char* effort : {"", "low", "medium", "minimal", "none", "unheard-of", "1", "50"})
    EXPECT_EQ(text(effort), "") << effort;
  for (const char* effort : {"51", "75"}) EXPECT_EQ(text(effort), text("high")) << effort;
  for (const char* effort : {"76", "100", "xhigh"}) EXPECT_EQ(text(effort), text("max")) << effort;
}

TEST(PromptFormat, EffortNumbersOutsideAreRefused) {
  for (const char* effort : {"0", "101", "-5", "99999999999999"}) {
    const auto text = effort_text(kPromptFormatV41, effort);
    ASSERT_FALSE(text) << effort;
    EXPECT_NE(text.error().message.find("reasoning_effort"), std::string::npos);
  }
}

TEST(PromptFormat, FoundByNameAndModelType) {
  EXPECT_EQ(find_prompt_format("v4"), &kPromptFormatV4);
  EXPECT_EQ(find_prompt_format("deepseek_v41"), &kPromptFormatV41);
  EXPECT_EQ(find_prompt_format("llama"), nullptr);
}

}  // namespace
}  // namespace onelane
