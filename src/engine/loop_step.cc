// One step of the engine: drafts, rows, forward pass, decisions.
#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "engine/loop.h"

namespace onelane {
namespace {

constexpr size_t kHistory = 8;  // tokens before a run that a step is shown; Engram looks at three

double milliseconds(Sequence::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

std::span<float> Engine::Loop::logits(int row, int count) {
  const auto vocab = static_cast<size_t>(spec_.vocab);
  return logits_buffer_.as<float>().subspan(static_cast<size_t>(row) * vocab, static_cast<size_t>(count) * vocab);
}

void Engine::Loop::step() {
  const Clock::time_point start = Clock::now();
  parts_.clear();
  plan_drafts();
  plan_prompts();
  add_rows();
  if (parts_.empty()) {
    // The oldest sequence can take every page from the others, so this is a mistake of ours; it costs one request.
    log_error("no sequence found room for a row");
    retire(*running_.front(), FinishReason::kError, "the engine found no memory for the next token");
    return;
  }
  ONELANE_CHECK(step_.count() <= sizes_.step_rows, "a step is as large as planned");
  ONELANE_CHECK(static_cast<int>(logit_rows_.size()) <= sizes_.logit_rows, "logits are as many as planned");
  forward_.target(step_, logit_rows_, logits_buffer_.as<float>().data(), /*on_demand=*/true);
  if (block_ > 0) seed_drafter();
  settle(milliseconds(Clock::now() - start));
}

// Gives the drafter this step's rows. While the schedule drafts for nobody, decode rows are left out, and their
// sequences draft again once a window of rows behind them has been given; prompts are kept whole, for the prefix cache.
void Engine::Loop::seed_drafter() {
  const bool prompts =
      std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return !part.sequence->decoding(); });
  const auto decoding = static_cast<int>(parts_.size());
  if (prompts || options_.draft_schedule.depth(decoding) > 0) return forward_.seed_drafter(step_);
  for (const Part& part : parts_) {
    residency_.store().drafter_from(part.sequence->slot) = part.sequence->computed + part.rows;
  }
}

bool Engine::Loop::may_draft(const Sequence& sequence) {
  return residency_.store().drafter_from(sequence.slot) <= std::max(0, sequence.computed - kWindow);
}

Sequence* Engine::Loop::youngest(const Sequence& other_than) {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if ((*it)->slot >= 0 && it->get() != &other_than) return it->get();
  }
  return nullptr;
}

bool Engine::Loop::make_room(Sequence& sequence, int tokens) {
  while (!residency_.grow(sequence, tokens)) {
    Sequence* victim = youngest(sequence);
    if (victim == nullptr || victim->id < sequence.id) return false;
    residency_.spill(*victim);
    ++counters_.preemptions;
  }
  return true;
}

// Decides who decodes in this step, and how many drafts each may have. The row counts go to parts_.
void Engine::Loop::plan_drafts() {
  int decoding = 0;
  bool prompts = false;
  for (const auto& sequence : running_) {
    decoding += sequence->decoding();
    prompts |= sequence->stage == Sequence::Stage::kPrefill;
  }
  const int depth = draft_depth(options_.draft_schedule, decoding, block_, sizes_.step_rows, prompts);
  for (const auto& owned : running_) {
    Sequence& sequence = *owned;
    sequence.drafts.clear();
    if (!sequence.decoding()) continue;
    int drafts = std::max(0, std::min(depth, sequence.draft_room()));
    if (drafts > 0 && !may_draft(sequence)) drafts = 0;
    if (drafts > 0 && !make_room(sequence, sequence.computed + 1 + drafts)) drafts = 0;
    if (drafts == 0 && !make_room(sequence, sequence.computed + 1)) continue;
    parts_.push_back({&sequence, 1 + drafts});
  }
}

void Engine::Loop::plan_prompts() {
  int rows = 0;
  for (const Part& part : parts_) rows += part.rows;
  std::vector<PromptView> prompts;
  std::vector<Sequence*> readers;
  for (const auto& sequence : running_) {
    if (sequence->stage != Sequence::Stage::kPrefill) continue;
    const bool all = sequence->wants_prompt_logprobs();
    const int left = sequence->prompt_left();
    prompts.push_back({left, residency_.chunk(*sequence, left), all, sequence->waited});
    readers.push_back(sequence.get());
  }
  if (prompts.empty()) return;
  ChunkLimits limits{sizes_.step_rows - rows, sizes_.logit_rows - rows};
  if (rows > 0) limits.rows = std::min(limits.rows, cost_.prompt_rows(rows, options_.max_gap_ms));
  const std::vector<int> shares = share_chunk(prompts, limits);
  for (size_t i = 0; i < readers.size(); ++i) {
    Sequence& sequence = *readers[i];
    int share = sequence.slot >= 0 ? shares[i] : 0;
    if (share > 0 && !make_room(sequence, sequence.computed + share)) {
      share = std::min(share, Residency::room(sequence) - sequence.computed);
    }
    sequence.waited = share > 0 ? 0 : sequence.waited + 1;
    if (share > 0) parts_.push_back({&sequence, share});
  }
}

// Drafts for `parts` in one pass; as many as the part has rows behind its first.
void Engine::Loop::draft_blocks(std::span<Part> parts) {
  step_.clear();
  step_.set_pages(residency_.page_table(), residency_.pages_per_slot());
  for (const Part& part : parts) {
    fill_draft_block(spec_.dspark, part.sequence->tokens().back(), part.rows - 1, row_tokens_);
    step_.add(part.sequence->slot, part.sequence->computed, row_tokens_);
  }
  ONELANE_CHECK(step_.count() <= sizes_.logit_rows, "draft logits are as many as planned");
  forward_.draft(step_, logits_buffer_.as<float>().data());
  int first_row = 0;
  for (Part& part : parts) {
    Sequence& sequence = *part.sequence;
    const int depth = part.rows - 1;
    choose_drafts(forward_, first_row, sequence.tokens().back(), sequence.computed, logits(first_row, depth),
                  spec_.vocab, {depth, options_.draft_confidence}, sequence.sampler(), sequence.drafts);
    part.rows = 1 + static_cast<int>(sequence.drafts.size());
    first_row += depth;
  }
}

void Engine::Loop::add_rows() {
  // Making room may have taken it from a sequence that was already in.
  std::erase_if(parts_, [](const Part& part) { return part.sequence->slot < 0; });
  const auto drafting = std::stable_partition(
      parts_.begin(), parts_.end(), [](const Part& part) { return part.sequence->decoding() && part.rows > 1; });
  const auto blocks = std::span(parts_).first(static_cast<size_t>(drafting - parts_.begin()));
  for (size_t done = 0; done < blocks.size();) {
    size_t end = done;
    int rows = 0;
    while (end < blocks.size() && rows + blocks[end].rows - 1 <= sizes_.logit_rows) rows += blocks[end++].rows - 1;
    draft_blocks(blocks.subspan(done, end - done));
    done = end;
  }

  step_.clear();
  step_.set_pages(residency_.page_table(), residency_.pages_per_slot());
  logit_rows_.clear();
  for (Part& part : parts_) {
    const Sequence& sequence = *part.sequence;
    const auto tokens = sequence.tokens();
    const auto computed = static_cast<size_t>(sequence.computed);
    const auto before = tokens.first(computed).last(std::min(computed, kHistory));
    const int first_row = step_.count();
    part.first_logits = static_cast<int>(logit_rows_.size());
    if (sequence.decoding()) {
      row_tokens_.assign(1, tokens.back());
      for (const DraftToken& draft : sequence.drafts) row_tokens_.push_back(draft.token);
      step_.add(sequence.slot, sequence.computed, row_tokens_, before);
    } else {
      step_.add(sequence.slot, sequence.computed, tokens.subspan(computed, static_cast<size_t>(part.rows)), before);
    }
    const bool last = part.rows == sequence.prompt_left() && sequence.max_tokens > 0;
    const bool all = sequence.decoding() || sequence.wants_prompt_logprobs();
    const int first = all ? 0 : last ? part.rows - 1 : part.rows;
    for (int row = first; row < part.rows; ++row) logit_rows_.push_back(first_row + row);
  }
}

void Engine::Loop::settle(double ms) {
  int decode_rows = 0;
  int prompt_rows = 0;
  const Clock::time_point now = Clock::now();
  for (const Part& part : parts_) {
    Sequence& sequence = *part.sequence;
    const int before = sequence.computed;
    (sequence.decoding() ? decode_rows : prompt_rows) += part.rows;
    sequence.started(now);
    const Result<void> settled = sequence.decoding() ? settle_decode(part) : settle_prompt(part);
    if (!settled) {
      // What is not a number may lie in pages that the cache shares: nobody shall meet it again.
      if (settled.error().code == ErrorCode::kCorrupt && residency_.cache() != nullptr) residency_.cache()->clear();
      retire(sequence, FinishReason::kError, settled.error().message);
      continue;
    }
    residency_.advanced(sequence, before);
    if (sequence.ended()) {
      retire(sequence, sequence.finish());
    } else if (!sequence.emit()) {
      retire(sequence, FinishReason::kError, "the event sink failed");
    }
  }
  cost_.observe(decode_rows, prompt_rows, ms);
  ++counters_.steps;
  counters_.step_seconds += ms / 1e3;
  counters_.last_step_ms = ms;
}

Result<Decision> Engine::Loop::decide(Sequence& sequence, int row) {
  const std::optional<int32_t> best = forward_.best(row);
  if (best && *best >= 0 && sequence.takes_best()) return sequence.decide(*best);
  forward_.fetch(row);  // of a row that is not finite the sampler says what is wrong
  return sequence.decide(logits(row));
}

Result<void> Engine::Loop::settle_decode(const Part& part) {
  Sequence& sequence = *part.sequence;
  ONELANE_ASSIGN(const Verification verdict,
                 verify(sequence.drafts, [&](int row) { return decide(sequence, part.first_logits + row); }));
  sequence.computed += verdict.decided;
  ++sequence.stats.steps;
  counters_.generated_tokens += static_cast<uint64_t>(verdict.decided);
  if (sequence.drafts.empty()) return {};
  ++sequence.stats.draft_blocks;
  ++counters_.draft_blocks;
  sequence.stats.drafted_tokens += static_cast<int>(sequence.drafts.size());
  counters_.drafted_tokens += sequence.drafts.size();
  for (size_t i = 0; i < static_cast<size_t>(verdict.accepted); ++i) {
    ++sequence.stats.accepted[i];
    ++counters_.accepted[i];
  }
  return {};
}

Result<void> Engine::Loop::settle_prompt(const Part& part) {
  Sequence& sequence = *part.sequence;
  if (sequence.wants_prompt_logprobs()) {
    for (int row = 0; row < part.rows; ++row) {
      forward_.fetch(part.first_logits + row);
      ONELANE_TRY(sequence.score(sequence.computed + row, logits(part.first_logits + row)));
    }
  }
  sequence.computed += part.rows;
  if (sequence.prompt_left() > 0) return {};
  if (sequence.max_tokens == 0) {
    sequence.end(FinishReason::kLength);
    return {};
  }
  const int last = sequence.wants_prompt_logprobs() ? part.first_logits + part.rows - 1 : part.first_logits;
  sequence.stage = Sequence::Stage::kDecode;
  ONELANE_TRY(decide(sequence, last));
  ++counters_.generated_tokens;
  return {};
}

}  // namespace onelane
