#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <array>
#include <cstdint>
#include <limits>

#include <pcre2.h>

#include "base/format.h"
#include "text/regex_dialect.h"
#include "text/utf8.h"

namespace onelane {
namespace {

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

constexpr size_t kJitStackStart = 64 << 10;
constexpr size_t kJitStackMost = 64 << 20;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// What a thread needs beside the compiled pattern while it matches.
struct Scratch {
  MatchData data{pcre2_match_data_create(1, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  JitStack stack{pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr)};

  Scratch() {
    // The defaults stop a match after 10 million steps. A run of that many spaces needs more, though only linearly.
    pcre2_set_match_limit(context.get(), std::numeric_limits<uint32_t>::max());
    pcre2_set_depth_limit(context.get(), std::numeric_limits<uint32_t>::max());
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

}  // namespace

struct PreTokenizer::Pattern {
  Code code;
  std::string source;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<void> PreTokenizer::add_regex(std::string_view pattern) {
  ONELANE_ASSIGN(const std::string rewritten, pcre2_pattern(pattern));
  return add(rewritten, false);
}

Result<void> PreTokenizer::add_literal(std::string_view text) { return add(std::string(text), true); }

Result<void> PreTokenizer::add(const std::string& pattern, bool literal) {
  if (pattern.empty()) return Error{ErrorCode::kUnsupported, "an empty pattern is not supported"};
  ONELANE_TRY(check_utf8(pattern, "the pattern"));
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_NEVER_BACKSLASH_C);
  Code code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr));
  if (!code) {
    return Error{ErrorCode::kUnsupported, format("pattern '{}': {} at offset {}", pattern, message_of(error), offset)};
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty) {
    return Error{ErrorCode::kUnsupported,
                 format("pattern '{}' matches the empty text, which is not supported", pattern)};
  }
  // Without JIT (an unusual machine) the same pattern runs interpreted, slower by about four.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  patterns_.push_back(std::make_unique<Pattern>(Pattern{std::move(code), pattern}));
  return {};
}

Result<void> PreTokenizer::split(std::vector<std::string_view>& pieces) const {
  const Scratch scratch;
  std::vector<std::string_view> cut;
  for (const auto& pattern : patterns_) {
    cut.clear();
    cut.reserve(pieces.size() * 2);
    for (const std::string_view piece : pieces) {
      size_t begin = 0;  // of what no match has covered yet
      size_t at = 0;
      while (at < piece.size()) {
        const int found = pcre2_match(pattern->code.get(), reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(), at,
                                      PCRE2_NO_UTF_CHECK, scratch.data.get(), scratch.context.get());
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0) {
          return Error{ErrorCode::kResourceExhausted,
                       format("the pre-tokenizer pattern '{}' failed on a text of {} bytes: {}", pattern->source,
                              piece.size(), message_of(found))};
        }
        const PCRE2_SIZE* span = pcre2_get_ovector_pointer(scratch.data.get());
        if (span[0] > begin) cut.push_back(piece.substr(begin, span[0] - begin));
        cut.push_back(piece.substr(span[0], span[1] - span[0]));
        begin = at = span[1];
      }
      if (begin < piece.size()) cut.push_back(piece.substr(begin));
    }
    pieces.swap(cut);
  }
  return {};
}

}  // namespace onelane
