// Registering subcommands. The only file that includes CLI11; main.cc and measuring.cc include this one.
#pragma once

#include <CLI/CLI.hpp>

namespace onelane {

// `run` of a subcommand is called after a successful parse and gives the exit code.
struct Subcommands {
  CLI::App& app;
  int& exit_code;

  template <class Run>
  CLI::App& add(const char* name, const char* description, Run run) {
    CLI::App* sub = app.add_subcommand(name, description);
    sub->callback([this_code = &exit_code, run] { *this_code = run(); });
    return *sub;
  }

  // A subcommand that only holds others: `onelane receipts list`.
  Subcommands group(const char* name, const char* description) {
    CLI::App* sub = app.add_subcommand(name, description);
    sub->require_subcommand(1);
    return {*sub, exit_code};
  }
};

}  // namespace onelane
