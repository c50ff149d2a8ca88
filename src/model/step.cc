#include "model/step.h"

#include <algorithm>

namespace onelane {

void Step::clear() {
  tokens_.clear();
  positions_.clear();
  run_of_.clear();
  runs_.clear();
  before_.clear();
  moved_by_.clear();
  refers_ = false;
}

void Step::add(int slot, int first_position, std::span<const int32_t> tokens, std::span<const int32_t> before,
               int32_t moved_by) {
  if (tokens.empty()) return;
  const auto run = static_cast<int32_t>(runs_.size());
  runs_.push_back({count(), static_cast<int>(tokens.size()), first_position, slot});
  moved_by_.push_back(moved_by);
  const auto reference = [](int32_t token) { return token < 0 && token != kNoToken; };
  refers_ |= moved_by >= 0 || std::any_of(tokens.begin(), tokens.end(), reference) ||
             std::any_of(before.begin(), before.end(), reference);
  const auto known = before.last(std::min<size_t>(before.size(), kHistory));
  before_.insert(before_.end(), kHistory - known.size(), kNoToken);
  before_.insert(before_.end(), known.begin(), known.end());
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
  return {.count = count(),
          .token = tokens_.data(),
          .position = positions_.data(),
          .run_of = run_of_.data(),
          .runs = runs_.data(),
          .run_count = static_cast<int>(runs_.size()),
          .page_table = page_table_,
          .pages_per_slot = pages_per_slot_,
          .before = before_.data(),
          .moved_by = moved_by_.data()};
}

}  // namespace onelane
