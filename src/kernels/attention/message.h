// Messages of the attention library: printf into a std::string, since fmt does not compile everywhere this does.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

#include "base/result.h"

namespace onelane::attention {

[[gnu::format(printf, 2, 3)]] inline Error error(ErrorCode code, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return {code, text};
}

// kInvalidArgument, which is what most are.
#define ONELANE_ATTENTION_REFUSE(...) return ::onelane::attention::error(ErrorCode::kInvalidArgument, __VA_ARGS__)

}  // namespace onelane::attention
