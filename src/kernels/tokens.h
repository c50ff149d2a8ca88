// What happens to the tokens of a run, for host and device alike: constexpr, so that kernels may call it.
#pragma once

#include "kernels/kernels.h"

namespace onelane {

// The token that stands `at` behind the first of `run`; before it, down to -kHistory, of StepRows::before.
constexpr int32_t token_of_run(const StepRows& rows, int run, int at) {
  return at >= 0 ? rows.token[rows.runs[run].first_row + at] : rows.before[(run + 1) * kHistory + at];
}

// The verdict of `run` (VerifyArgs).
constexpr void give_verdict(const StepRows& rows, const VerifyArgs& args, int run) {
  const RowRun& range = rows.runs[run];
  const int32_t* best = args.best + range.first_row;
  int decided = 1;
  while (decided < range.count && token_of_run(rows, run, decided) == best[decided - 1]) ++decided;
  int32_t* verdict = args.verdicts + run * kVerdict;
  verdict[0] = decided;
  verdict[1] = best[decided - 1];
  for (int i = 0; i < kHistory; ++i) verdict[2 + i] = token_of_run(rows, run, decided - kHistory + i);
}

// What Engram's map makes of the token that stands `at` behind the first of `run` (AddressArgs).
constexpr int64_t compressed_token(const StepRows& rows, const AddressArgs& args, int run, int at) {
  const int32_t token = token_of_run(rows, run, at);
  return args.token_map[token >= 0 && token < args.map_size ? token : args.pad];
}

}  // namespace onelane
