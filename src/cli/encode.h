// `onelane encode`: a chat request to its prompt text.
#pragma once

#include <string>

namespace onelane {

struct EncodeCommand {
  std::string dir;        // -m: the generation comes from its config.json
  std::string file;       // --file: the request, JSON; "-" or empty is stdin
  std::string format;     // --format: v4 or v41, instead of a model directory
  bool thinking = false;  // --thinking / --chat: over the request's own mode
  bool chat = false;
};

// Prints the prompt byte for byte, without a line feed at the end. Returns the exit code.
int run_encode(const EncodeCommand& command);

}  // namespace onelane
