// `onelane bench step --profile`: the counters of one step's kernels, by Nsight Compute (`ncu`), which runs this
// program again and watches it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace onelane {

// Kernels of one name, in shares of what the device could do; each mean weighted by time.
struct KernelCounters {
  std::string name;
  int calls = 0;
  double us = 0;             // alone, as ncu runs them: nothing overlaps
  double sm_active = 0;      // of the multiprocessors' cycles, those with a warp
  double issue_active = 0;   // of the schedulers' cycles with a warp, those that issued an instruction
  double tensor_active = 0;  // of the multiprocessors' cycles, those of the tensor cores
  double memory_read = 0;    // of the memory's bandwidth, what was read
};

// The counters that are asked for, as ncu calls them.
std::vector<std::string> profile_metrics();
// What `ncu --csv --page raw --print-units base --print-kernel-base function` prints, between lines of the watched
// program: one entry for every kernel name, the dearest first. kCorrupt where there is no table, or a column is missing
// or holds no number; the message quotes it.
Result<std::vector<KernelCounters>> parse_profile(std::string_view text);
std::string profile_table(const std::vector<KernelCounters>& kernels);

// Runs this program under ncu with the arguments it was called with, `--profile` replaced by `--profiled`, and prints
// the table. 0: done; 1: ncu is missing or failed, and stderr says why.
int run_profile();

}  // namespace onelane
