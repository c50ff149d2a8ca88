// Tokenizer files and texts: no file may crash the reader, and what a tokenizer encodes it must decode to the same
// text.
//
// The first byte chooses: a file made of the rest, or text for a small good tokenizer.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "text/byte_level.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

onelane::Tokenizer good_tokenizer() {
  using Json = nlohmann::ordered_json;
  Json vocab = Json::object();
  for (int b = 0; b < 256; ++b) vocab[onelane::byte_level_character(static_cast<uint8_t>(b))] = b;
  const char* merges[] = {"a a", "aa a", "aaa aaa", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "Ġ a", "1 2", "a 1"};
  int next = 256;
  for (std::string_view merge : merges) {
    std::string joined(merge);
    joined.erase(joined.find(' '), 1);
    vocab[joined] = next++;
  }
  Json file = Json::parse(R"({"added_tokens": [{"id": 300, "content": "<|a|>", "special": true, "normalized": false},
    {"id": 301, "content": "<|a|>>", "special": false, "normalized": true}], "decoder": {"type": "ByteLevel"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}"}, "behavior": "Isolated"},
      {"type": "Split", "pattern": {"Regex": "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated"},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
    "model": {"type": "BPE"}})");
  file["model"]["vocab"] = vocab;
  file["model"]["merges"] = merges;
  auto tokenizer = onelane::Tokenizer::parse(file.dump(), "good");
  ONELANE_CHECK(tokenizer.has_value(), "the built-in tokenizer is good");
  return *std::move(tokenizer);
}

void check_text(const onelane::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  if (!ids) return;
  ONELANE_CHECK(tokenizer.decode(*ids) == text, "decode(encode(text)) is the text");
  onelane::Detokenizer stream(tokenizer);
  std::string again;
  for (const int32_t id : *ids) again += stream.push(id);
  ONELANE_CHECK(again + stream.flush() == text, "so is the stream of its tokens");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const onelane::Tokenizer good = good_tokenizer();
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2) {
    const auto ids = good.encode(rest);
    ONELANE_CHECK(ids.has_value() == !onelane::first_invalid_utf8(rest), "exactly UTF-8 is encoded");
    check_text(good, rest);
  } else if (const auto tokenizer = onelane::Tokenizer::parse(rest, "fuzz")) {
    check_text(*tokenizer, "hello  12345 \n\n <|a|> é你👍");
  }
  return 0;
}
