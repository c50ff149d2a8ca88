#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace onelane {

void check_failed(const char* condition, const char* file, int line, const char* message) {
  std::fprintf(stderr, "onelane: %s:%d: check failed: %s: %s\n", file, line, condition, message);
  std::abort();
}

}  // namespace onelane
