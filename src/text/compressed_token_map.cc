#include "text/compressed_token_map.h"

#include <string>
#include <unordered_map>

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "base/format.h"

namespace onelane {
namespace {

constexpr UChar32 kReplacement = 0xFFFD;
constexpr UChar32 kOneSpace = 0xE000;  // stands for a text that is one space while both ends are stripped

bool collapses(UChar32 c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Marks (Mn, Mc, Me) go, letters become lower case one by one (no final-sigma rule), runs of [ \t\r\n] one space.
icu::UnicodeString fold(const icu::UnicodeString& decomposed) {
  icu::UnicodeString out;
  bool in_run = false;
  for (int32_t i = 0; i < decomposed.length();) {
    const UChar32 c = decomposed.char32At(i);
    i += U16_LENGTH(c);
    if (U_GET_GC_MASK(c) & U_GC_M_MASK) continue;
    const bool space = collapses(c);
    if (!(space && in_run)) out.append(space ? UChar32{' '} : u_tolower(c));
    in_run = space;
  }
  return out;
}

icu::UnicodeString strip(const icu::UnicodeString& text) {
  int32_t begin = 0;
  int32_t end = text.length();
  // Every white-space character is one UTF-16 unit.
  while (begin < end && u_hasBinaryProperty(text.charAt(begin), UCHAR_WHITE_SPACE)) ++begin;
  while (end > begin && u_hasBinaryProperty(text.charAt(end - 1), UCHAR_WHITE_SPACE)) --end;
  return icu::UnicodeString(text, begin, end - begin);
}

}  // namespace

Result<CompressedTokenMap> compressed_token_map(const Tokenizer& tokenizer) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfkc = icu::Normalizer2::getNFKCInstance(status);
  const icu::Normalizer2* nfd = icu::Normalizer2::getNFDInstance(status);
  CompressedTokenMap map;
  std::unordered_map<std::string, int32_t> numbers;
  for (int32_t id = 0; id < tokenizer.size() && U_SUCCESS(status); ++id) {
    if (tokenizer.raw(id).empty()) {
      return Error{ErrorCode::kCorrupt, format("the tokenizer has no token {}: ids must be without gaps", id)};
    }
    const std::string text = tokenizer.decode({&id, 1});
    const icu::UnicodeString unicode = icu::UnicodeString::fromUTF8(text);
    std::string key;
    if (unicode.indexOf(kReplacement) >= 0) {
      key = tokenizer.raw(id);
    } else {
      icu::UnicodeString folded = fold(nfd->normalize(nfkc->normalize(unicode, status), status));
      if (folded == icu::UnicodeString(UChar32{' '})) folded.setTo(kOneSpace);
      folded = strip(folded);
      folded.findAndReplace(icu::UnicodeString(kOneSpace), icu::UnicodeString(UChar32{' '}));
      folded.toUTF8String(key);
      if (key.empty()) key = text;
    }
    map.number.push_back(numbers.try_emplace(key, static_cast<int32_t>(numbers.size())).first->second);
  }
  if (U_FAILURE(status)) return Error{ErrorCode::kIo, format("Unicode normalisation failed: {}", u_errorName(status))};
  map.count = static_cast<int32_t>(numbers.size());
  return map;
}

}  // namespace onelane
