// StepLoad: sequences at any context without a prompt, and the steps an engine would run on them.
//
// Rings, pages and compressor states hold what a prompt would have left as far as its cost goes: records of normally
// distributed vectors, and in every page index keys of its own, so that scores differ and selection has work to do.
// Tokens are random; a sequence stays at its position, step after step.
#pragma once

#include <utility>
#include <vector>

#include "cli/step_meter.h"
#include "engine/verify.h"
#include "model/forward.h"

namespace onelane {

// `rows` rows of sequences that each have `context` tokens: sequences of 1 + drafts rows, the last of what is left.
struct StepShape {
  int rows = 1;
  int context = 0;
};

int rows_per_sequence(const ModelSpec& spec);
int sequences_of(const ModelSpec& spec, const StepShape& shape);
// Pages of one sequence, its rows included.
int pages_per_sequence(const ModelSpec& spec, const StepShape& shape);

class StepLoad {
 public:
  struct Sizes {
    int sequences = 1;
    int pages = 1;           // of all
    int sequence_pages = 1;  // of the longest sequence: the width of the page table, at every context
    int rows = 1;            // of the largest step
    int logit_rows = 1;      // of the largest that asks for logits
  };
  StepLoad(const Model& model, StepMeter& meter, const Sizes& sizes, uint64_t seed);

  // One step of the engine: a draft block and its Markov chain for every sequence that has drafts to verify, the rows
  // through the backbone with logits of all, the drafter's rings. `draw` chooses the tokens. On a device it is asked
  // for before the step ahead of it is waited for.
  void step(const StepShape& shape, int draw);
  // A prompt of `tokens` tokens in steps of `chunk` rows, logits of the last row.
  void prefill(int tokens, int chunk);

 private:
  void fill_rings();
  void fill_pages();
  void lay_out_pages(int sequences, int pages);
  std::vector<int32_t> tokens(uint64_t draw, int first, int count) const;
  void run_rows(std::span<const int32_t> logit_rows);  // step_ through the backbone and to the drafter
  void draft(const StepShape& shape, int draw);

  const Model& model_;
  StepMeter& meter_;
  const uint64_t seed_;
  KvStore store_;
  ForwardPass forward_;
  Step step_;
  const int table_width_;
  std::vector<int32_t> page_table_;
  std::pair<int, int> laid_out_;  // sequences, pages of each
  std::vector<int32_t> logit_rows_;
  bool uncollected_ = false;  // the last step is
  Buffer logits_;
};

}  // namespace onelane
