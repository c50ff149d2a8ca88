// Sandbox: runs a short program that a model wrote, in a scratch folder of its own, without network, home, devices or
// anybody else's processes (bubblewrap, Debian package `bubblewrap`).
//
// A program gets a bounded time, 2 GiB of address space and 16 MiB per file; the first MiB of its output is kept.
#pragma once

#include <map>
#include <string>

#include "base/result.h"

namespace onelane {

struct SandboxRun {
  int exit_code = 0;       // 128 + signal where a signal ended it
  bool timed_out = false;  // then the exit code means nothing
  std::string output;      // stdout
  std::string errors;      // stderr
};

// Runs `command` with bash where `files` (plain names to texts) lie. What is written is gone afterwards. Errors, all of
// them the instrument's and none the program's: no bubblewrap here, or it is not allowed to make namespaces
// (kUnsupported), no scratch folder (kIo), a file name with a slash.
Result<SandboxRun> run_in_sandbox(const std::map<std::string, std::string>& files, const std::string& command,
                                  double seconds);

}  // namespace onelane
