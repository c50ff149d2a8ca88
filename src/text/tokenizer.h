// Tokenizer: text to token ids and back, from a Hugging Face tokenizer.json.
//
// Implements what DeepSeek ships: byte-level BPE, literal added tokens, a pre-tokeniser made of isolated splits. A file
// that asks for anything else is refused with the field's name, because a tokenizer that is nearly right is worse than
// none. Ids agree with Hugging Face tokenizers (no post-processing: the prompt encoder writes BOS as text).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"

namespace onelane {

class Tokenizer {
 public:
  // Reads `path`, a tokenizer.json. Errors name the file and the field.
  static Result<Tokenizer> load(const std::string& path);
  // The same from JSON text; `name` stands for the file in errors.
  static Result<Tokenizer> parse(std::string_view json, const std::string& name);

  // The ids of `text`. Errors: invalid UTF-8 (with its byte offset), 2 GiB and more. Safe to call from several threads.
  Result<std::vector<int32_t>> encode(std::string_view text) const;

  // The text of `ids`; bytes that are not UTF-8 become U+FFFD. Ids without a token (padding rows of the embedding) give
  // nothing. With `skip_special`, so do tokens flagged special. For token by token output see detokenizer.h.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // Ids run from 0 to size()-1. The functions below return nothing for an id outside, or without a token.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  // The bytes a token stands for; a tag token's are its name.
  std::string_view bytes(int32_t id) const { return known(id) ? view(tokens_[static_cast<size_t>(id)].bytes) : ""; }
  // The token as the file writes it (byte-level characters).
  std::string_view raw(int32_t id) const { return known(id) ? view(tokens_[static_cast<size_t>(id)].raw) : ""; }
  bool is_added(int32_t id) const { return known(id) && tokens_[static_cast<size_t>(id)].added; }
  bool is_special(int32_t id) const { return known(id) && tokens_[static_cast<size_t>(id)].special; }
  std::optional<int32_t> token_to_id(std::string_view raw) const;

 private:
  friend class TokenizerReader;
  struct Token {
    std::string raw;
    std::string bytes;
    bool added = false;
    bool special = false;
  };
  Tokenizer() = default;
  // Not a copy: `condition ? string : ""` would be a temporary.
  static std::string_view view(const std::string& text) { return text; }
  bool known(int32_t id) const { return id >= 0 && id < size(); }

  std::vector<Token> tokens_;
  std::unordered_map<std::string, int32_t> ids_;  // by raw token
  AddedTokens added_;
  PreTokenizer pretokenizer_;
  std::optional<Bpe> bpe_;
  // With "ignore_merges", a piece that is a token as a whole is that token. Keys point into tokens_.
  std::unordered_map<std::string_view, int32_t> whole_pieces_;
};

}  // namespace onelane
