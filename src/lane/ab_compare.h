// What a comparison shows: blocks in, effects with intervals and a verdict out. Pure: no clock, no files.
//
// Effects are differences of ln(metric), candidate minus control, with the sign turned where less is better, so that
// positive is always an improvement. One quad gives one value; the interval is Student's t over quads, never over
// requests. tok/s = streams x step rate x (1 + accepted per step), so both factors are compared beside it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lane/ab_plan.h"
#include "lane/stats.h"

namespace onelane {

struct AbBlock {
  ArmRole role = ArmRole::kControl;
  Receipt receipt;                       // without cells when there was none
  std::vector<std::string> faults = {};  // what the runner saw go wrong: each voids the block
};

// All estimates are in ln units; percent() of them for people.
struct AbEffect {
  std::string name;                           // the cell, the class, or "all"
  std::vector<double> quads;                  // one improvement a quad
  Estimate effect;                            // with one quad: the point alone
  double worse_p = 1;                         // one-sided, "not worse"; Holm-adjusted over cells
  std::optional<Estimate> step_rate, accept;  // its factors: ln steps_s and ln(1 + accepted_per_step)
};

// A percentile of raw latencies, candidate over control: positive is slower.
struct AbTail {
  std::string name;  // "prose/C1/ctx0 itl_ms p99"
  Estimate ratio;
  size_t requests = 0;  // of the arm that has fewer
};

struct AbComparison {
  Verdict verdict = Verdict::kVoid;
  std::vector<std::string> reasons;       // of the verdict
  std::vector<std::string> void_reasons;  // rules that were broken, quad by quad, also when enough quads are left
  std::vector<std::string> caveats;       // what the numbers do not cover
  size_t quads_used = 0;
  bool inconclusive = false;  // the interval includes 0: an extension may be run
  AbEffect all;               // Hodges-Lehmann over cells, per quad
  std::vector<AbEffect> cells, classes;
  std::vector<AbTail> tails;
  std::optional<double> drift_percent;  // of the controls, first block to last
};

// `blocks` are in the plan's order and may end early, after a whole quad.
AbComparison compare_arms(const AbPlan& plan, std::span<const AbBlock> blocks);

// Mean of ln(metric) of the candidates of one quad or bracket minus that of its controls.
double group_effect(std::span<const double> log_metric, std::span<const ArmRole> roles);

// A cell's figure by name: "tok_s", "steps_s", "accepted_per_step", "max_gap_ms", "ttft_ms.p50" and so on, or one of
// its measures; nothing when it is unknown.
std::optional<double> cell_metric(const ReceiptCell& cell, std::string_view metric);

// Times and gaps: names that end in _ms, _us, _s (but for rates: tok_s, steps_s, *_per_s), or have such a part before a
// dot.
bool less_is_better(std::string_view metric);

// 100 (e^x - 1)
double percent(double log_ratio);

}  // namespace onelane
