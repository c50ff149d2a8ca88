#include "model/step.h"

namespace onelane {

void Step::clear() {
  tokens_.clear();
  positions_.clear();
  run_of_.clear();
  runs_.clear();
  before_.clear();
}

void Step::add(int slot, int first_position, std::span<const int32_t> tokens, std::span<const int32_t> before) {
  if (tokens.empty()) return;
  const auto run = static_cast<int32_t>(runs_.size());
  runs_.push_back({count(), static_cast<int>(tokens.size()), first_position, slot});
  before_.emplace_back(before.begin(), before.end());
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens_.push_back(tokens[i]);
    positions_.push_back(first_position + static_cast<int32_t>(i));
    run_of_.push_back(run);
  }
}

void Step::set_pages(const int32_t* page_table, int pages_per_slot) {
  page_table_ = page_table;
  pages_per_slot_ = pages_per_slot;
}

StepRows Step::rows() const {
  return {count(),     tokens_.data(), positions_.data(), run_of_.data(), runs_.data(), static_cast<int>(runs_.size()),
          page_table_, pages_per_slot_};
}

std::span<const int32_t> Step::tokens(int run) const {
  const RowRun& range = runs_[static_cast<size_t>(run)];
  return std::span(tokens_).subspan(static_cast<size_t>(range.first_row), static_cast<size_t>(range.count));
}

}  // namespace onelane
