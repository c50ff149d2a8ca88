// `onelane bench serve`: load on a chat server, measured.
#pragma once

#include <string>

#include "lane/bench.h"

namespace onelane {

struct BenchCommand {
  BenchOptions options;
  bool lib = false;
  // Lists as they were typed: "0,16k,32k"; empty: the mode's defaults.
  std::string concurrency, contexts, classes, prefill, mixed;
  std::string json, receipt, db;  // where to; empty: nowhere
};

// Prints tables to stdout and progress to stderr. 0: everything passed; 1: something did not, or it could not be
// measured; 2: bad flags.
int run_bench_serve(const BenchCommand& command);

}  // namespace onelane
