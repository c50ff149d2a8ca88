// The date and time that names and documents carry.
#pragma once

#include <ctime>
#include <string>

namespace onelane {

// Now in UTC, by a format of strftime() whose text has at most 63 characters.
inline std::string utc_now(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[64];
  return {text, std::strftime(text, sizeof(text), format, &utc)};
}

}  // namespace onelane
