#include "grammar/grammar.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <optional>
#include <stdexcept>
#include <variant>

#include <xgrammar/xgrammar.h>

#include "base/format.h"
#include "grammar/xgrammar_hooks.h"

namespace onelane {
namespace {

using Kind = GrammarSource::Kind;

// The tokens that may come next, a bit each.
class TokenMask {
 public:
  explicit TokenMask(int vocab) : words_(static_cast<size_t>(xgrammar::GetBitmaskSize(vocab))) {
    shape_ = static_cast<int64_t>(words_.size());
    tensor_.data = words_.data();
    tensor_.device = {kDLCPU, 0};
    tensor_.ndim = 1;
    tensor_.dtype = xgrammar::GetBitmaskDLType();
    tensor_.shape = &shape_;
  }
  TokenMask(const TokenMask&) = delete;
  TokenMask& operator=(const TokenMask&) = delete;

  void fill(xgrammar::GrammarMatcher& matcher) {
    // False: nothing is forbidden, and the bits were not written.
    if (!matcher.FillNextTokenBitmask(&tensor_)) std::fill(words_.begin(), words_.end(), -1);
  }
  void only(int32_t token) {
    std::fill(words_.begin(), words_.end(), 0);
    words_[static_cast<size_t>(token) / 32] = static_cast<int32_t>(1u << (token % 32));
  }
  bool empty() const {
    return std::all_of(words_.begin(), words_.end(), [](int32_t word) { return word == 0; });
  }

  void forbid_others(std::span<float> logits) const {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (size_t first = 0; first < logits.size(); first += 32) {
      const size_t count = std::min<size_t>(32, logits.size() - first);
      const auto bits = first / 32 < words_.size() ? static_cast<uint32_t>(words_[first / 32]) : 0u;
      if (bits == 0) {
        std::fill_n(logits.begin() + static_cast<ptrdiff_t>(first), count, kNever);
      } else if (bits != ~0u) {
        for (size_t i = 0; i < count; ++i) {
          if ((bits >> i & 1) == 0) logits[first + i] = kNever;
        }
      }
    }
  }

 private:
  std::vector<int32_t> words_;
  int64_t shape_ = 0;
  DLTensor tensor_{};
};

class GrammarFilter final : public TokenFilter {
 public:
  GrammarFilter(const xgrammar::CompiledGrammar& grammar, double mask_seconds)
      : matcher_(grammar),
        mask_(grammar.GetTokenizerInfo().GetVocabSize()),
        end_(matcher_.GetStopTokenIds().front()),
        mask_seconds_(mask_seconds) {}

  void apply(std::span<float> logits) override {
    if (matcher_.IsTerminated()) {
      mask_.only(end_);
    } else {
      within_budget([&] { mask_.fill(matcher_); });
    }
    mask_.forbid_others(logits);
  }

  void accept(int32_t token) override {
    if (matcher_.IsTerminated()) return;  // ignore_eos: end tokens until the limit
    within_budget([&] {
      if (matcher_.AcceptToken(token)) return;
      throw std::runtime_error(format("the grammar does not take token {}, which it allowed", token));
    });
  }

 private:
  template <class Work>
  void within_budget(Work&& work) {
    try {
      const XgrammarBudget budget(mask_seconds_);
      work();
    } catch (const XgrammarBudgetSpent& spent) {
      throw std::runtime_error(
          format("the grammar is too ambiguous: {} to say what may come next; write it so that a text has one reading",
                 spent.what()));
    }
  }

  xgrammar::GrammarMatcher matcher_;
  TokenMask mask_;
  const int32_t end_;
  const double mask_seconds_;
};

// A literal of XGrammar's EBNF.
std::string ebnf_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string choice_ebnf(const std::vector<std::string>& choices) {
  std::string out = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) out += (i > 0 ? " | " : "") + ebnf_literal(choices[i]);
  return out;
}

xgrammar::Grammar json_grammar(const std::string& schema) {
  return xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/true, std::nullopt, std::nullopt,
                                           /*strict_mode=*/true, Grammar::kMaxWhitespace);
}

// Throws what XGrammar throws.
xgrammar::Grammar parse(const GrammarSource& source, const xgrammar::TokenizerInfo& tokenizer) {
  switch (source.kind) {
    case Kind::kJsonObject:
      return json_grammar(R"({"type": "object"})");
    case Kind::kJsonSchema:
      return json_grammar(source.texts.front());
    case Kind::kRegex:
      return xgrammar::Grammar::FromRegex(source.texts.front());
    case Kind::kGrammar:
      // As in vLLM, "::=" tells the two notations apart.
      if (source.texts.front().find("::=") != std::string::npos) {
        return xgrammar::Grammar::FromEBNF(source.texts.front());
      }
      return xgrammar::Grammar::FromLark(source.texts.front(), tokenizer);
    case Kind::kChoice:
      return xgrammar::Grammar::FromEBNF(choice_ebnf(source.texts));
    case Kind::kStructuralTag:
      break;
  }
  auto tag = xgrammar::Grammar::FromStructuralTag(source.texts.front(), tokenizer);
  if (auto* grammar = std::get_if<xgrammar::Grammar>(&tag)) return *grammar;
  throw std::runtime_error(std::visit([](const auto& error) { return std::string(error.what()); }, std::get<1>(tag)));
}

}  // namespace

struct Grammar::Compiled {
  xgrammar::CompiledGrammar grammar;
};

Grammar::Grammar(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
Grammar::~Grammar() = default;

Result<std::shared_ptr<const Grammar>> Grammar::compile(const GrammarSource& source,
                                                        const xgrammar::TokenizerInfo& tokenizer, double seconds,
                                                        const std::atomic<bool>* stop) {
  const auto refused = [&](std::string_view why) {
    return Error{ErrorCode::kInvalidArgument, format("{}: {}", source.field, why)};
  };
  try {
    XgrammarWarnings warnings;
    XgrammarBudget budget(seconds, stop);
    // No cache of its own: it would know a grammar again, and not the warnings.
    xgrammar::GrammarCompiler compiler(tokenizer, /*max_threads=*/1, /*cache_enabled=*/false);
    auto compiled = std::make_unique<Compiled>(compiler.CompileGrammar(parse(source, tokenizer)));
    if (!warnings.texts().empty()) {
      return refused(format("cannot be kept to in full: {}", fmt::join(warnings.texts(), "; ")));
    }
    xgrammar::GrammarMatcher matcher(compiled->grammar);
    TokenMask first(tokenizer.GetVocabSize());
    first.fill(matcher);
    if (first.empty()) return refused("no text fits it");
    return std::shared_ptr<const Grammar>(new Grammar(std::move(compiled)));
  } catch (const XgrammarBudgetSpent& spent) {
    return refused(format("is too complex: {} to compile it", spent.what()));
  } catch (const std::exception& thrown) {
    return refused(thrown.what());
  }
}

std::shared_ptr<TokenFilter> Grammar::filter(double mask_seconds) const {
  return std::make_shared<GrammarFilter>(compiled_->grammar, mask_seconds);
}

size_t Grammar::bytes() const { return compiled_->grammar.MemorySizeBytes(); }

}  // namespace onelane
