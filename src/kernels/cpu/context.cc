#include "kernels/cpu/context.h"

namespace onelane::cpu {

Context::CachedTable& Context::table_entry(const RopeFrequencies& table) {
  for (CachedTable& entry : tables_) {
    if (std::memcmp(&entry.table, &table, sizeof(table)) == 0) return entry;
  }
  // A model has two tables; whoever brings many (a test) only loses the cache.
  if (tables_.size() >= 8) tables_.clear();
  tables_.push_back({table, std::vector<int32_t>(kCachedPositions, -1), std::vector<RopeAngles>(kCachedPositions)});
  return tables_.back();
}

const RopeAngles& Context::cached(CachedTable& entry, int position) {
  const size_t place = static_cast<size_t>(position) % kCachedPositions;
  if (entry.position[place] != position) {
    entry.angles[place] = rope_angles(entry.table, position);
    entry.position[place] = position;
  }
  return entry.angles[place];
}

const RopeAngles* Context::row_angles(const RopeFrequencies& table, const StepRows& rows) {
  CachedTable& entry = table_entry(table);
  if (row_angles_.size() < static_cast<size_t>(rows.count)) row_angles_.resize(static_cast<size_t>(rows.count));
  for (int row = 0; row < rows.count; ++row) {
    row_angles_[static_cast<size_t>(row)] = cached(entry, rows.position[row]);
  }
  return row_angles_.data();
}

}  // namespace onelane::cpu
