#include "text/detokenizer.h"

#include <rapidcheck.h>

#include "text_fixture.h"

namespace onelane {
namespace {

const Tokenizer& tokenizer() {
  static const auto loaded = Tokenizer::parse(small_tokenizer().dump(), "small");
  EXPECT_TRUE(loaded);
  return *loaded;
}

TEST(Detokenizer, WaitsForWholeCharacters) {
  const auto ids = tokenizer().encode("a👍b");
  ASSERT_TRUE(ids);
  Detokenizer detokenizer(tokenizer());
  std::vector<std::string> texts;
  for (const int32_t id : *ids) texts.push_back(detokenizer.push(id));
  EXPECT_EQ(texts, (std::vector<std::string>{"a", "", "", "", "👍", "b"}));
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, FlushReplacesWhatIsUnfinished) {
  const auto ids = tokenizer().encode("👍");
  ASSERT_TRUE(ids);
  Detokenizer detokenizer(tokenizer());
  EXPECT_EQ(detokenizer.push(ids->at(0)), "");
  EXPECT_EQ(detokenizer.push(ids->at(1)), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, SkipsSpecialTokensOnlyWhenAsked) {
  Detokenizer all(tokenizer());
  EXPECT_EQ(all.push(260), "<s>");
  Detokenizer plain(tokenizer(), true);
  EXPECT_EQ(plain.push(260), "");
  EXPECT_EQ(plain.push(261), "<s>>");
  EXPECT_EQ(plain.push(1 << 30), "");
}

TEST(Detokenizer, StreamEqualsWholeDecode) {
  EXPECT_TRUE(rc::check("any ids, token by token, give decode(ids)", [] {
    const auto ids = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange<int32_t>(-2, 270));
    Detokenizer detokenizer(tokenizer());
    std::string text;
    for (const int32_t id : ids) text += detokenizer.push(id);
    RC_ASSERT(text + detokenizer.flush() == tokenizer().decode(ids));
  }));
}

}  // namespace
}  // namespace onelane
