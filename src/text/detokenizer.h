// Detokenizer: the text of a growing sequence of tokens.
//
// Tokens are byte strings and may end inside a character; text comes out as soon as its characters are complete.
#pragma once

#include <string>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace onelane {

class Detokenizer {
 public:
  // `tokenizer` must outlive this object. With `skip_special`, tokens flagged special give no text.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that `id` completes, often empty for one piece of a rare character. Ids without a token give nothing.
  std::string push(int32_t id);
  // The end: bytes still waiting become U+FFFD. All texts joined equal Tokenizer::decode of all ids.
  std::string flush() { return stream_.flush(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace onelane
