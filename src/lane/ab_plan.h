// A comparison, written down before its data: which question is asked, of which arms, in which order, against which
// bars, and what voids it. The plan is a file (`lane-ab-plan/1`); its SHA-256 goes into the receipt of the comparison.
//
// The unit is the block: one boot of an arm with all its cells, one receipt. Blocks come in quads, CTL CAND CAND CTL or
// CAND CTL CTL CAND, drawn at random: in either a linear drift of the machine cancels exactly.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "lane/receipt.h"

namespace onelane {

inline constexpr std::string_view kAbPlanSchema = "lane-ab-plan/1";

enum class AbQuestion {
  kBroken,          // CTL CAND CTL: is it worse by more than 5 %? No error estimate, so nothing else is claimed
  kPromotion,       // is it better by the bar, and no class worse?
  kNonInferiority,  // is it at worst 1 % worse?
  kMicro,           // is an effect below 1 % real? Needs an inert leg and a null run
  kNull,            // both arms the same: what the instrument itself shows
};

struct AbArm {
  std::string name;
  // A shell command that leaves one sealed receipt at {receipt} ({role}, {block}, {order} and {onelane}, this program,
  // are filled in too), or the http:// URL of a server, which is measured by `onelane bench serve`.
  std::string command;
};

struct AbBars {
  double broken_percent = -5;         // kBroken: not below
  double promotion_percent = 1.5;     // kPromotion: point estimate at least
  double worst_class_percent = -1.5;  // kPromotion: no class's point estimate below
  double noninferior_percent = -1;    // kNonInferiority: lower bound above
  double tail_percent = 5;            // upper bound of p95 and p99 ratios of latencies, with enough requests
  int64_t tail_requests = 2000;       // per arm: with fewer the tails are shown but bind nothing
};

// What voids a block (and its quad), or the whole comparison.
struct AbVoidRules {
  double controls_differ_percent = 1;  // the two controls of a quad or bracket
  double client_lag_ms_p99 = 5;        // the client's own event loop
  double least_token_share = 0.98;     // last_token_s / window_s: a stall at the end hides from tok_s
  double start_temperature_c = 5;      // spread of temperatures at the start of blocks
  double drift_percent = 3;            // of the controls, first block to last
  double accept_tolerance = 0.02;      // of the control's accepted_per_step around its registered value
};

struct AbPlan {
  std::string title;
  AbQuestion question = AbQuestion::kPromotion;
  AbArm control, candidate;
  std::string metric = "tok_s";           // a field of a cell ("itl_ms.p50") or one of its measures
  int64_t quads = 0;                      // 0: the least that the question allows
  int64_t extension_quads = 0;            // in all, when the first ones are inconclusive; both looks are then at 97.5 %
  int64_t seed = 1;                       // of the order
  std::vector<ArmRole> order;             // of all blocks, the extension included
  std::vector<std::string> inert_cells;   // the change cannot touch them: an effect there voids
  std::vector<std::string> may_differ;    // between arms: "weights", "tokenizer", "template", "sampling"
  std::vector<std::string> may_be_worse;  // classes that are declared to lose
  std::map<std::string, double> registered_accept;  // cell -> accepted_per_step of the control
  std::optional<double> null_percent;               // kMicro: the absolute mean effect of the null run
  std::optional<double> null_quad_sd_percent;       // of its quads: at most 0.4 % allows three of them
  std::optional<std::string> null_run;              // its run_id
  int64_t block_timeout_s = 3600;
  AbBars bars;
  AbVoidRules voids;
};

// The plan with defaults filled in and the order drawn. Errors name the field that does not fit the question.
Result<AbPlan> complete_plan(AbPlan plan);

// 0.95, or 0.975 when an extension is declared: two looks at 2.5 % each.
double plan_level(const AbPlan& plan);

// Sound quads (or brackets) without which nothing is concluded: spec/operations.md 4.2, column "minimum".
int64_t least_quads(const AbPlan& plan);

// Blocks of a quad, or of the bracket of kBroken.
size_t blocks_per_group(const AbPlan& plan);

std::string plan_json(const AbPlan& plan);
// Strict; errors name the field.
Result<AbPlan> parse_plan(std::string_view json);

std::string_view question_name(AbQuestion question);

}  // namespace onelane
