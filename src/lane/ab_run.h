// Runs a plan: one arm after the other in the drawn order, a receipt from each, a comparison from all of them.
//
// The folder of a run is new and holds everything: plan.json, block-01-CTL.json and .log for each block, campaign.json
// (which names them with their digests and what the runner saw go wrong), ab.json (the receipt of the comparison).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lane/ab_compare.h"

namespace onelane {

inline constexpr std::string_view kCampaignSchema = "lane-ab-campaign/1";

// What a server of an arm that is a URL is measured with: this program.
struct AbRunOptions {
  std::string folder;  // must not exist, or be empty
  std::string self;    // path of `onelane`
  std::function<void(const std::string& line)> progress = [](const std::string&) {};
};

// What a run leaves.
struct AbRun {
  AbPlan plan;
  std::vector<AbBlock> blocks;
  AbComparison comparison;
  Receipt receipt;  // of the comparison; ab.json
};

// Runs until the plan's quads are done (and its extension, when they were inconclusive), or until too few sound quads
// can be left. A block whose command leaves no receipt that reads is void with the reason; how the command exited is
// not its verdict. Errors are the runner's own: the folder, an interrupt.
Result<AbRun> run_plan(const AbPlan& plan, const AbRunOptions& options);

// Makes the folder of a run; an error when there is something in it.
Result<void> prepare_run_folder(const std::string& folder);

// Reads such a folder again and compares anew. Errors: a file that is missing, changed since the run (digests), or an
// ab.json that does not follow from the blocks.
Result<AbRun> read_run(const std::string& folder);

// The receipt of a comparison: effects as cells, the bar as a gate, the blocks as artifacts.
Receipt comparison_receipt(const AbPlan& plan, const std::vector<AbBlock>& blocks, const AbComparison& comparison);

}  // namespace onelane
