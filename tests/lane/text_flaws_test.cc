#include "lane/text_flaws.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "lane/hay.h"

namespace onelane {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(TextFlaws, ALoopIsFourCyclesAndEnoughOfThem) {
  const std::string cycle = repeated("x", 100) + "the end of a cycle that has some length, about 170 characters. ";
  EXPECT_TRUE(find_flaws("Once " + repeated(cycle, 4)).loop);
  EXPECT_FALSE(find_flaws(repeated(cycle, 3)).loop);
  EXPECT_FALSE(find_flaws(repeated("ab ", 50)).loop) << "150 characters";
  EXPECT_TRUE(find_flaws(repeated("ab ", 200)).loop);
  EXPECT_FALSE(find_flaws(repeated(cycle, 4) + "But then it went on with something else.").loop);
}

TEST(TextFlaws, RepeatedRunsCountWithoutAStrictCycle) {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text +=
        "the same words, eight and some more, come again and again and again, line number " + std::to_string(i) + "\n";
  EXPECT_TRUE(find_flaws(text).loop);
}

TEST(TextFlaws, PlainTextHasNone) {
  const TextFlaws flaws = find_flaws(make_hay({.seed = 3, .characters = 20000, .facts = {}}));
  EXPECT_FALSE(flaws.any());
  EXPECT_FALSE(find_flaws("").any());
  EXPECT_FALSE(find_flaws("a < b and b > c | d, 12|>3 is no mark").loop);
}

TEST(TextFlaws, MarksAndScripts) {
  for (const char* bad : {"</think>", "a <think> b", "<|im_end|>", "a\xef\xbf\xbd", "<\xef\xbd\x9cUser\xef\xbd\x9c>"}) {
    EXPECT_FALSE(find_flaws(bad).garbled.empty()) << bad;
  }
  EXPECT_THAT(find_flaws("ordinaryслово").garbled, Contains(HasSubstr("script")));
  EXPECT_THAT(find_flaws("ordinary слово, 東京Tower").garbled, IsEmpty());
}

RC_GTEST_PROP(TextFlaws, AnyTextIsReadAndAnyLoopIsFound, ()) {
  const auto text = *rc::gen::container<std::string>(rc::gen::inRange<char>(' ', '~'));
  find_flaws(text);
  RC_PRE(!text.empty());
  const std::string loop = repeated(text, 4 + static_cast<int>(600 / text.size()));
  const size_t period = ending_cycle(loop, 4, 512);
  RC_ASSERT(period > 0u && period <= text.size());
}

}  // namespace
}  // namespace onelane
