// One step of the engine: drafts, rows, forward pass, decisions.
#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "engine/loop.h"

namespace onelane {
namespace {

double milliseconds(Sequence::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

std::span<float> Engine::Loop::logits(int row, int count) {
  const auto vocab = static_cast<size_t>(spec_.vocab);
  return logits_buffer_.as<float>().subspan(static_cast<size_t>(row) * vocab, static_cast<size_t>(count) * vocab);
}

void Engine::Loop::step() {
  if (!under_way()) {
    settled_ = Clock::now();
    if (!launch()) return;
  }
  if (may_follow()) follow();
  settle();
  flight_ = std::exchange(following_, {});
}

bool Engine::Loop::launch() {
  plan_drafts();
  plan_prompts();
  // Making room may have taken it from a sequence that was already in.
  std::erase_if(flight_.parts, [](const Part& part) { return part.sequence->slot < 0; });
  if (flight_.parts.empty()) {
    // The oldest sequence can take every page from the others, so this is a mistake of ours; it costs one request.
    log_error("no sequence found room for a row");
    retire(*running_.front(), FinishReason::kError, "the engine found no memory for the next token");
    return false;
  }
  add_rows();
  // While the schedule drafts for nobody, the drafter is not given decode rows, and their sequences draft again once a
  // window of rows behind them has been given; prompts are kept whole, for the prefix cache.
  const auto decodes = [](const Part& part) { return part.sequence->decoding(); };
  const bool prompts = !std::all_of(flight_.parts.begin(), flight_.parts.end(), decodes);
  const auto decoding = static_cast<int>(flight_.parts.size());
  flight_.seeds = block_ > 0 && (prompts || options_.draft_schedule.depth(decoding) > 0);
  run_target(flight_);
  return true;
}

// Asks for step_: all of it, but nothing is waited for.
void Engine::Loop::run_target(const Flight& flight) {
  ONELANE_CHECK(step_.count() <= sizes_.step_rows, "a step is as large as planned");
  ONELANE_CHECK(static_cast<int>(logit_rows_.size()) <= sizes_.logit_rows, "logits are as many as planned");
  forward_.target(step_, logit_rows_, logits_buffer_.as<float>().data(), /*on_demand=*/true);
  if (flight.seeds) forward_.seed_drafter(step_);
}

bool Engine::Loop::may_draft(const Sequence& sequence) {
  return residency_.store().drafter_from(sequence.slot) <= std::max(0, sequence.computed - kWindow);
}

int Engine::Loop::useful_drafts(const Sequence& sequence, int depth, int ahead) {
  const int room = sequence.draft_room(ahead);
  return room < 0 || may_draft(sequence) ? std::min(depth, room) : 0;
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

// Decides who decodes in this step, and how many drafts each may have. The row counts go to flight_.
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
    int drafts = std::max(0, useful_drafts(sequence, depth, 0));
    if (drafts > 0 && !make_room(sequence, sequence.computed + 1 + drafts)) drafts = 0;
    if (drafts == 0 && !make_room(sequence, sequence.computed + 1)) continue;
    flight_.parts.push_back({&sequence, 1 + drafts});
  }
}

void Engine::Loop::plan_prompts() {
  int rows = 0;
  for (const Part& part : flight_.parts) rows += part.rows;
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
    if (share > 0) flight_.parts.push_back({&sequence, share});
  }
}

// Drafts for `parts` in one pass; as many as the part has rows behind its first.
void Engine::Loop::draft_blocks(std::span<Part> parts) {
  if (parts.empty()) return;
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
    if (drafts_stay(sequence)) {
      part.first_draft = first_row;
      forward_.chain(first_row, depth);
    } else {
      choose_drafts(forward_, first_row, sequence.tokens().back(), sequence.computed, logits(first_row, depth),
                    spec_.vocab, {depth, options_.draft_confidence}, sequence.sampler(), sequence.drafts);
      part.rows = 1 + static_cast<int>(sequence.drafts.size());
    }
    first_row += depth;
  }
}

// Whether nothing on the host decides about the drafts of `sequence`, so that it need not see them before they are
// verified.
bool Engine::Loop::drafts_stay(Sequence& sequence) const {
  return forward_.beside_host() && options_.draft_confidence <= 0 && sequence.sampler().takes_best();
}

void Engine::Loop::add_rows() {
  auto& parts = flight_.parts;
  const auto drafting = std::stable_partition(
      parts.begin(), parts.end(), [](const Part& part) { return part.sequence->decoding() && part.rows > 1; });
  draft_blocks(std::span(parts).first(static_cast<size_t>(drafting - parts.begin())));

  step_.clear();
  step_.set_pages(residency_.page_table(), residency_.pages_per_slot());
  logit_rows_.clear();
  for (Part& part : parts) {
    const Sequence& sequence = *part.sequence;
    const auto tokens = sequence.tokens();
    const auto computed = static_cast<size_t>(sequence.computed);
    const auto before = tokens.first(computed);
    const int first_row = step_.count();
    part.first_logits = static_cast<int>(logit_rows_.size());
    if (sequence.decoding()) {
      row_tokens_.assign(1, tokens.back());
      for (const DraftToken& draft : sequence.drafts) row_tokens_.push_back(draft.token);
      refer_to_drafts(part);
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

// Adds to row_tokens_ the drafts that are on the device.
void Engine::Loop::refer_to_drafts(const Part& part) {
  for (int i = 0; part.first_draft >= 0 && i < part.rows - 1; ++i) row_tokens_.push_back(~(part.first_draft + i));
}

void Engine::Loop::settle() {
  int decode_rows = 0;
  int prompt_rows = 0;
  forward_.collect();
  const Clock::time_point now = Clock::now();
  const double ms = milliseconds(now - std::exchange(settled_, now));
  for (const Part& part : flight_.parts) {
    if (part.sequence == nullptr) continue;
    Sequence& sequence = *part.sequence;
    const int before = sequence.computed;
    (sequence.decoding() ? decode_rows : prompt_rows) += part.rows;
    sequence.started(now);
    if (block_ > 0 && !flight_.seeds) residency_.store().drafter_from(sequence.slot) = before + part.rows;
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
  if (decode_rows + prompt_rows == 0) return;  // nobody was left
  cost_.observe(decode_rows, prompt_rows, ms);
  ++counters_.steps;
  counters_.step_seconds += ms / 1e3;
  counters_.last_step_ms = ms;
}

Result<Decision> Engine::Loop::decide(Sequence& sequence, int row) {
  const std::optional<int32_t> best = forward_.best(row);
  if (best && *best >= 0 && sequence.takes_best()) return sequence.decide(*best);
  // The step behind it has been given the place of its logits; it follows where every best token was to be taken.
  if (!following_.parts.empty()) return Error{ErrorCode::kCorrupt, "logits are not finite"};
  forward_.fetch(row);  // of a row that is not finite the sampler says what is wrong
  return sequence.decide(logits(row));
}

Result<void> Engine::Loop::settle_decode(const Part& part) {
  Sequence& sequence = *part.sequence;
  if (part.first_draft >= 0) {
    sequence.drafts.clear();
    for (int i = 0; i < part.rows - 1; ++i) sequence.drafts.push_back({forward_.drafted(part.first_draft + i)});
  }
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
