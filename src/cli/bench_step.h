// `onelane bench step`: what a step of the model costs, stage by stage, against the copy bandwidth of the same device.
#pragma once

#include <string>

#include "cli/runtime.h"
#include "model/synthetic.h"

namespace onelane {

struct BenchStepCommand {
  RuntimeOptions runtime;  // dir: the model, unless `synthetic` names a family
  std::string synthetic;   // "v4" or "v41": synthetic.family; empty: a model directory
  SyntheticOptions synthetic_options;
  // Lists as they were typed: "1,6", "2K,32K".
  std::string rows = "6", contexts = "2K";
  std::string prefill;  // tokens of a prompt; empty: none
  int chunk = 512;      // rows of a step of it
  int steps = 20;       // a repeat
  int repeats = 5;
  double accept = 0;  // tokens that a step gives a sequence; 0: no tokens/s
  uint64_t seed = 1;
  bool profile = false;   // the counters of a step instead (step_profile.h)
  bool profiled = false;  // a profiler runs this, and sees one step of the first cell
  std::string json;       // where to; empty: nowhere; "-": stdout, instead of tables
};

// Prints tables to stdout and progress to stderr. 0: done; 1: it could not be measured; 2: bad flags.
int run_bench_step(const BenchStepCommand& command);

}  // namespace onelane
