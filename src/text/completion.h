// What a model answered: reasoning, content and tool calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/prompt_format.h"

namespace onelane {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object, unless the call was cut off (complete is false)
  bool complete = false;
  bool operator==(const ToolCall&) const = default;
};

struct AssistantMessage {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;
  bool operator==(const AssistantMessage&) const = default;
};

// {"role": "assistant", "reasoning_content", "content", "tool_calls": [{"type": "function", "function": {"name",
// "arguments"}}]}, written as Python's json.dumps would.
std::string message_json(const AssistantMessage& message);

// Reads one complete completion (what follows the header) exactly as the published parsers do; EOS may be absent.
// `thinking`: the completion starts inside <think>. Errors name the byte offset and what was expected there: no
// </think>, a malformed or unclosed tag, a name that runs past its tag, a repeated parameter, a parameter with
// string="false" that is not JSON, a control token inside text, text after the calls or after EOS. For output that must
// be served whatever it is, use CompletionParser.
Result<AssistantMessage> parse_completion(std::string_view text, const PromptFormat& format, bool thinking);

}  // namespace onelane
