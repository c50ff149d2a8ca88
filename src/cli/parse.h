// `onelane parse`: completion text to a JSON message.
#pragma once

#include <string>

namespace onelane {

struct ParseCommand {
  std::string dir;      // -m: the generation comes from its config.json
  std::string file;     // --file: the completion; "-" or empty is stdin
  std::string format;   // --format: v4 or v41, instead of a model directory
  bool chat = false;    // --chat: the completion does not start inside <think>
  bool strict = false;  // --strict: refuse what is malformed instead of repairing it
};

// Prints {"role", "reasoning_content", "content", "tool_calls"} on one line. Returns the exit code.
int run_parse(const ParseCommand& command);

}  // namespace onelane
