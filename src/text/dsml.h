// DSML tags in running text: `<｜DSML｜tool_calls>`, `</｜DSML｜ parameter>` and so on, as a lenient reader sees them.
#pragma once

#include <string_view>

#include "text/prompt_format.h"

namespace onelane {

enum class DsmlName { kCalls, kInvoke, kParameter, kOther };

struct DsmlTag {
  size_t length = 0;  // bytes from the start of the tag to the end of its name; attributes and '>' follow
  DsmlName name = DsmlName::kOther;
  bool closing = false;
};

enum class DsmlMatch {
  kNo,       // not a tag, whatever follows
  kPartial,  // the text ends where it could still become one
  kYes,
};

// Does a tag begin at the first byte of `text`? Both U+FF5C and '|' count as a bar, the space before the name is
// optional in both generations, and a marker without '<' or with an unknown name is a tag too (kOther; its length ends
// after the second bar): nothing that carries the marker may be taken for prose. With `last`, no more text follows.
DsmlMatch match_dsml(std::string_view text, const PromptFormat& format, bool last, DsmlTag& tag);

}  // namespace onelane
