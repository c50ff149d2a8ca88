// Step: the rows of one forward pass while they are being collected.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace onelane {

class Step {
 public:
  // Starts over; keeps the memory.
  void clear();
  // Adds `tokens` of the sequence in `slot` at positions first_position, +1, ... A sequence may be added once per step.
  // `before` holds the tokens just before them, most recent last; of more than kHistory the last count, and the Engram
  // history is needed where it exists. `moved_by`: StepRows::moved_by.
  void add(int slot, int first_position, std::span<const int32_t> tokens, std::span<const int32_t> before = {},
           int32_t moved_by = -1);
  // [slots, pages_per_slot]; must outlive the step.
  void set_pages(const int32_t* page_table, int pages_per_slot);

  int count() const { return static_cast<int>(tokens_.size()); }
  // Whether a token is a reference or a run is moved: StepRows::later is needed.
  bool refers() const { return refers_; }
  // Valid until the next change.
  StepRows rows() const;

 private:
  std::vector<int32_t> tokens_, positions_, run_of_;
  std::vector<RowRun> runs_;
  std::vector<int32_t> before_;    // [runs, kHistory]
  std::vector<int32_t> moved_by_;  // [runs]
  bool refers_ = false;
  const int32_t* page_table_ = nullptr;
  int pages_per_slot_ = 0;
};

}  // namespace onelane
