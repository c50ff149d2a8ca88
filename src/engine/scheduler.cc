#include "engine/scheduler.h"

#include <algorithm>
#include <numeric>

namespace onelane {
namespace {

// A step of waiting counts like this many rows less to read.
constexpr int kAgeing = 16;
// The oldest prompt's share of a chunk.
constexpr int kOldestShare = 4;
constexpr double kWeight = 0.2;  // of the newest observation

void average(double& mean, double value) { mean = mean == 0 ? value : mean + kWeight * (value - mean); }

// Takes up to `wanted` rows of `prompt` out of the limits. A prompt that is scored leaves `others` rows of logits.
void give(const PromptView& prompt, int wanted, int others, ChunkLimits& limits, int& rows) {
  int more = std::min({wanted, limits.rows, std::min(prompt.chunk, prompt.left) - rows});
  if (prompt.logits) more = std::min(more, std::max(limits.logit_rows - others, std::min(limits.logit_rows, 1)));
  const bool finishes = rows + more == prompt.left;
  if (more > 0 && finishes && !prompt.logits) {
    if (limits.logit_rows == 0)
      --more;  // the last row waits until its logits can be held
    else
      --limits.logit_rows;
  }
  if (more <= 0) return;
  if (prompt.logits) limits.logit_rows -= more;
  limits.rows -= more;
  rows += more;
}

}  // namespace

std::vector<int> share_chunk(std::span<const PromptView> prompts, ChunkLimits limits) {
  std::vector<int> rows(prompts.size());
  if (prompts.empty() || limits.rows <= 0) return rows;
  const int others = static_cast<int>(prompts.size()) - 1;
  give(prompts[0], std::max(1, limits.rows / kOldestShare), others, limits, rows[0]);
  std::vector<size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return prompts[a].left - kAgeing * prompts[a].waited < prompts[b].left - kAgeing * prompts[b].waited;
  });
  for (const size_t i : order) give(prompts[i], limits.rows, others, limits, rows[i]);
  return rows;
}

int draft_depth(const DraftSchedule& schedule, int decoding, int block, int step_rows, bool prompts_waiting) {
  if (decoding == 0) return 0;
  const int kept = prompts_waiting ? std::min(CostModel::kLeast, step_rows / 4) : 0;
  const int fits = (step_rows - kept) / decoding - 1;
  return std::max(0, std::min({schedule.depth(decoding), block, fits}));
}

void CostModel::observe(int decode_rows, int prompt_rows, double ms) {
  if (prompt_rows == 0) {
    if (decode_rows > 0) average(decode_step_ms_, ms);
    return;
  }
  const double rest = decode_rows > 0 ? std::min(decode_step_ms_, ms) : 0.0;
  // Chunks of a few rows cost mostly what any step costs: they say little about a row.
  if (prompt_rows >= kLeast) average(prompt_row_ms_, (ms - rest) / prompt_rows);
}

int CostModel::prompt_rows(int decode_rows, double max_ms) const {
  if (prompt_row_ms_ <= 0) return kLeast;
  const double left = max_ms - (decode_rows > 0 ? decode_step_ms_ : 0.0);
  return static_cast<int>(std::clamp(left / prompt_row_ms_, static_cast<double>(kLeast), 1e9));
}

}  // namespace onelane
