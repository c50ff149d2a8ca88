#include "lane/toml_check.h"

#include <algorithm>

#include "base/format.h"

namespace onelane {
namespace {

bool beyond_ascii(char c) { return static_cast<unsigned char>(c) >= 0x80; }
bool white(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// The end of the string that opens at `at`. What TOML forbids inside is the parser's to refuse, at that place or
// before. `trimmed` is set to where a line-ending backslash meets a character beyond ASCII.
size_t string_end(std::string_view text, size_t at, size_t& trimmed) {
  const char quote = text[at];
  const bool multiline = text.substr(at, 3) == std::string(3, quote);
  size_t i = at + (multiline ? 3 : 1);
  for (; i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      size_t next = i + 1;
      if (multiline && next < text.size() && white(text[next])) {
        while (next < text.size() && white(text[next])) ++next;
        if (next < text.size() && beyond_ascii(text[next])) trimmed = std::min(trimmed, next);
        i = next - 1;
      } else {
        i = next;
      }
    } else if (!multiline && (text[i] == quote || text[i] == '\n')) {
      return i + 1;
    } else if (multiline && text.substr(i, 3) == std::string(3, quote)) {
      // Up to two quotes belong to the text before the closing three.
      size_t end = i + 3;
      while (end < text.size() && end < i + 5 && text[end] == quote) ++end;
      return end;
    }
  }
  return text.size();
}

// Whether a quote at `at` opens a string: at the start of a key or a value, and nowhere else in TOML.
// (\xBF ends the byte order mark; any other byte beyond ASCII was found before.)
bool opens_string(std::string_view text, size_t at) {
  while (at > 0 && (text[at - 1] == ' ' || text[at - 1] == '\t')) --at;
  return at == 0 || std::string_view("\n=[,{.\xBF").find(text[at - 1]) != std::string_view::npos;
}

}  // namespace

Result<void> check_toml_characters(std::string_view text) {
  size_t found = text.size();
  for (size_t i = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; i < text.size() && found == text.size();) {
    if (beyond_ascii(text[i])) {
      found = i;
    } else if (text[i] == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else if ((text[i] == '"' || text[i] == '\'') && opens_string(text, i)) {
      i = string_end(text, i, found);
    } else {
      ++i;
    }
  }
  if (found >= text.size()) return {};
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(found), '\n');
  return Error{
      ErrorCode::kInvalidArgument,
      format("line {}: characters beyond ASCII must stand in quotes, and not after a backslash at the end of a "
             "line",
             line)};
}

}  // namespace onelane
