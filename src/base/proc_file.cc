#include "base/proc_file.h"

#include <fstream>

namespace onelane {

std::vector<std::string> proc_values(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::vector<std::string> values;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    if (line.find_first_not_of(" \t", key.size()) != colon) continue;  // a longer key
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    values.push_back(begin == std::string::npos ? "" : line.substr(begin));
  }
  return values;
}

}  // namespace onelane
