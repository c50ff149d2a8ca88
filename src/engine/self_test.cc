// What runs once before the engine takes requests: every kind of step, at every draft depth.
#include <cmath>
#include <cstring>

#include "base/format.h"
#include "engine/loop.h"

namespace onelane {
namespace {

Error broken(std::string message) { return {ErrorCode::kCorrupt, "self-test: " + std::move(message)}; }

Result<void> check_finite(std::span<const float> logits, const std::string& what) {
  const auto best = best_token(logits);
  if (best) return {};
  return broken(format("{} gives logits that are not finite: {}", what, best.error().message));
}

}  // namespace

Result<void> Engine::Loop::self_test() {
  const int block = model_.has_drafter() ? spec_.dspark.block_size : 0;
  const int length = std::min(sizes_.step_rows, sizes_.max_model_len - block - 1);
  if (length < 1) return broken(format("max_model_len of {} has no room for a step", sizes_.max_model_len));
  Request request;
  for (int i = 0; i < length + block + 1; ++i) {
    request.prompt.push_back(static_cast<int32_t>((int64_t{i} * 7919 + 5) % spec_.vocab));
  }
  Sequence sequence(0, std::move(request), {}, -1, sizes_.max_model_len);
  residency_.admit(sequence);
  ONELANE_CHECK(residency_.grow(sequence, length + block + 1), "an empty pool has room for one sequence");
  const auto tokens = sequence.tokens();
  const auto run = [&](int first, int count, int logit_rows) {
    step_.clear();
    step_.set_pages(residency_.page_table(), residency_.pages_per_slot());
    const auto at = static_cast<size_t>(first);
    step_.add(sequence.slot, first, tokens.subspan(at, static_cast<size_t>(count)), tokens.first(at));
    logit_rows_.clear();
    for (int row = count - logit_rows; row < count; ++row) logit_rows_.push_back(row);
    forward_.target(step_, logit_rows_, logits_buffer_.as<float>().data());
    if (block > 0) forward_.seed_drafter(step_);
  };

  for (const int rows : {1, std::min(length, CostModel::kLeast), length}) {
    const Clock::time_point start = Clock::now();
    run(0, rows, 1);
    cost_.observe(0, rows, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    ONELANE_TRY(check_finite(logits(0), format("a prompt chunk of {} rows", rows)));
  }
  run(length, 1, 1);
  ONELANE_TRY(check_finite(logits(0), "a decode step"));
  const std::vector<float> plain(logits(0).begin(), logits(0).end());
  for (int depth = 1; depth <= block; ++depth) {
    run(length, 1 + depth, 1 + depth);
    for (int row = 0; row <= depth; ++row) {
      ONELANE_TRY(check_finite(logits(row), format("verifying {} drafts", depth)));
    }
    if (std::memcmp(plain.data(), logits(0).data(), plain.size() * sizeof(float)) != 0) {
      return broken(format("verifying {} drafts changes the logits of the row before them", depth));
    }
  }
  for (int depth = 1; depth <= block; ++depth) {
    fill_draft_block(spec_.dspark, tokens[static_cast<size_t>(length)], depth, row_tokens_);
    step_.clear();
    step_.set_pages(residency_.page_table(), residency_.pages_per_slot());
    step_.add(sequence.slot, length, row_tokens_);
    forward_.draft(step_, logits_buffer_.as<float>().data());
    for (int row = 0; row < depth; ++row) {
      ONELANE_TRY(check_finite(logits(row), format("a block of {} drafts", depth)));
    }
  }
  residency_.release(sequence, false);
  return {};
}

}  // namespace onelane
