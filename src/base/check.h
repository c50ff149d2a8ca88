// ONELANE_CHECK: a condition that only a mistake of ours can break. On in every build; prints where and why, then
// aborts.
#pragma once

namespace onelane {

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const char* message);

}  // namespace onelane

#define ONELANE_CHECK(condition, message)                               \
  do {                                                                  \
    if (!(condition)) [[unlikely]]                                      \
      ::onelane::check_failed(#condition, __FILE__, __LINE__, message); \
  } while (0)
