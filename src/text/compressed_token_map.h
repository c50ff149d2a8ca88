// The compressed token map of V4.1's Engram: tokens that differ only in case, accents or spacing share a number.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace onelane {

struct CompressedTokenMap {
  std::vector<int32_t> number;  // by token id, in [0, count)
  int32_t count = 0;            // 99,092 for the V4.1 tokenizer: every Engram multiplier depends on it
};

// spec/model.md 7.1. Errors: a Unicode table of ICU cannot be loaded, or an id below size() has no token.
Result<CompressedTokenMap> compressed_token_map(const Tokenizer& tokenizer);

}  // namespace onelane
