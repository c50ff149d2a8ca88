#include "api/stop_search.h"

#include <algorithm>
#include <utility>

namespace onelane {

StopSearch::StopSearch(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopSearch::push(std::string_view piece) {
  if (found_) return {};
  if (stops_.empty()) return std::string(piece);
  pending_ += piece;
  size_t best_end = std::string::npos, best_begin = 0;
  for (const std::string& stop : stops_) {
    const size_t begin = pending_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < best_end || (end == best_end && begin < best_begin)) {
      best_end = end;
      best_begin = begin;
      stop_ = stop;
    }
  }
  if (best_end != std::string::npos) {
    found_ = true;
    pending_.resize(best_begin);
    return std::exchange(pending_, {});
  }
  std::string out = pending_.substr(0, pending_.size() - held_length());
  pending_.erase(0, out.size());
  return out;
}

std::string StopSearch::flush() { return std::exchange(pending_, {}); }

// The longest end of the text that begins a stop string.
size_t StopSearch::held_length() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, pending_.size()); length > longest; --length) {
      if (std::string_view(pending_).ends_with(std::string_view(stop).substr(0, length))) {
        longest = length;
        break;
      }
    }
  }
  return longest;
}

}  // namespace onelane
