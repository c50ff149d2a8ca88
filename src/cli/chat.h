// `onelane chat`: a conversation in the terminal.
#pragma once

#include <string>

#include "cli/runtime.h"
#include "engine/generate.h"

namespace onelane {

struct ChatCommand {
  RuntimeOptions runtime;
  std::string system;  // system message; empty: none
  std::string effort;  // reasoning effort as the prompt format takes it; empty: the format's default
  bool thinking = true;
  GenerateOptions options;
};

// Reads a message a line from stdin and streams the answer to stdout, reasoning dimmed when stdout is a terminal.
// /reset forgets the conversation, /exit or the end of input leaves. Returns the exit code.
int run_chat(const ChatCommand& command);

}  // namespace onelane
