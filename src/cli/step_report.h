// What `onelane bench step` found: one StepResult for every cell, and how it is shown.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/step_meter.h"

namespace onelane {

// A step of `rows` rows at `context`, or a prompt of `rows` tokens (prefill_chunk > 0).
struct StepResult {
  int rows = 0;
  int context = 0;
  int sequences = 1;
  int prefill_chunk = 0;
  std::vector<double> whole_ms;    // a step's wall time by repeat, nothing watched
  int64_t launches = 0;            // kernels of a step
  std::vector<StageEntry> parts;   // of a step, each median over the steps
  std::vector<StageEntry> stages;  // the same, without overlap, with costs
  std::optional<double> tokens_per_s;

  double median_ms() const;
  double bytes() const;
  double flops() const;
};

struct StepReport {
  std::string command, build, model, backend, device;
  int64_t device_bytes = 0;
  int layers = 0;
  std::optional<double> copy_gb_s;  // read + written
  std::optional<double> clock_mhz_p5, clock_mhz_p50;
  std::vector<std::string> throttle;
  double accept = 0;
  std::vector<StepResult> results;
  std::vector<std::string> skipped;  // cells that did not fit, and why
};

// Of every part and stage the median over `steps` (each a StepMeter::take() of one step), in the first's order.
std::vector<StageEntry> median_entries(const std::vector<std::vector<StageEntry>>& steps);
// Sets in `entries` the cost of each stage to its mean over `counted`, steps that were watched for costs.
void add_costs(std::vector<StageEntry>& entries, const std::vector<std::vector<StageEntry>>& counted);

std::string step_tables(const StepReport& report);
std::string step_json(const StepReport& report);

}  // namespace onelane
