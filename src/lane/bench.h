// The load bench of a chat server: `onelane bench serve`. A plan of phases and cells, run one after the other, and a
// report that keeps everything that was seen: figures, flags, failures, what was skipped and why.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "lane/bench_phases.h"
#include "lane/receipt.h"

namespace onelane {

struct BenchReport {
  BenchOptions options;
  ServerInfo server;
  std::string started_utc;  // "2026-11-30T10:15:00Z"
  double characters_per_token = 0;
  std::string prompts_sha256;
  // Of the server's machine, where it is this one; of another nothing is known.
  ReceiptMachine machine;
  ReceiptEnvironment environment;
  bool original_texts = false;  // lib: llm-inference-bench's own texts, by their hashes

  std::vector<PrefillResult> prefill;
  std::vector<CellResult> cells;
  std::vector<BurstResult> bursts;
  std::vector<MixedResult> mixed;
  std::vector<std::string> skipped;  // phases that do not fit the model's context, a sentence each
  std::string interrupted;           // why the run ended early; empty: it did not
};

struct BenchHooks {
  BenchObserver progress;                             // a few times a second
  std::function<void(const std::string& line)> said;  // what is known now, one line
  const std::atomic<bool>* interrupt = nullptr;       // true: no further phase begins
};

// Errors: bad options, a server that is not there or stops being there before anything was measured. Later failures are
// in the report.
Result<BenchReport> run_bench(const BenchOptions& options, const BenchHooks& hooks);

// bench_report.cc ---------------------------------------------------------------------------------------------------

// Tables for people. Empty set: a cell whose streams did not all run.
std::string bench_tables(const BenchReport& report);

// One JSON object; in lib mode with the field names of llm-inference-bench (spec/operations.md 1.9).
std::string bench_json(const BenchReport& report);

// PASS: every cell was measured or skipped, without a flag. VOID: the instrument failed (flag_voids). Else FAIL.
Receipt bench_receipt(const BenchReport& report, const std::string& command);

}  // namespace onelane
