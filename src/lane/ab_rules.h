// The void rules of a comparison (spec/operations.md 4.3), as far as receipts can show them, and its bars (4.2).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lane/ab_compare.h"

namespace onelane {

// What voids this block, one sentence each: what the runner saw, the receipt's own void rules, errors, throttling,
// foreign processes, Xids, a lagging client, a stall at the end of a window, cells or figures that `reference` has and
// it does not.
std::vector<std::string> block_faults(const AbPlan& plan, const AbBlock& block, const Receipt& reference);

// What voids everything: an arm that changed between its blocks, arms that differ where the plan does not allow it,
// arms that do not differ at all, power limits, temperatures, the control's accept length off its registered value.
std::vector<std::string> campaign_faults(const AbPlan& plan, std::span<const AbBlock> blocks);

// The verdict of a comparison that nothing voids, its reasons, and caveats about tails.
void judge(const AbPlan& plan, AbComparison& out);

// Limits of what was measured that void nothing: blocks that share a boot.
std::vector<std::string> campaign_caveats(std::span<const AbBlock> blocks);

}  // namespace onelane
