// `onelane serve`: the HTTP server.
#pragma once

#include <string>

#include "cli/serve_options.h"

namespace onelane {

struct ServeCommand {
  OptionTexts flags;   // what the command line gave, by option name
  std::string config;  // --config
  bool check = false;  // --check: read everything, plan the memory, load the model, run the self-test, exit
  std::string version;
};

// Serves until SIGINT or SIGTERM, then lets running answers end and returns 0; a second signal ends the process at once
// (128 + signal). Returns 1 with a message when it cannot start.
int run_serve(const ServeCommand& command);

}  // namespace onelane
