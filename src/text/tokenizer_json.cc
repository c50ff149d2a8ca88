// Reading tokenizer.json. Every field that changes ids is either implemented or refused here.
#include <exception>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostTokens = 1 << 20;     // DeepSeek has 129,280
constexpr size_t kMostAddedBytes = 1 << 22;  // of all added tokens together; DeepSeek has about 30,000

Error unsupported(std::string_view field, std::string_view why) {
  return Error{ErrorCode::kUnsupported, format("{}: {}", field, why)};
}
Error corrupt(std::string_view field, std::string_view why) {
  return Error{ErrorCode::kCorrupt, format("{}: {}", field, why)};
}

const Json& member(const Json& object, const char* key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

// Refuses `object[key]` unless it is absent, null, or equal to one of `accepted`.
Result<void> expect(const Json& object, const std::string& path, const char* key,
                    std::initializer_list<Json> accepted) {
  const Json& value = member(object, key);
  if (value.is_null()) return {};
  for (const Json& good : accepted) {
    if (value == good) return {};
  }
  return unsupported(path + "." + key,
                     format("{} is not supported", value.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

Result<std::string> type_of(const Json& object, const std::string& path) {
  if (!object.is_object()) return corrupt(path, "must be an object");
  const Json& type = member(object, "type");
  if (!type.is_string()) return corrupt(path + ".type", "must be a string");
  return type.get<std::string>();
}

Result<int32_t> checked_id(const Json& value, const std::string& path) {
  if (!value.is_number_integer()) return corrupt(path, "the id must be an integer");
  if (value.is_number_unsigned() ? value.get<uint64_t>() >= uint64_t{kMostTokens} : value.get<int64_t>() < 0) {
    return corrupt(path, format("id {} is outside 0..{}", value.dump(), kMostTokens - 1));
  }
  return value.get<int32_t>();
}

}  // namespace

class TokenizerReader {
 public:
  Result<Tokenizer> read(const Json& root) {
    if (!root.is_object()) return corrupt("top level", "must be a JSON object");
    ONELANE_TRY(read_fixed_fields(root));
    ONELANE_TRY(read_model(root));
    ONELANE_TRY(read_added_tokens(root));
    ONELANE_TRY(read_pre_tokenizer(root));
    return std::move(tokenizer_);
  }

 private:
  using Token = Tokenizer::Token;

  Result<void> read_fixed_fields(const Json& root) {
    ONELANE_TRY(expect(root, "top level", "truncation", {}));
    ONELANE_TRY(expect(root, "top level", "padding", {}));
    const Json& normalizer = member(root, "normalizer");
    const bool none = normalizer.is_null() || normalizer == Json{{"type", "Sequence"}, {"normalizers", Json::array()}};
    if (!none) return unsupported("normalizer", "only null or an empty Sequence is supported");
    const Json& post = member(root, "post_processor");
    if (!post.is_null()) {
      ONELANE_ASSIGN(const std::string type, type_of(post, "post_processor"));
      if (type != "ByteLevel") return unsupported("post_processor.type", format("'{}' is not supported", type));
    }
    const Json& decoder = member(root, "decoder");
    ONELANE_ASSIGN(const std::string type, type_of(decoder, "decoder"));
    if (type != "ByteLevel") return unsupported("decoder.type", format("'{}' is not supported, only ByteLevel", type));
    return {};
  }

  Result<void> read_model(const Json& root) {
    const Json& model = member(root, "model");
    ONELANE_ASSIGN(const std::string type, type_of(model, "model"));
    if (type != "BPE") return unsupported("model.type", format("'{}' is not supported, only BPE", type));
    ONELANE_TRY(expect(model, "model", "dropout", {}));
    ONELANE_TRY(expect(model, "model", "unk_token", {}));
    ONELANE_TRY(expect(model, "model", "continuing_subword_prefix", {""}));
    ONELANE_TRY(expect(model, "model", "end_of_word_suffix", {""}));
    ONELANE_TRY(expect(model, "model", "byte_fallback", {false}));
    ONELANE_TRY(expect(model, "model", "ignore_merges", {false, true}));

    const Json& vocab = member(model, "vocab");
    if (!vocab.is_object()) return corrupt("model.vocab", "must be an object");
    for (const auto& [raw, value] : vocab.items()) {
      const std::string path = format("model.vocab['{}']", raw);
      ONELANE_ASSIGN(const int32_t id, checked_id(value, path));
      ONELANE_TRY(define(id, {raw, byte_level_bytes(raw).value_or(raw), false, false}, path));
    }
    ONELANE_TRY(read_byte_tokens());
    ONELANE_TRY(read_merges(member(model, "merges")));
    if (member(model, "ignore_merges") == true) {
      for (const auto& [raw, id] : tokenizer_.ids_) {
        const std::string& bytes = tokenizer_.tokens_[static_cast<size_t>(id)].bytes;
        if (!bytes.empty()) tokenizer_.whole_pieces_.emplace(bytes, id);
      }
    }
    return {};
  }

  Result<void> define(int32_t id, Token token, const std::string& path) {
    if (token.raw.empty()) return corrupt(path, "an empty token");
    const auto at = static_cast<size_t>(id);
    if (at >= tokenizer_.tokens_.size()) tokenizer_.tokens_.resize(at + 1);
    if (!tokenizer_.tokens_[at].raw.empty()) {
      return corrupt(path, format("id {} already belongs to '{}'", id, tokenizer_.tokens_[at].raw));
    }
    if (!tokenizer_.ids_.emplace(token.raw, id).second) return corrupt(path, "the token has a second id");
    tokenizer_.tokens_[at] = std::move(token);
    return {};
  }

  Result<void> read_byte_tokens() {
    std::array<int32_t, 256> byte_ids{};
    for (int b = 0; b < 256; ++b) {
      const std::string character = byte_level_character(static_cast<uint8_t>(b));
      const auto found = tokenizer_.ids_.find(character);
      byte_ids[static_cast<size_t>(b)] = found == tokenizer_.ids_.end() ? -1 : found->second;
      const bool in_utf8 = b < 0xC0 || (b > 0xC1 && b < 0xF5);
      if (in_utf8 && found == tokenizer_.ids_.end()) {
        return unsupported("model.vocab", format("no token '{}' for the byte 0x{:02x}: some texts could not be encoded",
                                                 character, b));
      }
    }
    tokenizer_.bpe_.emplace(byte_ids);
    return {};
  }

  Result<void> read_merges(const Json& merges) {
    if (!merges.is_array()) return corrupt("model.merges", "must be an array");
    tokenizer_.bpe_->reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const Json& merge = merges[rank];
      const std::string path = format("model.merges[{}]", rank);
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
          return corrupt(path, "must be two tokens with one space between them");
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0];
        right = merge[1];
      } else {
        return corrupt(path, "must be \"left right\" or [\"left\", \"right\"]");
      }
      int32_t id[3];
      const std::string* const parts[3] = {&left, &right, nullptr};
      const std::string joined = left + right;
      for (int i = 0; i < 3; ++i) {
        const std::string& token = parts[i] ? *parts[i] : joined;
        const auto found = tokenizer_.ids_.find(token);
        if (found == tokenizer_.ids_.end()) return corrupt(path, format("'{}' is not in model.vocab", token));
        id[i] = found->second;
      }
      tokenizer_.bpe_->add_merge(id[0], id[1], id[2]);
    }
    return {};
  }

  Result<void> read_added_tokens(const Json& root) {
    const Json& list = member(root, "added_tokens");
    if (list.is_null()) return {};
    if (!list.is_array()) return corrupt("added_tokens", "must be an array");
    size_t bytes = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string path = format("added_tokens[{}]", i);
      const Json& entry = list[i];
      if (!entry.is_object()) return corrupt(path, "must be an object");
      const Json& content = member(entry, "content");
      if (!content.is_string() || content.get_ref<const std::string&>().empty()) {
        return corrupt(path + ".content", "must be a non-empty string");
      }
      for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
        ONELANE_TRY(expect(entry, path, flag, {false}));
      }
      for (const char* flag : {"normalized", "special"}) {
        ONELANE_TRY(expect(entry, path, flag, {false, true}));
      }
      ONELANE_ASSIGN(const int32_t id, checked_id(member(entry, "id"), path + ".id"));
      const auto text = content.get<std::string>();
      bytes += text.size();
      if (bytes > kMostAddedBytes) return unsupported("added_tokens", format("more than {} bytes", kMostAddedBytes));
      const bool special = member(entry, "special") == true;
      const auto known = tokenizer_.ids_.find(text);
      if (known == tokenizer_.ids_.end()) {
        ONELANE_TRY(define(id, {text, text, true, special}, path));
      } else if (known->second == id) {
        tokenizer_.tokens_[static_cast<size_t>(id)] = {text, text, true, special};
        tokenizer_.whole_pieces_.erase(text);
      } else {
        return corrupt(path, format("'{}' already has id {}, here it is {}", text, known->second, id));
      }
      // Absent, "normalized" means the opposite of "special" (Hugging Face's default).
      const Json& normalized = member(entry, "normalized");
      tokenizer_.added_.add(text, id, normalized.is_null() ? !special : normalized == true);
    }
    return {};
  }

  Result<void> read_pre_tokenizer(const Json& root) {
    const Json& top = member(root, "pre_tokenizer");
    ONELANE_ASSIGN(const std::string type, type_of(top, "pre_tokenizer"));
    if (type == "ByteLevel") return read_byte_level(top, "pre_tokenizer");
    if (type != "Sequence") return unsupported("pre_tokenizer.type", format("'{}' is not supported", type));
    const Json& steps = member(top, "pretokenizers");
    if (!steps.is_array() || steps.empty()) return corrupt("pre_tokenizer.pretokenizers", "must be a non-empty array");
    for (size_t i = 0; i < steps.size(); ++i) {
      const std::string path = format("pre_tokenizer.pretokenizers[{}]", i);
      ONELANE_ASSIGN(const std::string step, type_of(steps[i], path));
      const bool last = i + 1 == steps.size();
      if (last != (step == "ByteLevel")) {
        return unsupported(path + ".type",
                           format("'{}' is not supported here: splits come first, ByteLevel last", step));
      }
      if (last) return read_byte_level(steps[i], path);
      ONELANE_TRY(read_split(steps[i], step, path));
    }
    return {};
  }

  Result<void> read_split(const Json& step, const std::string& type, const std::string& path) {
    if (type != "Split") return unsupported(path + ".type", format("'{}' is not supported", type));
    ONELANE_TRY(expect(step, path, "behavior", {"Isolated"}));
    if (member(step, "behavior").is_null()) return corrupt(path + ".behavior", "is missing");
    ONELANE_TRY(expect(step, path, "invert", {false}));
    const Json& pattern = member(step, "pattern");
    if (!pattern.is_object() || pattern.size() != 1 || !pattern.begin()->is_string()) {
      return corrupt(path + ".pattern", "must be {\"Regex\": text} or {\"String\": text}");
    }
    const std::string kind = pattern.begin().key();
    const auto text = pattern.begin()->get<std::string>();
    if (kind != "Regex" && kind != "String")
      return unsupported(path + ".pattern", format("'{}' is not supported", kind));
    auto added =
        kind == "Regex" ? tokenizer_.pretokenizer_.add_regex(text) : tokenizer_.pretokenizer_.add_literal(text);
    if (!added) return std::move(added).error().in(path + ".pattern");
    return {};
  }

  static Result<void> read_byte_level(const Json& step, const std::string& path) {
    if (member(step, "add_prefix_space") != false) return unsupported(path + ".add_prefix_space", "must be false");
    if (member(step, "use_regex") != false) return unsupported(path + ".use_regex", "must be false");
    return {};
  }

  Tokenizer tokenizer_;
};

Result<Tokenizer> Tokenizer::parse(std::string_view json, const std::string& name) {
  try {
    auto read = TokenizerReader().read(Json::parse(json));
    if (!read) return std::move(read).error().in(name);
    return read;
  } catch (const std::exception& error) {
    return Error{ErrorCode::kCorrupt, format("{}: {}", name, error.what())};
  }
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  ONELANE_ASSIGN(const std::string json, read_file(path));
  return parse(json, path);
}

}  // namespace onelane
