// PreTokenizer: cuts text into the pieces inside which byte pairs may merge.
//
// A sequence of "isolated" splits: each one cuts every piece so far at its matches, and sees nothing of the text beyond
// the piece it cuts.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace onelane {

class PreTokenizer {
 public:
  PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Adds a split by a regular expression (Oniguruma syntax) or by a literal string.
  Result<void> add_regex(std::string_view pattern);
  Result<void> add_literal(std::string_view text);

  // Replaces `pieces` (valid UTF-8 each) by their pieces, in order; joined they are the same text.
  // Time is linear in the text for DeepSeek's patterns, runs of one character included.
  Result<void> split(std::vector<std::string_view>& pieces) const;

 private:
  struct Pattern;
  Result<void> add(const std::string& pattern, bool literal);
  std::vector<std::unique_ptr<Pattern>> patterns_;
};

}  // namespace onelane
