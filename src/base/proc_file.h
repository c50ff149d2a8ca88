// Files of lines "key<blanks>: value", as /proc has many.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace onelane {

// The values of every line whose key is `key`, without blanks in front; empty when there is none, or no file.
std::vector<std::string> proc_values(const std::string& path, std::string_view key);

}  // namespace onelane
