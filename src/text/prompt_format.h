// PromptFormat: the fixed strings of one generation's prompt, as data.
//
// DeepSeek ships no template but a Python encoder per generation; the two grammars differ in tags, in the system token
// and in how effort is written (spec/model.md 8.3, 8.4). What is in this file is what the models were trained on, so no
// byte of it is ours to change; prompt_encoder.cc holds the rules that both share.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace onelane {

// Strings that both generations share. The bar is U+FF5C, the block U+2581.
inline constexpr std::string_view kBosText = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEosText = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUserText = "<｜User｜>";
inline constexpr std::string_view kAssistantText = "<｜Assistant｜>";
inline constexpr std::string_view kReminderText = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkText = "<think>";
inline constexpr std::string_view kThinkEndText = "</think>";
inline constexpr std::string_view kDsmlText = "｜DSML｜";
inline constexpr std::string_view kToolResultText = "<tool_result>";
inline constexpr std::string_view kToolResultEndText = "</tool_result>";
inline constexpr std::string_view kResponseFormatText =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

struct EffortLevel {
  std::string_view name;
  int number;             // on the 1-100 scale of V4.1; V4 takes numbers too and uses the level they reach
  std::string_view text;  // V4: the whole text. V4.1 writes the number instead (effort_before, effort_after)
};

struct PromptFormat {
  std::string_view name;               // "v4" or "v41"
  std::string_view system_token;       // in front of system text; empty: there is none
  std::string_view image_placeholder;  // empty: images are not part of the format
  std::string_view calls_tag;          // what follows ｜DSML｜ in a tag, V4.1's leading space included
  std::string_view invoke_tag;
  std::string_view parameter_tag;
  bool developer_role;                 // V4: an internal role; otherwise developer means system, as in OpenAI requests
  bool later_system_turns;             // a system message after the first is a turn of its own, answered like a user's
  std::array<EffortLevel, 3> efforts;  // low, high, max
  size_t default_effort;               // index into efforts
  std::string_view effort_before;      // around the number; empty: efforts[i].text is used
  std::string_view effort_after;
};

extern const PromptFormat kPromptFormatV4;   // V4-Flash-0731; its "max" is this family's longest text
extern const PromptFormat kPromptFormatV41;  // V4.1-Flash, as released

// By "v4", "v41" or by config.json's model_type ("deepseek_v4", "deepseek_v41"); null for anything else.
const PromptFormat* find_prompt_format(std::string_view name);

// The token text of an internal task ("action", "query", ...), or nothing.
std::optional<std::string_view> task_text(std::string_view task);

// The "## Tools" block for these JSON schemas of function objects, trailing newline included.
std::string tools_text(const PromptFormat& format, std::span<const std::string> schemas);

// What stands before the first message in thinking mode. `effort`: a number 1-100, or a name; names that the format
// does not have go to their neighbour ("minimal" to low, "xhigh" to max) or to the default. Empty: the default. Error:
// a number outside 1-100.
Result<std::string> effort_text(const PromptFormat& format, std::string_view effort);

}  // namespace onelane
