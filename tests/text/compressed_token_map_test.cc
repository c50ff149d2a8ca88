#include "text/compressed_token_map.h"

#include "text_fixture.h"

namespace onelane {
namespace {

// Stored: computed with the normalizers of Hugging Face tokenizers by tests/text/tokenizer_oracle.py.
TEST(CompressedTokenMap, EqualsHuggingFaceNormalizers) {
  const auto tokenizer = Tokenizer::load(repository_file("models/mini-v41/tokenizer.json"));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto stored = nlohmann::json::parse(read_or_fail(repository_file("tests/data/tokenizer_vectors.json")));
  const auto map = compressed_token_map(*tokenizer);
  ASSERT_TRUE(map) << map.error().message;
  const auto expected = stored["compressed_token_map"].get<std::vector<int32_t>>();
  EXPECT_EQ(map->number, expected);
  EXPECT_EQ(map->count, *std::max_element(expected.begin(), expected.end()) + 1);
}

TEST(CompressedTokenMap, FoldsCaseAccentsAndSpace) {
  auto file = small_tokenizer();
  int next = 262;
  const auto add = [&](const char* content) {
    file["added_tokens"].push_back({{"id", next}, {"content", content}, {"normalized", false}, {"special", false}});
    return next++;
  };
  const int upper = add("HE"), accent = add("h\u00e9"), spaced = add(" he\t"), wide = add("ＨＥ"), spaces = add(" \n "),
            enclosed = add("he\u20dd"), no_break = add("\u00a0"), dotted = add("\u0130x"), plain = add("ix"),
            quad = add("\u2003\u2003");
  const auto tokenizer = Tokenizer::parse(file.dump(), "small");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto map = compressed_token_map(*tokenizer);
  ASSERT_TRUE(map);
  const auto number = [&](int id) { return map->number[static_cast<size_t>(id)]; };
  for (const int id : {upper, accent, spaced, wide, enclosed}) EXPECT_EQ(number(id), number(256)) << id;
  const int space = tokenizer->token_to_id("Ġ").value();
  EXPECT_EQ(number(spaces), number(space));
  EXPECT_EQ(number(no_break), number(space)) << "NFKC makes it a space";
  EXPECT_EQ(number(quad), number(space));
  EXPECT_EQ(number(dotted), number(plain));
  // A lone continuation byte is no text: its raw token is its key.
  EXPECT_NE(number(tokenizer->token_to_id(byte_level_character(0x80)).value()),
            number(tokenizer->token_to_id(byte_level_character(0x81)).value()));
}

TEST(CompressedTokenMap, RefusesGaps) {
  auto file = small_tokenizer();
  file["added_tokens"][1]["id"] = 263;
  const auto tokenizer = Tokenizer::parse(file.dump(), "small");
  ASSERT_TRUE(tokenizer);
  const auto map = compressed_token_map(*tokenizer);
  ASSERT_FALSE(map);
  EXPECT_NE(map.error().message.find("no token 261"), std::string::npos);
}

}  // namespace
}  // namespace onelane
