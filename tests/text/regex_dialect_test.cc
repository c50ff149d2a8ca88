#include "text/regex_dialect.h"

#include <gtest/gtest.h>

#include "text/pretokenizer.h"

namespace onelane {
namespace {

std::vector<std::string> split(std::string_view pattern, std::string_view text) {
  PreTokenizer pretokenizer;
  const auto added = pretokenizer.add_regex(pattern);
  EXPECT_TRUE(added) << added.error().message;
  std::vector<std::string_view> pieces = {text};
  EXPECT_TRUE(pretokenizer.split(pieces));
  return {pieces.begin(), pieces.end()};
}
using Pieces = std::vector<std::string>;

TEST(RegexDialect, WhiteSpaceIsUnicodeWhiteSpace) {
  EXPECT_EQ(split(R"(\s+)", "a\u180Eb\u0085c\u2028\u3000d"), (Pieces{"a\u180Eb", "\u0085", "c", "\u2028\u3000", "d"}));
  EXPECT_EQ(split(R"(\s+(?!\S)|\s+)", "a   b  "), (Pieces{"a", "  ", " ", "b", "  "}));
  EXPECT_EQ(split(R"([\s,]+)", "a, b"), (Pieces{"a", ", ", "b"}));
}

TEST(RegexDialect, CategoriesReachUnicode16) {
  // U+0897 (mark), U+10D40 (digit), U+A7CB (letter) are of Unicode 16.
  EXPECT_EQ(split(R"([\p{L}\p{M}]+)",
                  "1\uA7CB\u0897"
                  "1"),
            (Pieces{"1", "\uA7CB\u0897", "1"}));
  EXPECT_EQ(split(R"(\p{N})", "a\U00010D40"), (Pieces{"a", "\U00010D40"}));
  EXPECT_EQ(split(R"([^\p{L}]+)", "\uA7CB!?"), (Pieces{"\uA7CB", "!?"}));
  EXPECT_EQ(split(R"(\P{N}+)", "12ab"), (Pieces{"12", "ab"}));
}

TEST(RegexDialect, CodePointEscapes) { EXPECT_EQ(split(R"([\u4e00-\u9fa5]+)", "a你好b"), (Pieces{"a", "你好", "b"})); }

TEST(RegexDialect, RefusesWhatMeansSomethingElse) {
  for (const char* pattern :
       {R"(\h)", R"(\w+)", R"(\d)", "^a", "a$", "[a[bc]]", "[a&&b]", R"([\S])", R"([\P{L}])", "(?<n>a)", "(*UCP)a",
        "a{,3}", "a{2}+", R"(\u12)", R"(\pL)", R"(\p{^L})", "[abc", "[]a]", "a\\"}) {
    const auto rewritten = pcre2_pattern(pattern);
    ASSERT_FALSE(rewritten) << pattern;
    EXPECT_EQ(rewritten.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(rewritten.error().message.find("offset"), std::string::npos);
  }
}

TEST(PreTokenizer, RefusesEmptyMatchesAndBadPatterns) {
  PreTokenizer pretokenizer;
  EXPECT_FALSE(pretokenizer.add_regex("a*"));
  EXPECT_FALSE(pretokenizer.add_regex("(a"));
  EXPECT_FALSE(pretokenizer.add_regex("\\p{Nonsense}"));
  EXPECT_FALSE(pretokenizer.add_literal(""));
}

TEST(PreTokenizer, LiteralSplit) {
  PreTokenizer pretokenizer;
  ASSERT_TRUE(pretokenizer.add_literal("a.c"));
  std::vector<std::string_view> pieces = {"abca.ca.c"};
  ASSERT_TRUE(pretokenizer.split(pieces));
  EXPECT_EQ(Pieces(pieces.begin(), pieces.end()), (Pieces{"abc", "a.c", "a.c"}));
}

TEST(PreTokenizer, LaterSplitsSeeOnlyTheirPiece) {
  // In "  1" the second split must not see the digit that the first one cut away.
  PreTokenizer pretokenizer;
  ASSERT_TRUE(pretokenizer.add_regex(R"(\p{N})"));
  ASSERT_TRUE(pretokenizer.add_regex(R"(\s+(?!\S)|\s+)"));
  std::vector<std::string_view> pieces = {"  1"};
  ASSERT_TRUE(pretokenizer.split(pieces));
  EXPECT_EQ(Pieces(pieces.begin(), pieces.end()), (Pieces{"  ", "1"}));
}

}  // namespace
}  // namespace onelane
