// Logging to stderr. Results of a command go to stdout; everything said on the way goes through here.
//
// Only log.cc includes spdlog: its header costs seconds in every file that reads it.
#pragma once

#include <string_view>

#include "base/format.h"

namespace onelane {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Messages below this level are dropped. Default: kWarning for tools; servers raise it to kInfo.
void set_log_level(LogLevel level);
void log_message(LogLevel level, std::string_view message);

template <class... Args>
void log_info(fmt::format_string<Args...> text, Args&&... args) {
  log_message(LogLevel::kInfo, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> text, Args&&... args) {
  log_message(LogLevel::kWarning, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> text, Args&&... args) {
  log_message(LogLevel::kError, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace onelane
