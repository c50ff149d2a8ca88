// `onelane workloads`: the frozen prompts of the workload classes (lane/workload.h).
#pragma once

#include <string>

namespace onelane {

// All print to stdout and return the exit code.

// A line per class: share, prompts, their size, what judges the answers.
int list_workloads();
// The chat request of a prompt ("code/07") as JSON, hay and all. An unknown id is an error.
int show_workload(const std::string& id);
// Holds files against the protocol, and every oracle against the reference answer that it must take. 1 if anything is
// off; what could not be run here is said and is not an error.
int verify_workloads();

}  // namespace onelane
