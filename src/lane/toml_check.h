// What must be looked at before toml++ 3.3 (Debian 12) sees a text.
//
// Its test for white space runs into undefined behaviour on letters beyond ASCII (an "ä" will do) where white space may
// stand. TOML allows such letters in quotes and comments only, so everything else can be refused beforehand.
#pragma once

#include <string_view>

#include "base/result.h"

namespace onelane {

// An error with the line of the first character beyond ASCII that stands outside quotes and comments, or where a
// backslash at the end of a line is followed by one. A byte order mark at the beginning is none.
Result<void> check_toml_characters(std::string_view text);

}  // namespace onelane
