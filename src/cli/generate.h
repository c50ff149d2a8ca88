// `onelane generate`: continue a text.
#pragma once

#include <string>

#include "cli/runtime.h"
#include "engine/generate.h"

namespace onelane {

struct GenerateCommand {
  RuntimeOptions runtime;
  std::string prompt;  // -p; exactly one of prompt, file and jsonl
  std::string file;    // --file; "-" is stdin
  std::string jsonl;   // one {"prompt", "max_tokens"?} a line, one JSON result a line
  bool raw = false;    // the prompt as it is, without BOS in front
  bool json = false;
  GenerateOptions options;
};

// Streams the text to stdout, or prints one JSON object per prompt: text, tokens, finish_reason, usage, timings, draft.
int run_generate(const GenerateCommand& command);

}  // namespace onelane
