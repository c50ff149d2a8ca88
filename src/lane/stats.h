// Statistics of gates and comparisons: every interval and test that a verdict rests on.
//
// All of it is deterministic: what draws random numbers takes a seed. Samples are finite; empty samples are programming
// errors unless a function says otherwise.
#pragma once

#include <vector>

namespace onelane {

// The value below which a share `q` of `values` lies, linear between order statistics (rank q (n - 1)). Any order in.
double percentile(std::vector<double> values, double q);

}  // namespace onelane
