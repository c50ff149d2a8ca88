// Conversation: the messages of a request, read from JSON and checked, ready for the prompt encoder.
//
// Accepts what OpenAI clients send and what the published golden inputs look like; tolerates the known ways in which
// history comes back damaged (no reasoning, arguments encoded twice), and refuses the rest by message and field.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/prompt_format.h"

namespace onelane {

enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool, kReminder };

struct ContentPart {
  std::string text;  // images are already their placeholder, unknown kinds "[Unsupported kind]"
  bool tool_result = false;
  std::string tool_call_id;
};

struct CallArgument {
  std::string name;
  std::string value;  // the text of a string, the JSON (as Python prints it) of anything else
  bool is_string = true;
};

struct CallRecord {
  std::string id;
  std::string name;
  std::vector<CallArgument> arguments;
};

struct Message {
  Role role = Role::kUser;
  std::vector<ContentPart> parts;  // one text part, except for user messages; a tool message is one tool result
  std::string reasoning;           // assistant
  std::vector<CallRecord> calls;   // assistant
  std::vector<std::string> tools;  // schemas: the JSON of each function object
  std::string response_format;     // JSON of the schema; empty: none
  std::string task;                // an internal task; empty: none
  bool unfinished = false;         // assistant: no EOS behind it, the completion continues this text
};

struct Conversation {
  std::vector<Message> messages;  // not empty
  bool thinking = true;
  std::string effort;  // as the client wrote it, see effort_text
  bool drop_thinking = true;
  int images = 0;
};

// Reads a request: an object with `messages`, or the messages array alone.
// Of an object also: `tools` and a json_schema `response_format` (both go to the first message if it is a system
// message, otherwise to a new, empty one in front), `thinking_mode` ("thinking", "chat"; or
// `chat_template_kwargs.thinking`, or `thinking.type`), `reasoning_effort` (top level or in chat_template_kwargs;
// "none" means chat unless the mode is given), `drop_thinking`. Other keys are ignored. Errors name the message and the
// field.
Result<Conversation> parse_conversation(std::string_view json, const PromptFormat& format);

}  // namespace onelane
