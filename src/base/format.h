// Text formatting: fmt, under our own name so that a later toolchain can switch to std::format in one place.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace onelane {
using fmt::format;
using fmt::join;
}  // namespace onelane
