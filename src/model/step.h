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
  // `before` holds the tokens just before them, most recent last (at least the Engram history where it exists).
  void add(int slot, int first_position, std::span<const int32_t> tokens, std::span<const int32_t> before = {});
  // [slots, pages_per_slot]; must outlive the step.
  void set_pages(const int32_t* page_table, int pages_per_slot);

  int count() const { return static_cast<int>(tokens_.size()); }
  // Valid until the next change.
  StepRows rows() const;
  std::span<const int32_t> before(int run) const { return before_[static_cast<size_t>(run)]; }
  std::span<const int32_t> tokens(int run) const;

 private:
  std::vector<int32_t> tokens_, positions_, run_of_;
  std::vector<RowRun> runs_;
  std::vector<std::vector<int32_t>> before_;
  const int32_t* page_table_ = nullptr;
  int pages_per_slot_ = 0;
};

}  // namespace onelane
