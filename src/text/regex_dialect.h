// Patterns of tokenizer.json are written for Oniguruma; we run PCRE2. This is the checked passage from one to the
// other.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace onelane {

// Rewrites `pattern` so that PCRE2 matches what Oniguruma (as Hugging Face tokenizers uses it) matches: white space is
// written out (PCRE2 counts U+180E as \s), and the general categories L, M, N, P, S are completed to Unicode 16.
// Constructs that mean different things in the two engines, or that no DeepSeek tokenizer uses, are refused by name.
Result<std::string> pcre2_pattern(std::string_view pattern);

}  // namespace onelane
