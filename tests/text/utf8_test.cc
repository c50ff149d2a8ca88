#include "text/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace onelane {
namespace {

TEST(Utf8, NamesTheFirstBadByte) {
  EXPECT_FALSE(first_invalid_utf8("aé你👍"));
  EXPECT_EQ(first_invalid_utf8("ab\xFF"), 2u);
  EXPECT_EQ(first_invalid_utf8("\xC0\x80"), 0u) << "overlong";
  EXPECT_EQ(first_invalid_utf8("a\xED\xA0\x80"), 1u) << "surrogate";
  EXPECT_EQ(first_invalid_utf8("\xF4\x90\x80\x80"), 0u) << "beyond U+10FFFF";
  EXPECT_EQ(first_invalid_utf8("é\xE4\xBD"), 2u) << "cut off";
  const auto checked = check_utf8("ok\x80", "prompt");
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().message, "prompt is not UTF-8: byte 0x80 at offset 2");
}

TEST(Utf8, CodePointsRoundTrip) {
  for (char32_t c = 0; c < 0x110000; c += 7) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_code_point(text, c);
    size_t length = 0;
    ASSERT_EQ(first_code_point(text, length), c);
    ASSERT_EQ(length, text.size());
    ASSERT_FALSE(first_invalid_utf8(text));
  }
}

TEST(Utf8Stream, ReplacesLikePython) {
  // bytes.decode("utf-8", errors="replace") of the same bytes.
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"a\xE4\xBD", "a\uFFFD"},
      {"\xE4\xBDz", "\uFFFDz"},
      {"\xF0\x9F\x91", "\uFFFD"},
      {"\xC0\x80", "\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\x80\x80", "\uFFFD\uFFFD"},
      {"\xE4\xE4\xBD\xA0", "\uFFFD你"},
  };
  for (const auto& [bytes, text] : cases) {
    Utf8Stream stream;
    const std::string replaced = stream.push(bytes);
    EXPECT_EQ(replaced + stream.flush(), text);
  }
}

TEST(Utf8Stream, AnyCutGivesTheSameText) {
  EXPECT_TRUE(
      rc::check("any cut gives the same valid text", [](const std::string& bytes, const std::vector<uint8_t>& cuts) {
        Utf8Stream whole;
        std::string expected = whole.push(bytes);
        expected += whole.flush();
        RC_ASSERT(!first_invalid_utf8(expected));
        Utf8Stream stream;
        std::string text;
        std::string_view rest = bytes;
        for (const uint8_t cut : cuts) {
          const size_t length = std::min<size_t>(cut % 5, rest.size());
          const std::string out = stream.push(rest.substr(0, length));
          RC_ASSERT(!first_invalid_utf8(out));
          text += out;
          rest.remove_prefix(length);
        }
        text += stream.push(rest);
        text += stream.flush();
        RC_ASSERT(text == expected);
      }));
}

}  // namespace
}  // namespace onelane
