#include "engine/session.h"

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "engine/sampler.h"

namespace onelane {
namespace {

constexpr int kSlot = 0;

int pages_for(int tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace

Result<std::unique_ptr<Session>> Session::create(const Model& model, Kernels& kernels, const SessionOptions& options) {
  const int limit = model.spec.max_positions;
  const int max_tokens = options.max_tokens > 0 ? options.max_tokens : limit;
  if (max_tokens > limit) {
    return Error{ErrorCode::kInvalidArgument,
                 format("{} tokens are more than the model's max_position_embeddings of {}", max_tokens, limit)};
  }
  ONELANE_CHECK(options.chunk > 0, "a step needs rows");
  return std::unique_ptr<Session>(new Session(model, kernels, options, max_tokens));
}

Session::Session(const Model& model, Kernels& kernels, const SessionOptions& options, int max_tokens)
    : model_(model),
      max_tokens_(max_tokens),
      chunk_(std::max(options.chunk, model.spec.dspark.block_size + 1)),
      draft_(options.draft && model.has_drafter()),
      store_(model.spec, 1, pages_for(max_tokens), kernels.memory()),
      forward_(model, kernels, store_, chunk_),
      page_table_(static_cast<size_t>(store_.pages())),
      every_row_(static_cast<size_t>(chunk_)) {
  std::iota(page_table_.begin(), page_table_.end(), 0);
  std::iota(every_row_.begin(), every_row_.end(), 0);
  tokens_.reserve(static_cast<size_t>(max_tokens));
}

Result<void> Session::check(std::span<const int32_t> tokens) const {
  if (tokens.empty()) return Error{ErrorCode::kInvalidArgument, "no tokens to append"};
  if (tokens.size() + tokens_.size() > static_cast<size_t>(max_tokens_)) {
    return Error{ErrorCode::kResourceExhausted,
                 format("{} tokens do not fit: {} of {} are in use", tokens.size(), tokens_.size(), max_tokens_)};
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model_.spec.vocab) {
      return Error{ErrorCode::kInvalidArgument,
                   format("token {} is not in the vocabulary of {}", token, model_.spec.vocab)};
    }
  }
  return {};
}

void Session::run_chunk(std::span<const int32_t> tokens, std::span<const int32_t> logit_rows) {
  step_.clear();
  step_.set_pages(page_table_.data(), store_.pages());
  const size_t history = std::min<size_t>(tokens_.size(), kHistory);
  step_.add(kSlot, static_cast<int>(tokens_.size()), tokens, std::span(tokens_).last(history));
  logits_.resize(logit_rows.size() * static_cast<size_t>(model_.spec.vocab));
  forward_.target(step_, logit_rows, logits_.data());
  if (draft_) forward_.seed_drafter(step_);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

Result<std::span<const float>> Session::append(std::span<const int32_t> tokens, const Progress& progress) {
  ONELANE_TRY(check(tokens));
  const auto total = static_cast<int>(tokens.size());
  for (int done = 0; done < total;) {
    const int count = std::min(chunk_, total - done);
    const bool last = done + count == total;
    const int32_t last_row = count - 1;
    run_chunk(tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(count)), {&last_row, last ? 1u : 0u});
    done += count;
    if (progress) progress(done, total);
  }
  return std::span<const float>(logits_);
}

Result<void> Session::append_rows(std::span<const int32_t> tokens, const RowSink& sink, const Progress& progress) {
  ONELANE_TRY(check(tokens));
  const auto total = static_cast<int>(tokens.size());
  const auto vocab = static_cast<size_t>(model_.spec.vocab);
  for (int done = 0; done < total;) {
    const int count = std::min(chunk_, total - done);
    const auto rows = std::span<const int32_t>(every_row_).first(static_cast<size_t>(count));
    run_chunk(tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(count)), rows);
    for (int row = 0; row < count; ++row)
      sink(done + row, std::span(logits_).subspan(static_cast<size_t>(row) * vocab, vocab));
    done += count;
    if (progress) progress(done, total);
  }
  return {};
}

Result<std::span<const float>> Session::append_block(std::span<const int32_t> tokens) {
  ONELANE_TRY(check(tokens));
  ONELANE_CHECK(tokens.size() <= every_row_.size(), "a block is one step");
  run_chunk(tokens, std::span<const int32_t>(every_row_).first(tokens.size()));
  return std::span<const float>(logits_);
}

std::vector<DraftToken> Session::draft(int32_t anchor, int depth, Sampler& sampler) {
  ONELANE_CHECK(draft_ && !tokens_.empty(), "drafting needs draft rings and a processed token");
  std::vector<int32_t> block;
  fill_draft_block(model_.spec.dspark, anchor, depth, block);
  const auto position = static_cast<int>(tokens_.size());
  step_.clear();
  step_.set_pages(page_table_.data(), store_.pages());
  step_.add(kSlot, position, block);
  logits_.resize(block.size() * static_cast<size_t>(model_.spec.vocab));
  forward_.draft(step_, logits_.data());
  std::vector<DraftToken> drafts;
  choose_drafts(forward_, 0, anchor, position, logits_, model_.spec.vocab, {.depth = depth}, sampler, drafts);
  return drafts;
}

Result<std::vector<DraftToken>> Session::draft(int32_t anchor, int depth) {
  Sampler greedy({.temperature = 0});
  return draft(anchor, depth, greedy);
}

void Session::truncate(int length) {
  const auto size = static_cast<int>(tokens_.size());
  ONELANE_CHECK(length >= 0 && length <= size, "cannot truncate to more than there is");
  ONELANE_CHECK(length == 0 || size - length <= model_.spec.dspark.block_size, "the window has been overwritten");
  tokens_.resize(static_cast<size_t>(length));
}

}  // namespace onelane
