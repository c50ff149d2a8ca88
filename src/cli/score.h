// `onelane score`: how well the model predicts a text.
#pragma once

#include <string>

#include "cli/runtime.h"

namespace onelane {

struct ScoreCommand {
  RuntimeOptions runtime;
  std::string file;
  // Tokens per window, BOS included; the text is cut into windows that do not see each other. 0: the model's limit.
  int window = 0;
  bool json = false;
  std::string routing_out;  // where to write how often each expert was picked (routing_trace.h); empty: nowhere
};

// Prints tokens, bytes, mean log-probability and bits per byte; as JSON also every token's natural log-probability.
int run_score(const ScoreCommand& command);

}  // namespace onelane
