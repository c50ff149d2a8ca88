#include "text/regex_dialect.h"

#include <cctype>

#include "base/format.h"
#include "text/unicode_additions.h"

namespace onelane {
namespace {

// Unicode White_Space, as class items.
constexpr std::string_view kWhiteSpace =
    "\\t\\n\\x{b}\\f\\r\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

std::string_view later_members(std::string_view category) {
  if (category == "L") return kLaterLetters;
  if (category == "M") return kLaterMarks;
  if (category == "N") return kLaterNumbers;
  if (category == "P") return kLaterPunctuation;
  if (category == "S") return kLaterSymbols;
  return {};
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        ONELANE_TRY(escape());
      } else if (in_class_) {
        ONELANE_TRY(class_member(c));
      } else {
        ONELANE_TRY(outside(c));
      }
    }
    if (in_class_) return refuse("a character class without its ']'");
    return std::move(out_);
  }

 private:
  Error refuse(std::string_view what) const {
    return Error{ErrorCode::kUnsupported, format("pattern '{}', offset {}: {} is not supported", pattern_, at_, what)};
  }
  char peek(size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  void copy(size_t count) {
    out_.append(pattern_.substr(at_, count));
    at_ += count;
  }

  Result<void> escape() {
    const char c = peek(1);
    switch (c) {
      case 's':
        out_ += in_class_ ? std::string(kWhiteSpace) : format("[{}]", kWhiteSpace);
        at_ += 2;
        return {};
      case 'S':
        if (in_class_) return refuse("\\S inside a character class");
        out_ += format("[^{}]", kWhiteSpace);
        at_ += 2;
        return {};
      case 'p':
      case 'P':
        return category(c == 'P');
      case 'r':
      case 'n':
      case 't':
      case 'f':
        copy(2);
        return {};
      case 'u':
        return code_point();
      default:
        break;
    }
    if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80) {
      return refuse(format("the escape '\\{}'", c == '\0' ? std::string() : std::string(1, c)));
    }
    copy(2);
    return {};
  }

  Result<void> category(bool negated) {
    const size_t close = pattern_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) return refuse("\\p without {category}");
    const std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    for (const char c : name) {
      if (!std::isalpha(static_cast<unsigned char>(c))) return refuse(format("the category '{}'", name));
    }
    const std::string_view later = later_members(name);
    if (later.empty()) {
      copy(close + 1 - at_);
      return {};
    }
    if (negated && in_class_) return refuse("\\P inside a character class");
    const std::string members = format("\\p{{{}}}{}", name, later);
    out_ += in_class_ ? members : format("[{}{}]", negated ? "^" : "", members);
    at_ = close + 1;
    return {};
  }

  Result<void> code_point() {  // \uHHHH, which PCRE2 spells \x{HHHH}
    for (size_t i = 2; i < 6; ++i) {
      if (!std::isxdigit(static_cast<unsigned char>(peek(i)))) return refuse("\\u without four hex digits");
    }
    out_ += format("\\x{{{}}}", pattern_.substr(at_ + 2, 4));
    at_ += 6;
    return {};
  }

  Result<void> class_member(char c) {
    if (c == '[') return refuse("a nested character class");
    if (c == '&' && peek(1) == '&') return refuse("a class intersection");
    if (c == ']') in_class_ = false;
    copy(1);
    return {};
  }

  Result<void> outside(char c) {
    switch (c) {
      case '[': {
        const size_t opening = peek(1) == '^' ? 2 : 1;
        if (peek(opening) == ']') return refuse("an empty character class");
        in_class_ = true;
        copy(opening);
        return {};
      }
      case '^':
      case '$':
        return refuse(format("the anchor '{}'", c));
      case '(':
        if (peek(1) == '*') return refuse("a '(*' group");
        if (peek(1) == '?' && peek(2) != ':' && peek(2) != '=' && peek(2) != '!' && pattern_.substr(at_, 4) != "(?i:") {
          return refuse("this kind of group");
        }
        break;
      case '{':
        if (peek(1) == ',') return refuse("the quantifier '{,'");
        break;
      case '}':
        if (peek(1) == '+') return refuse("the quantifier '}+'");
        break;
      default:
        break;
    }
    copy(1);
    return {};
  }

  std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

Result<std::string> pcre2_pattern(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace onelane
