#include "engine/draft_schedule.h"

#include <charconv>

#include "base/format.h"
#include "engine/request.h"

namespace onelane {
namespace {

bool read_number(std::string_view text, int& value) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<DraftSchedule> DraftSchedule::parse(std::string_view text) {
  DraftSchedule schedule;
  schedule.steps_.clear();
  if (text.empty() || text == "0") return schedule;
  int last = 0;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view entry = text.substr(0, comma);
    const size_t colon = entry.find(':');
    int bound = 0;
    int depth = 0;
    if (colon == std::string_view::npos || !read_number(entry.substr(0, colon), bound) ||
        !read_number(entry.substr(colon + 1), depth)) {
      return Error{ErrorCode::kInvalidArgument,
                   format("draft schedule: '{}' should be SEQUENCES:DEPTH, as in 4:5,8:3,64:1", entry)};
    }
    if (bound <= last) {
      return Error{ErrorCode::kInvalidArgument,
                   format("draft schedule: '{}' must name more than {} sequences", entry, last)};
    }
    if (depth < 0 || depth > kMaxDraftDepth) {
      return Error{ErrorCode::kInvalidArgument,
                   format("draft schedule: the depth of '{}' must lie in 0..{}", entry, kMaxDraftDepth)};
    }
    schedule.steps_.emplace_back(bound, depth);
    last = bound;
    if (comma == std::string_view::npos) return schedule;
    text.remove_prefix(comma + 1);
  }
}

int DraftSchedule::depth(int sequences) const {
  for (const auto& [bound, depth] : steps_) {
    if (sequences <= bound) return depth;
  }
  return 0;
}

std::string DraftSchedule::text() const {
  if (steps_.empty()) return "0";
  std::string text;
  for (const auto& [bound, depth] : steps_) text += format("{}{}:{}", text.empty() ? "" : ",", bound, depth);
  return text;
}

}  // namespace onelane
