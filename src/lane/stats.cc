#include "lane/stats.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace onelane {

double percentile(std::vector<double> values, double q) {
  ONELANE_CHECK(!values.empty() && q >= 0 && q <= 1, "percentile of nothing, or no share");
  const double rank = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const auto at = values.begin() + static_cast<ptrdiff_t>(low);
  std::nth_element(values.begin(), at, values.end());
  if (low + 1 == values.size()) return *at;
  const double above = *std::min_element(at + 1, values.end());
  return *at + (rank - static_cast<double>(low)) * (above - *at);
}

}  // namespace onelane
