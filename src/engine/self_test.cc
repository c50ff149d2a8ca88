// What runs before the engine takes requests: every kind of step, at every draft depth.
#include <algorithm>
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

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
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
  // A device runs a shape as it is, then records it, then repeats the recording: three ways to the same bits.
  const int times = forward_.beside_host() ? 3 : 1;
  std::vector<float> plain;
  for (int depth = 0; depth <= block; ++depth) {
    const std::string what = depth == 0 ? "a decode step" : format("verifying {} drafts", depth);
    std::vector<float> first;
    for (int time = 0; time < times; ++time) {
      run(length, 1 + depth, 1 + depth);
      std::vector<float> all;
      for (int row = 0; row <= depth; ++row) {
        ONELANE_TRY(check_finite(logits(row), what));
        all.insert(all.end(), logits(row).begin(), logits(row).end());
      }
      if (time == 0) first = all;
      if (!same_bits(all, first)) return broken(format("{} gives other logits when it is run again", what));
      if (depth == 0) plain = all;
      if (!same_bits(std::span(all).first(plain.size()), plain)) {
        return broken(format("{} changes the logits of the row before them", what));
      }
    }
  }
  for (int depth = 1; depth <= block; ++depth) {
    const std::string what = format("a block of {} drafts", depth);
    fill_draft_block(spec_.dspark, tokens[static_cast<size_t>(length)], depth, row_tokens_);
    std::vector<int32_t> drafted(static_cast<size_t>(depth)), first;
    std::vector<float> confidences(drafted.size());
    for (int time = 0; time < times; ++time) {
      step_.clear();
      step_.set_pages(residency_.page_table(), residency_.pages_per_slot());
      step_.add(sequence.slot, length, row_tokens_);
      forward_.draft(step_, logits_buffer_.as<float>().data());
      forward_.draft_chain(0, drafted, confidences);
      if (std::find(drafted.begin(), drafted.end(), -1) != drafted.end()) {
        return broken(what + " gives logits that are not finite");
      }
      if (time == 0) first = drafted;
      if (drafted != first) return broken(what + " gives other drafts when it is run again");
    }
  }
  residency_.release(sequence, false);
  return {};
}

}  // namespace onelane
