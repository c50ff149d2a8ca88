// Running a command of the operator's (an arm, a gate of a card) and waiting for it.
#pragma once

#include <map>
#include <string>

#include "base/result.h"

namespace onelane {

struct CommandEnd {
  int exit_code = 0;       // 128 + signal where a signal ended it
  bool timed_out = false;  // then it and its children were told to end, and killed ten seconds later
};

// Runs `command` with /bin/sh, stdin empty, stdout and stderr into the file `log`. SIGINT and SIGTERM to this process
// end the command too and give an error. Errors name the log file or the command.
Result<CommandEnd> run_command(const std::string& command, const std::string& log, double timeout_s);

// `text` with every {name} of `values` replaced by its value, quoted for the shell. Other braces stay.
std::string fill_command(const std::string& text, const std::map<std::string, std::string>& values);

// One word for the shell, whatever is in it.
std::string shell_quoted(const std::string& text);

// The last line of a log that is not blank, cut to 200 bytes, for messages; empty when there is none.
std::string last_line(const std::string& log);

}  // namespace onelane
