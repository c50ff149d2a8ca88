#include "cli/count_list.h"

#include <algorithm>
#include <charconv>

#include "base/format.h"

namespace onelane {

Result<std::vector<int64_t>> count_list(const std::string& flag, std::string_view text) {
  std::vector<int64_t> values;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    int64_t value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    const std::string_view unit(end, static_cast<size_t>(item.data() + item.size() - end));
    const int64_t factor = unit == "k" || unit == "K"   ? 1 << 10
                           : unit == "m" || unit == "M" ? 1 << 20
                           : unit.empty()               ? 1
                                                        : 0;
    if (error != std::errc() || factor == 0 || value < 0 || value > (int64_t{1} << 40)) {
      return Error{ErrorCode::kInvalidArgument,
                   format("{}: \"{}\" is not a number; expected a list like 1,2,4 or 0,16k,128k", flag, item)};
    }
    values.push_back(value * factor);
    text.remove_prefix(std::min(item.size() + 1, text.size()));
  }
  return values;
}

}  // namespace onelane
