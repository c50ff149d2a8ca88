// Lists of numbers on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace onelane {

// "0,16k,1M": k and m, in either case, are powers of 1024. An error names the flag.
Result<std::vector<int64_t>> count_list(const std::string& flag, std::string_view text);

}  // namespace onelane
