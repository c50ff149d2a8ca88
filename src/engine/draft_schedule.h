// DraftSchedule: how many drafts are verified per sequence, by how many sequences run.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace onelane {

// Verifying costs rows: one sequence gains by every draft that is likely to be accepted, a full batch pays for each
// that is not. The table is static because a measured table was the strongest published result (spec/peers.md 7.5).
class DraftSchedule {
 public:
  // Depth 5 up to 4 sequences, 3 up to 8, 0 above: docs/engine.md has the measurement.
  DraftSchedule() = default;
  // "4:5,8:3,64:1": depth 5 up to 4 sequences, 3 up to 8, 1 up to 64, 0 above. "0" or "": never. Errors name the entry:
  // bounds must ascend, depths lie in 0..kMaxDraftDepth.
  static Result<DraftSchedule> parse(std::string_view text);

  int depth(int sequences) const;
  std::string text() const;

 private:
  std::vector<std::pair<int, int>> steps_ = {{4, 5}, {8, 3}, {64, 0}};
};

}  // namespace onelane
