#include "lane/hay.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "lane/sha256.h"

namespace onelane {
namespace {

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    out.push_back(text.substr(at, end - at));
  }
  return out;
}

// Receipts name prompts by hash, so hay is the same everywhere and for ever.
TEST(Hay, IsFrozen) {
  const std::string hay = make_hay({.seed = 1, .characters = 100000, .facts = {}});
  EXPECT_EQ(sha256(hay), "f87a868923a9a9b6ad4aaffda27db9bc1d2b01fb2c1ac0db5d99ed4444cc9709") << hay.substr(0, 400);
}

TEST(Hay, HasNoDigitsAndFewRepeats) {
  const std::string hay = make_hay({.seed = 7, .characters = 200000, .facts = {}});
  EXPECT_TRUE(std::none_of(hay.begin(), hay.end(), [](unsigned char c) { return std::isdigit(c); }));
  const auto all = lines(hay);
  EXPECT_GT(std::set(all.begin(), all.end()).size(), all.size() * 9 / 10);
}

RC_GTEST_PROP(Hay, FactsStandWhereTheyWereAskedFor, ()) {
  HaySpec spec{.seed = *rc::gen::arbitrary<uint64_t>(), .characters = *rc::gen::inRange<size_t>(0, 20000), .facts = {}};
  const std::string bare = make_hay(spec);
  RC_ASSERT(bare.size() <= spec.characters);
  RC_ASSERT(spec.characters - bare.size() < 200);
  const int count = *rc::gen::inRange(1, 5);
  for (int i = 0; i < count; ++i)
    spec.facts.push_back({*rc::gen::inRange(0, 1001), "fact number " + std::to_string(i)});
  const std::string hay = make_hay(spec);
  std::string left = hay;
  for (const HayFact& fact : spec.facts) {
    const std::string line = fact.text + "\n";
    const size_t at = hay.find(line);
    RC_ASSERT(at != std::string::npos);
    // Off by a line and by the other facts at most.
    const double place = static_cast<double>(spec.characters) * fact.at_permille / 1000;
    RC_ASSERT(static_cast<double>(at) <= place + 300);
    RC_ASSERT(static_cast<double>(at) + 200 >= place);
    left.erase(left.find(line), line.size());
  }
  RC_ASSERT(left == bare);
}

}  // namespace
}  // namespace onelane
