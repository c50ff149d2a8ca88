#include "text/tokenizer.h"

#include <functional>

#include <rapidcheck.h>

#include "text/utf8.h"
#include "text_fixture.h"

namespace onelane {
namespace {

const Tokenizer& mini() {
  static const auto loaded = Tokenizer::load(repository_file("models/mini-v41/tokenizer.json"));
  EXPECT_TRUE(loaded) << loaded.error().message;
  return *loaded;
}

Tokenizer small(const std::function<void(nlohmann::ordered_json&)>& change = {}) {
  auto file = small_tokenizer();
  if (change) change(file);
  auto tokenizer = Tokenizer::parse(file.dump(), "small");
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return *std::move(tokenizer);
}
using Ids = std::vector<int32_t>;

// Stored answers of Hugging Face tokenizers; tests/text/tokenizer_oracle.py makes them.
TEST(Tokenizer, EqualsHuggingFaceOnStoredVectors) {
  const std::string file = read_or_fail(repository_file("models/mini-v41/tokenizer.json"));
  const auto stored = nlohmann::json::parse(read_or_fail(repository_file("tests/data/tokenizer_vectors.json")));
  ASSERT_EQ(stored["about"]["tokenizer_sha256"], sha256(file))
      << "the tokenizer changed: run tokenizer_oracle.py again";
  ASSERT_GE(stored["vectors"].size(), 300u);
  for (const auto& [text, ids] : stored["vectors"].get<std::vector<std::pair<std::string, Ids>>>()) {
    const auto encoded = mini().encode(text);
    ASSERT_TRUE(encoded) << encoded.error().message;
    EXPECT_EQ(*encoded, ids) << text;
    EXPECT_EQ(mini().decode(*encoded), text);
  }
}

TEST(Tokenizer, MergesLowestRankFirstAndLeftmost) {
  const Tokenizer tokenizer = small();
  EXPECT_EQ(*tokenizer.encode("hehell"), (Ids{256, 258}));
  EXPECT_EQ(*tokenizer.encode("lll"), (Ids{257, tokenizer.token_to_id("l").value()}));
}

TEST(Tokenizer, LongPiecesMergeLikeShortOnes) {
  // The same piece below and above the length where the heap takes over: tokens must repeat.
  const Tokenizer tokenizer = small();
  std::string text;
  Ids expected;
  for (int i = 0; i < 100; ++i) {
    text += "hello!l";
    expected.insert(expected.end(), {258, 259, tokenizer.token_to_id("l").value()});
    EXPECT_EQ(*tokenizer.encode(text), expected);
  }
}

TEST(Tokenizer, IgnoreMergesTakesWholePieces) {
  const auto change = [](nlohmann::ordered_json& f) {
    f["model"]["merges"] = {"h e"};
    f["model"]["ignore_merges"] = true;
  };
  EXPECT_EQ(*small(change).encode("hell"), (Ids{258}));
}

TEST(Tokenizer, AddedTokensAreLongestAndLiteral) {
  const Tokenizer tokenizer = small();
  EXPECT_EQ(*tokenizer.encode("<s><s>>he<s"),
            (Ids{260, 261, 256, tokenizer.token_to_id("<").value(), tokenizer.token_to_id("s").value()}));
  EXPECT_TRUE(tokenizer.is_special(260));
  EXPECT_FALSE(tokenizer.is_special(261));
  EXPECT_TRUE(tokenizer.is_added(261));
  EXPECT_EQ(tokenizer.decode(Ids{260, 256, 261}, true), "he<s>>");
}

TEST(Tokenizer, NormalizedAddedTokensComeSecond) {
  const auto change = [](nlohmann::ordered_json& f) {
    f["added_tokens"][1]["normalized"] = true;  // "<s>>" is looked for only where "<s>" was not found
  };
  const Tokenizer tokenizer = small(change);
  EXPECT_EQ(*tokenizer.encode("<s>>"), (Ids{260, tokenizer.token_to_id(">").value()}));
}

TEST(Tokenizer, InvalidUtf8IsRefusedWithItsOffset) {
  const auto ids = small().encode("hello \xE4\xBD");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(ids.error().message.find("offset 6"), std::string::npos) << ids.error().message;
}

TEST(Tokenizer, IdsOutsideGiveNothing) {
  const Tokenizer tokenizer = small();
  for (const int32_t id : {-1, 262, 1 << 30}) {
    EXPECT_EQ(tokenizer.bytes(id), "");
    EXPECT_EQ(tokenizer.raw(id), "");
    EXPECT_FALSE(tokenizer.is_special(id));
  }
  EXPECT_EQ(tokenizer.decode(Ids{256, -5, 9999, 257}), "hell");
  EXPECT_FALSE(tokenizer.token_to_id("no such token"));
}

TEST(Tokenizer, DecodeOfEncodeIsTheText) {
  EXPECT_TRUE(rc::check("decode(encode(text)) == text", [] {
    const auto characters = *rc::gen::container<std::vector<uint32_t>>(rc::gen::inRange<uint32_t>(0, 0x110000));
    std::string text;
    for (const uint32_t c : characters) {
      if (c < 0xD800 || c >= 0xE000) append_code_point(text, c);
    }
    const auto ids = mini().encode(text);
    RC_ASSERT(ids.has_value());
    RC_ASSERT(mini().decode(*ids) == text);
  }));
}

// Quadratic time would be hours here.
TEST(Tokenizer, TenMegabyteRunsEnd) {
  for (const char c : {'a', ' ', '\n', '<', '7'}) {
    const std::string text = std::string(10'000'000, c) + "x";
    const auto ids = mini().encode(text);
    ASSERT_TRUE(ids) << c << ": " << ids.error().message;
    EXPECT_EQ(mini().decode(*ids), text);
  }
}

}  // namespace
}  // namespace onelane
