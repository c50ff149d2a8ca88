// Files that a tokenizer must refuse, each by the field at fault.
#include <functional>

#include <gtest/gtest.h>

#include "text/tokenizer.h"
#include "text_fixture.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

TEST(TokenizerJson, SmallFileIsGood) {
  const auto tokenizer = Tokenizer::parse(small_tokenizer().dump(), "small");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->size(), 262);
  EXPECT_EQ(*tokenizer->encode("hello!"), (std::vector<int32_t>{258, 259}));
}

TEST(TokenizerJson, MergesAsPairs) {
  Json file = small_tokenizer();
  file["model"]["merges"] = Json::parse(R"([["h", "e"], ["l", "l"], ["he", "ll"], ["o", "!"]])");
  const auto tokenizer = Tokenizer::parse(file.dump(), "small");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(*tokenizer->encode("hello!"), (std::vector<int32_t>{258, 259}));
}

TEST(TokenizerJson, RefusesByField) {
  struct Case {
    const char* field;  // must appear in the message
    std::function<void(Json&)> damage;
  };
  const Case cases[] = {
      {"normalizer", [](Json& f) { f["normalizer"] = {{"type", "NFC"}}; }},
      {"truncation", [](Json& f) { f["truncation"] = {{"max_length", 5}}; }},
      {"padding", [](Json& f) { f["padding"] = {{"x", 5}}; }},
      {"post_processor.type", [](Json& f) { f["post_processor"] = {{"type", "TemplateProcessing"}}; }},
      {"decoder.type", [](Json& f) { f["decoder"]["type"] = "Metaspace"; }},
      {"decoder", [](Json& f) { f["decoder"] = nullptr; }},
      {"model.type", [](Json& f) { f["model"]["type"] = "Unigram"; }},
      {"model", [](Json& f) { f.erase("model"); }},
      {"model.dropout", [](Json& f) { f["model"]["dropout"] = 0.1; }},
      {"model.unk_token", [](Json& f) { f["model"]["unk_token"] = "<unk>"; }},
      {"model.byte_fallback", [](Json& f) { f["model"]["byte_fallback"] = true; }},
      {"model.continuing_subword_prefix", [](Json& f) { f["model"]["continuing_subword_prefix"] = "##"; }},
      {"model.end_of_word_suffix", [](Json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }},
      {"model.vocab", [](Json& f) { f["model"]["vocab"] = 3; }},
      {"model.vocab['a']", [](Json& f) { f["model"]["vocab"]["a"] = -1; }},
      {"model.vocab['a']", [](Json& f) { f["model"]["vocab"]["a"] = 1e6; }},
      {"model.vocab['a']", [](Json& f) { f["model"]["vocab"]["a"] = 1u << 30; }},
      {"already belongs", [](Json& f) { f["model"]["vocab"]["he"] = 257; }},
      {"byte 0x61",
       [](Json& f) {
         f["model"]["vocab"].erase("a");
         f["model"]["vocab"]["zz"] = 97;
       }},
      {"model.merges", [](Json& f) { f["model"]["merges"] = nullptr; }},
      {"model.merges[1]", [](Json& f) { f["model"]["merges"][1] = "l"; }},
      {"model.merges[1]", [](Json& f) { f["model"]["merges"][1] = "l l l"; }},
      {"model.merges[1]", [](Json& f) { f["model"]["merges"][1] = {"l", 3}; }},
      {"'zq' is not in model.vocab", [](Json& f) { f["model"]["merges"][1] = "z q"; }},
      {"added_tokens[1].lstrip", [](Json& f) { f["added_tokens"][1]["lstrip"] = true; }},
      {"added_tokens[0].rstrip", [](Json& f) { f["added_tokens"][0]["rstrip"] = true; }},
      {"added_tokens[0].single_word", [](Json& f) { f["added_tokens"][0]["single_word"] = true; }},
      {"added_tokens[0].content", [](Json& f) { f["added_tokens"][0]["content"] = ""; }},
      {"added_tokens[0].id", [](Json& f) { f["added_tokens"][0].erase("id"); }},
      {"added_tokens[0]", [](Json& f) { f["added_tokens"][0]["content"] = "he"; }},
      {"pre_tokenizer", [](Json& f) { f["pre_tokenizer"] = nullptr; }},
      {"pre_tokenizer.type", [](Json& f) { f["pre_tokenizer"]["type"] = "Whitespace"; }},
      {"pretokenizers[0].behavior", [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }},
      {"pretokenizers[0].behavior", [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0].erase("behavior"); }},
      {"pretokenizers[0].invert", [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }},
      {"pretokenizers[0].pattern",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "\\w"}}; }},
      {"pretokenizers[0].pattern", [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = "x"; }},
      {"pretokenizers[0].type", [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["type"] = "Digits"; }},
      {"pretokenizers[2].use_regex", [](Json& f) { f["pre_tokenizer"]["pretokenizers"][2]["use_regex"] = true; }},
      {"pretokenizers[2].add_prefix_space",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][2]["add_prefix_space"] = true; }},
      {"pretokenizers[2].type", [](Json& f) { f["pre_tokenizer"]["pretokenizers"][2]["type"] = "Split"; }},
      {"top level", [](Json& f) { f = Json::array(); }},
  };
  for (const Case& c : cases) {
    Json file = small_tokenizer();
    c.damage(file);
    const auto tokenizer = Tokenizer::parse(file.dump(), "damaged.json");
    ASSERT_FALSE(tokenizer) << c.field;
    EXPECT_TRUE(tokenizer.error().message.starts_with("damaged.json: ")) << tokenizer.error().message;
    EXPECT_NE(tokenizer.error().message.find(c.field), std::string::npos)
        << c.field << " / " << tokenizer.error().message;
  }
}

TEST(TokenizerJson, RefusesTextThatIsNotJson) {
  for (const char* text : {"", "{", "{\"a\": \"\xFF\"}", "[1,2", "nul"}) {
    const auto tokenizer = Tokenizer::parse(text, "t");
    ASSERT_FALSE(tokenizer);
    EXPECT_EQ(tokenizer.error().code, ErrorCode::kCorrupt);
  }
  const auto missing = Tokenizer::load("/nonexistent/tokenizer.json");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("/nonexistent/tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace onelane
