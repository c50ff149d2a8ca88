#include "api/stop_search.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

namespace onelane {
namespace {

// The text before the stop string that is complete first, one character after the other.
std::string expected(const std::string& text, const std::vector<std::string>& stops, std::string& which) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() > longest && text.substr(0, end).ends_with(stop)) {
        longest = stop.size();
        which = stop;
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  which.clear();
  return text;
}

TEST(StopSearch, HoldsBackOnlyWhatCouldBecomeAStop) {
  StopSearch search({"END", "\n\n"});
  EXPECT_EQ(search.push("abcE"), "abc");
  EXPECT_EQ(search.push("N"), "");
  EXPECT_EQ(search.push("x"), "ENx");
  EXPECT_EQ(search.push("a\n"), "a");
  EXPECT_EQ(search.push("\nb"), "");
  EXPECT_TRUE(search.found());
  EXPECT_EQ(search.stop(), "\n\n");
  EXPECT_EQ(search.push("more"), "");
  EXPECT_EQ(search.flush(), "");
}

TEST(StopSearch, WithoutAStopNothingWaits) {
  StopSearch search({"", "zz"});
  EXPECT_EQ(search.push("abc"), "abc");
  EXPECT_EQ(search.push("z"), "");
  EXPECT_EQ(search.flush(), "z");
  EXPECT_FALSE(search.found());
}

RC_GTEST_PROP(StopSearch, DoesNotDependOnTheCuts, ()) {
  const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'));
  const std::string text = *letters;
  const auto stops = *rc::gen::container<std::vector<std::string>>(letters);
  StopSearch search(stops);
  std::string got;
  for (size_t at = 0; at < text.size();) {
    const auto size = *rc::gen::inRange<size_t>(1, text.size() - at + 1);
    got += search.push(text.substr(at, size));
    at += size;
  }
  got += search.flush();
  std::string which;
  RC_ASSERT(got == expected(text, stops, which));
  RC_ASSERT(search.found() == !which.empty());
  RC_ASSERT(search.stop() == which);
}

}  // namespace
}  // namespace onelane
