// `onelane ab`: two arms compared by a plan that was written first.
#pragma once

#include <string>
#include <vector>

#include "lane/ab_plan.h"

namespace onelane {

struct AbCommand {
  AbPlan plan;  // plan: its options
  std::string question = "promotion";
  std::vector<std::string> registered;  // plan: "cell=accepted per step" of the control
  std::string null_folder;              // plan: the folder of a null run, for its spread and mean
  double sd_percent = 0;                // plan: the spread of quads, for the power that is printed
  std::string file;                     // plan: where it goes; run: the plan
  std::string folder;                   // run and report: the folder of the run
  std::string db;                       // run: receipts go in here too
  std::string html, markdown;           // report
};

// Each gives the exit code. `run` gives 0 for PASS, 1 for anything else.
int run_ab_plan(const AbCommand& command);
int run_ab_run(const AbCommand& command);
int run_ab_report(const AbCommand& command);

}  // namespace onelane
