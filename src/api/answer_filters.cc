#include "api/answer_filters.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "text/prompt_format.h"

namespace onelane {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void forbid(std::span<float> logits, int32_t token) {
  if (static_cast<size_t>(token) < logits.size()) logits[static_cast<size_t>(token)] = kNever;
}

class ForcedText final : public TokenFilter {
 public:
  ForcedText(const Tokenizer& tokenizer, std::vector<std::string> texts)
      : tokenizer_(tokenizer), texts_(std::move(texts)) {}

  void apply(std::span<float> logits) override {
    if (done_) return;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!continues(static_cast<int32_t>(i))) logits[i] = kNever;
    }
  }

  void accept(int32_t token) override {
    if (done_) return;
    text_ += tokenizer_.bytes(token);
    done_ = std::find(texts_.begin(), texts_.end(), text_) != texts_.end();
  }

  bool continues(int32_t token) const {
    const std::string_view bytes = tokenizer_.bytes(token);
    return !bytes.empty() && std::any_of(texts_.begin(), texts_.end(), [&](const std::string& text) {
      return text.starts_with(text_) && std::string_view(text).substr(text_.size()).starts_with(bytes);
    });
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::string> texts_;
  std::string text_;
  bool done_ = false;
};

class ForbiddenToken final : public TokenFilter {
 public:
  explicit ForbiddenToken(int32_t token) : token_(token) {}
  void apply(std::span<float> logits) override { forbid(logits, token_); }
  void accept(int32_t) override {}

 private:
  const int32_t token_;
};

class AfterToken final : public TokenFilter {
 public:
  AfterToken(int32_t token, int32_t end, std::shared_ptr<TokenFilter> filter)
      : token_(token), end_(end), filter_(std::move(filter)) {}

  void apply(std::span<float> logits) override {
    if (waiting_) return forbid(logits, end_);
    filter_->apply(logits);
  }

  void accept(int32_t token) override {
    if (!waiting_) return filter_->accept(token);
    waiting_ = token != token_;
  }

 private:
  const int32_t token_;
  const int32_t end_;
  std::shared_ptr<TokenFilter> filter_;
  bool waiting_ = true;
};

class EitherText final : public TokenFilter {
 public:
  EitherText(const Tokenizer& tokenizer, std::string text, std::shared_ptr<TokenFilter> filter)
      : text_(tokenizer, {std::move(text)}), filter_(std::move(filter)) {}

  void apply(std::span<float> logits) override {
    if (choice_ == Choice::kText) return text_.apply(logits);
    if (choice_ == Choice::kFilter) return filter_->apply(logits);
    begins_text_.clear();
    for (size_t i = 0; i < logits.size(); ++i) {
      if (text_.continues(static_cast<int32_t>(i))) begins_text_.emplace_back(static_cast<int32_t>(i), logits[i]);
    }
    filter_->apply(logits);
    std::erase_if(begins_text_, [&](const auto& token) { return logits[static_cast<size_t>(token.first)] > kNever; });
    for (const auto& [token, logit] : begins_text_) logits[static_cast<size_t>(token)] = logit;
  }

  void accept(int32_t token) override {
    if (choice_ == Choice::kOpen) {
      const bool text = std::any_of(begins_text_.begin(), begins_text_.end(),
                                    [&](const auto& begin) { return begin.first == token; });
      choice_ = text ? Choice::kText : Choice::kFilter;
    }
    choice_ == Choice::kText ? text_.accept(token) : filter_->accept(token);
  }

 private:
  enum class Choice { kOpen, kText, kFilter };
  ForcedText text_;
  std::shared_ptr<TokenFilter> filter_;
  Choice choice_ = Choice::kOpen;
  std::vector<std::pair<int32_t, float>> begins_text_;  // kOpen: tokens that only the text allows, their logits
};

}  // namespace

std::shared_ptr<TokenFilter> forced_text(const Tokenizer& tokenizer, std::vector<std::string> texts) {
  return std::make_shared<ForcedText>(tokenizer, std::move(texts));
}

std::shared_ptr<TokenFilter> forbidden_token(int32_t token) { return std::make_shared<ForbiddenToken>(token); }

std::shared_ptr<TokenFilter> after_token(int32_t token, int32_t end, std::shared_ptr<TokenFilter> filter) {
  return std::make_shared<AfterToken>(token, end, std::move(filter));
}

std::shared_ptr<TokenFilter> behind_reasoning(const Tokenizer& tokenizer, bool thinking, int32_t end,
                                              std::shared_ptr<TokenFilter> filter) {
  const auto reasoning_end = thinking ? tokenizer.token_to_id(kThinkEndText) : std::nullopt;
  return reasoning_end ? after_token(*reasoning_end, end, std::move(filter)) : filter;
}

std::shared_ptr<TokenFilter> either_text(const Tokenizer& tokenizer, std::string text,
                                         std::shared_ptr<TokenFilter> filter) {
  return std::make_shared<EitherText>(tokenizer, std::move(text), std::move(filter));
}

}  // namespace onelane
