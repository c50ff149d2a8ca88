// Grammars over mini-v41's vocabulary, followed without a model.
#pragma once

#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <xgrammar/tokenizer_info.h>

#include "grammar/compiler.h"
#include "support/data.h"

namespace onelane {

inline constexpr int32_t kEnd = 1;

inline const Tokenizer& mini_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(repository_path("models/mini-v41/tokenizer.json")).value();
  return tokenizer;
}

inline const xgrammar::TokenizerInfo& mini_vocabulary() {
  static const xgrammar::TokenizerInfo info = [] {
    std::vector<std::string> bytes;
    for (int32_t id = 0; id < mini_tokenizer().size(); ++id) {
      bytes.emplace_back(mini_tokenizer().is_added(id) ? "" : std::string(mini_tokenizer().bytes(id)));
    }
    return xgrammar::TokenizerInfo(bytes, xgrammar::VocabType::RAW, mini_tokenizer().size(), std::vector{kEnd});
  }();
  return info;
}

inline GrammarSource source_of(GrammarSource::Kind kind, std::vector<std::string> texts = {}) {
  return {.kind = kind, .texts = std::move(texts), .field = "the_field"};
}
inline GrammarSource schema_of(std::string schema) {
  return source_of(GrammarSource::Kind::kJsonSchema, {std::move(schema)});
}

inline std::vector<float> logits_of(TokenFilter& filter) {
  std::vector<float> logits(static_cast<size_t>(mini_tokenizer().size()), 0.0f);
  filter.apply(logits);
  return logits;
}

// Whether an answer may be `text` and end there.
inline bool fits(const Grammar& grammar, const std::string& text) {
  const auto filter = grammar.filter();
  std::vector<int32_t> tokens = mini_tokenizer().encode(text).value();
  tokens.push_back(kEnd);
  for (const int32_t token : tokens) {
    if (!std::isfinite(logits_of(*filter)[static_cast<size_t>(token)])) return false;
    filter->accept(token);
  }
  return true;
}

// A text of tokens drawn evenly from those allowed, for at most `limit` of them; nothing when it did not end by itself.
inline std::optional<std::string> random_text(const Grammar& grammar, unsigned seed, int limit) {
  const auto filter = grammar.filter();
  std::mt19937 random(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < limit; ++i) {
    const std::vector<float> logits = logits_of(*filter);
    std::vector<int32_t> allowed;
    for (size_t id = 0; id < logits.size(); ++id) {
      if (std::isfinite(logits[id])) allowed.push_back(static_cast<int32_t>(id));
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing may come behind " << mini_tokenizer().decode(tokens);
      return std::nullopt;
    }
    // Half of the time an answer that may end does: otherwise few would.
    const bool end = allowed.front() == kEnd && random() % 2 == 0;
    const int32_t token = end ? kEnd : allowed[random() % allowed.size()];
    if (token == kEnd) return mini_tokenizer().decode(tokens);
    filter->accept(token);
    tokens.push_back(token);
  }
  return std::nullopt;
}

}  // namespace onelane
