// Flaws of an answer that need no oracle: it goes round in circles, or it is not text.
//
// Loops are looked for in characters and words, not tokens, so that answers of any server are judged alike. They count
// only in what a model wrote before its natural end: text after it loops on every lane.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace onelane {

struct TextFlaws {
  bool loop = false;                 // the text ends in at least 4 equal cycles that make up 512 characters or more, or
                                     // 20 % of its runs of 8 words (of 64 at least) have occurred before
  std::vector<std::string> garbled;  // a sentence each: special tokens, U+FFFD, scripts that change within a word

  bool any() const { return loop || !garbled.empty(); }
};

// `text`: valid UTF-8.
TextFlaws find_flaws(std::string_view text);

// The length in bytes of the cycle that the text ends in, if it comes at least `repeats` times in a row and these make
// up `least_bytes` or more; else 0.
size_t ending_cycle(std::string_view text, size_t repeats, size_t least_bytes);

}  // namespace onelane
