// UTF-8: validation with positions, and decoding of a byte stream whose pieces end anywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace onelane {

// Byte offset of the first sequence that is not UTF-8 (surrogates, overlong forms and values above U+10FFFF are not),
// or nothing when all of `text` is.
std::optional<size_t> first_invalid_utf8(std::string_view text);

// An error that names `what` and the offset, or success.
Result<void> check_utf8(std::string_view text, std::string_view what);

// Appends the UTF-8 form of one Unicode scalar value.
void append_code_point(std::string& out, char32_t code_point);

// The first code point of valid, non-empty UTF-8 text and, in `length`, its bytes.
char32_t first_code_point(std::string_view text, size_t& length);

// Turns a stream of bytes into valid UTF-8 text. Complete sequences come out at once, an unfinished one waits for its
// next bytes. What cannot become UTF-8 is replaced by U+FFFD, one per maximal valid prefix, as Python's
// errors="replace" does: the outputs of all calls joined do not depend on how the bytes were cut.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  // Ends the stream: an unfinished sequence becomes U+FFFD. The object is then as new.
  std::string flush();

 private:
  std::string held_;  // an unfinished sequence, at most 3 bytes
};

}  // namespace onelane
