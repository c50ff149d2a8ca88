// Scheduling: which rows the next step holds. Pure decisions on numbers, so that they can be tested without a model.
//
// - Every decoding sequence is in every step: a long prompt cannot starve it.
// - Prompt rows fill up what is left, bounded by the time that running streams may wait (max_gap_ms).
// - Among prompts the shortest remainder goes first, so that a question overtakes a book; waiting makes a prompt
//   shorter in this order, and a quarter of every chunk belongs to the oldest, so that books are read as well.
#pragma once

#include <span>
#include <vector>

#include "engine/draft_schedule.h"

namespace onelane {

// A prompt that is being read.
struct PromptView {
  int left = 0;         // rows to compute
  int chunk = 0;        // most rows in this step: to the next checkpoint
  bool logits = false;  // every row asks for logits
  int waited = 0;       // steps without a row
};

struct ChunkLimits {
  int rows = 0;
  int logit_rows = 0;  // rows that may ask for logits; a prompt's last row does
};

// Rows of each prompt in the next step. `prompts` stand in order of arrival, the oldest first.
std::vector<int> share_chunk(std::span<const PromptView> prompts, ChunkLimits limits);

// Drafts per sequence when `decoding` sequences decode: the schedule's, at most `block`, and fewer when the rows would
// not fit a step of `step_rows`, of which waiting prompts keep some.
int draft_depth(const DraftSchedule& schedule, int decoding, int block, int step_rows, bool prompts_waiting);

// Learns from finished steps what a prompt row costs.
class CostModel {
 public:
  void observe(int decode_rows, int prompt_rows, double ms);
  // Prompt rows that can be added to a step with `decode_rows` rows so that it takes about `max_ms`; at least kLeast,
  // so that prompts go on whatever the decode rows cost.
  int prompt_rows(int decode_rows, double max_ms) const;
  double prompt_row_ms() const { return prompt_row_ms_; }

  static constexpr int kLeast = 8;

 private:
  double decode_step_ms_ = 0;  // of steps without prompt rows
  double prompt_row_ms_ = 0;
};

}  // namespace onelane
