#include "text/prompt_format.h"

#include <charconv>
#include <utility>

#include "base/format.h"

namespace onelane {
namespace {

constexpr std::string_view kToolsTemplate = R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{calls}>" block like the following:

<{calls}>
<{invoke} name="$TOOL_NAME">
<{parameter} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{parameter}>
...
</{invoke}>
<{invoke} name="$TOOL_NAME2">
...
</{invoke}>
</{calls}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{schemas}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
)";

constexpr std::string_view kV4HighEffort =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

constexpr std::string_view kV4MaxEffort =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n";

constexpr std::pair<std::string_view, std::string_view> kTasks[] = {
    {"action", "<｜action｜>"}, {"query", "<｜query｜>"}, {"authority", "<｜authority｜>"},
    {"domain", "<｜domain｜>"}, {"title", "<｜title｜>"}, {"read_url", "<｜read_url｜>"},
};

}  // namespace

const PromptFormat kPromptFormatV4 = {
    .name = "v4",
    .system_token = "",
    .image_placeholder = "",
    .calls_tag = "tool_calls",
    .invoke_tag = "invoke",
    .parameter_tag = "parameter",
    .developer_role = true,
    .later_system_turns = false,
    .efforts = {{{"low", 50, ""}, {"high", 75, kV4HighEffort}, {"max", 100, kV4MaxEffort}}},
    .default_effort = 0,
    .effort_before = "",
    .effort_after = "",
};

const PromptFormat kPromptFormatV41 = {
    .name = "v41",
    .system_token = "<｜System｜>",
    .image_placeholder = "<｜deepseek_image｜>",
    .calls_tag = " calls",
    .invoke_tag = " invoke",
    .parameter_tag = " parameter",
    .developer_role = false,
    .later_system_turns = true,
    .efforts = {{{"low", 50, ""}, {"high", 75, ""}, {"max", 100, ""}}},
    .default_effort = 1,
    .effort_before = "Reasoning Effort: ",
    .effort_after = " (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
};

const PromptFormat* find_prompt_format(std::string_view name) {
  if (name == "v4" || name == "deepseek_v4") return &kPromptFormatV4;
  if (name == "v41" || name == "deepseek_v41") return &kPromptFormatV41;
  return nullptr;
}

std::optional<std::string_view> task_text(std::string_view task) {
  for (const auto& [name, text] : kTasks) {
    if (name == task) return text;
  }
  return std::nullopt;
}

std::string tools_text(const PromptFormat& format, std::span<const std::string> schemas) {
  const auto tag = [](std::string_view name) { return std::string(kDsmlText) + std::string(name); };
  return fmt::format(kToolsTemplate, fmt::arg("calls", tag(format.calls_tag)),
                     fmt::arg("invoke", tag(format.invoke_tag)), fmt::arg("parameter", tag(format.parameter_tag)),
                     fmt::arg("schemas", fmt::join(schemas, "\n")));
}

Result<std::string> effort_text(const PromptFormat& format, std::string_view effort) {
  const auto& levels = format.efforts;
  const EffortLevel* level = &levels[format.default_effort];
  int number = level->number;
  const auto parsed = std::from_chars(effort.data(), effort.data() + effort.size(), number);
  if (!effort.empty() && parsed.ptr == effort.data() + effort.size()) {
    if (parsed.ec != std::errc{} || number < 1 || number > 100) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("reasoning_effort: {} is outside 1..100 (or use low, high, max)", effort)};
    }
    level = &levels.back();
    while (level != levels.data() && (level - 1)->number >= number) --level;
  } else {
    if (effort == "minimal" || effort == "none") level = &levels.front();
    if (effort == "xhigh") level = &levels.back();
    for (const EffortLevel& known : levels) {
      if (known.name == effort) level = &known;
    }
    number = level->number;
  }
  if (format.effort_before.empty()) return std::string(level->text);
  return fmt::format("{}{}{}", format.effort_before, number, format.effort_after);
}

}  // namespace onelane
