#include "engine/request.h"

#include <numeric>

namespace onelane {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "none";
}

int RequestStats::accepted_tokens() const { return std::accumulate(accepted.begin(), accepted.end(), 0); }

double RequestStats::mean_accepted() const {
  return draft_blocks > 0 ? static_cast<double>(accepted_tokens()) / draft_blocks : 0.0;
}

}  // namespace onelane
