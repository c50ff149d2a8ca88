// The receipt of a comparison.
#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "lane/ab_run.h"
#include "lane/receipt_report.h"
#include "lane/sha256.h"

namespace onelane {
namespace {

ReceiptCell effect_cell(const AbEffect& effect, const std::string& id) {
  ReceiptCell cell;
  cell.id = id;
  cell.workload = effect.name.substr(0, effect.name.find('/'));
  cell.measures[kAbEffect] = percent(effect.effect.point);
  if (effect.quads.size() >= 2) {
    cell.measures[kAbEffectLow] = percent(effect.effect.low);
    cell.measures[kAbEffectHigh] = percent(effect.effect.high);
    cell.measures[kAbWorseP] = effect.worse_p;
  }
  if (effect.step_rate) cell.measures[kAbSteps] = percent(effect.step_rate->point);
  if (effect.accept) cell.measures[kAbAccept] = percent(effect.accept->point);
  for (const double quad : effect.quads) cell.samples[kAbQuads].push_back(percent(quad));
  return cell;
}

ReceiptCell blocks_cell(const AbPlan& plan, const std::vector<AbBlock>& blocks) {
  ReceiptCell cell;
  cell.id = kAbBlocks;
  cell.workload = plan.metric;
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::vector<double> logs;
    for (const ReceiptCell& measured : blocks[i].receipt.cells) {
      const auto value = cell_metric(measured, plan.metric);
      if (value && *value > 0) logs.push_back(std::log(*value));
    }
    if (logs.empty()) continue;
    cell.samples["order"].push_back(static_cast<double>(i + 1));
    cell.samples["candidate"].push_back(blocks[i].role == ArmRole::kCandidate ? 1 : 0);
    cell.samples["metric"].push_back(std::exp(hodges_lehmann(logs)));
  }
  return cell;
}

ReceiptGate bar_gate(const AbPlan& plan, const AbComparison& comparison) {
  ReceiptGate gate;
  gate.id = format("ab/{}", question_name(plan.question));
  gate.verdict = comparison.verdict;
  gate.reasons = comparison.reasons;
  gate.range =
      format("{} sound {} of {}, {} cells", comparison.quads_used, blocks_per_group(plan) == 4 ? "quads" : "brackets",
             plan.order.size() / blocks_per_group(plan), comparison.cells.size());
  if (!comparison.cells.empty()) gate.observed[kAbEffect] = percent(comparison.all.effect.point);
  if (comparison.drift_percent) gate.observed["drift_percent"] = *comparison.drift_percent;
  if (comparison.all.quads.size() >= 2) {
    gate.observed["quad_sd_percent"] = 100 * standard_deviation(comparison.all.quads);
  }
  for (const AbTail& tail : comparison.tails) {
    gate.observed[tail.name + " slower_high_percent"] = percent(tail.ratio.high);
  }
  switch (plan.question) {
    case AbQuestion::kPromotion:
      gate.bound[kAbEffect] = plan.bars.promotion_percent;
      break;
    case AbQuestion::kNonInferiority:
      gate.bound[kAbEffect] = plan.bars.noninferior_percent;
      break;
    case AbQuestion::kBroken:
      gate.bound[kAbEffect] = plan.bars.broken_percent;
      break;
    case AbQuestion::kMicro:
      gate.bound[kAbEffect] = 2 * *plan.null_percent;
      break;
    case AbQuestion::kNull:
      break;
  }
  gate.bound["level"] = plan_level(plan);
  gate.bound["drift_percent"] = plan.voids.drift_percent;
  for (const std::string& caveat : comparison.caveats) gate.items.push_back({"caveat", "note", caveat});
  for (const std::string& fault : comparison.void_reasons) gate.items.push_back({"void rule", "broken", fault});
  return gate;
}

}  // namespace

Receipt comparison_receipt(const AbPlan& plan, const std::vector<AbBlock>& blocks, const AbComparison& comparison) {
  Receipt receipt;
  // The build and the settings of the candidate: that is what the receipt speaks of.
  const auto measured = std::find_if(blocks.begin(), blocks.end(), [](const AbBlock& block) {
    return block.role == ArmRole::kCandidate && !block.receipt.cells.empty();
  });
  if (measured != blocks.end()) receipt = measured->receipt;
  receipt.run_id.clear();
  receipt.kind = ReceiptKind::kAb;
  receipt.title = plan.title;
  receipt.command = "onelane ab run";
  receipt.verdict = comparison.verdict;
  receipt.reasons = comparison.reasons;
  receipt.protocol = {
      std::string(kAbPlanSchema), std::string(question_name(plan.question)), sha256(plan_json(plan)), {}};
  receipt.arm = {ArmRole::kCandidate, plan.candidate.name, {}, {}, {}};
  if (plan.question == AbQuestion::kNull) receipt.arm.role = ArmRole::kNull;
  receipt.cells.clear();
  receipt.artifacts.clear();
  receipt.void_reasons.clear();
  if (comparison.verdict == Verdict::kVoid) receipt.void_reasons = comparison.void_reasons;
  if (!comparison.all.quads.empty()) receipt.cells.push_back(effect_cell(comparison.all, "all"));
  for (const AbEffect& one : comparison.classes) receipt.cells.push_back(effect_cell(one, "class " + one.name));
  for (const AbEffect& one : comparison.cells) receipt.cells.push_back(effect_cell(one, one.name));
  receipt.cells.push_back(blocks_cell(plan, blocks));
  receipt.gates = {bar_gate(plan, comparison)};
  return receipt;
}

}  // namespace onelane
