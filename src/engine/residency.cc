#include "engine/residency.h"

#include <algorithm>

namespace onelane {

Residency::Residency(const ModelSpec& spec, const Sizes& sizes, Memory& memory)
    : store_(spec, sizes.slots, sizes.pages, memory),
      pool_(sizes.pages),
      pages_per_slot_(sizes.pages_per_slot),
      page_table_(static_cast<size_t>(sizes.slots) * static_cast<size_t>(sizes.pages_per_slot)),
      users_(static_cast<size_t>(sizes.pages)) {
  for (int slot = sizes.slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  if (sizes.keep_boundaries) boundary_states_ = Buffer(slot_state_bytes(store_) * static_cast<size_t>(sizes.slots));
}

std::span<std::byte> Residency::boundary_state(int slot) {
  const size_t bytes = slot_state_bytes(store_);
  return {boundary_states_.data() + bytes * static_cast<size_t>(slot), bytes};
}

int Residency::take_slot() {
  ONELANE_CHECK(!free_slots_.empty(), "a sequence moves in where a slot is free");
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void Residency::hold(Sequence& sequence, int page) {
  const size_t at = static_cast<size_t>(sequence.slot) * static_cast<size_t>(pages_per_slot_) + sequence.pages.size();
  ONELANE_CHECK(sequence.pages.size() < static_cast<size_t>(pages_per_slot_), "a sequence has outgrown max_model_len");
  page_table_[at] = page;
  sequence.pages.push_back(page);
  if (users_[static_cast<size_t>(page)]++ == 0) ++used_;
}

void Residency::admit(Sequence& sequence) {
  sequence.slot = take_slot();
  sequence.stage = Sequence::Stage::kPrefill;
  if (store_.drafts()) store_.drafter_from(sequence.slot) = 0;
  // Log-probabilities of a cached prefix are not cached with it, so it is computed again.
  if (!cache_ || sequence.wants_prompt_logprobs()) return;
  const PrefixHit hit =
      cache_->attach(sequence.tokens().first(static_cast<size_t>(sequence.prompt_rows())), sequence.slot);
  for (const int page : hit.pages) hold(sequence, page);
  sequence.computed = hit.tokens;
  sequence.stats.cached_tokens = hit.tokens;
}

bool Residency::grow(Sequence& sequence, int tokens) {
  const int missing = pages_for(tokens) - static_cast<int>(sequence.pages.size());
  if (missing <= 0) return true;
  if (pool_.free() < missing && cache_) cache_->reclaim(missing - pool_.free());
  for (int i = 0; i < missing; ++i) {
    const auto page = pool_.take();
    if (!page) return false;
    hold(sequence, *page);
  }
  return true;
}

int Residency::chunk(const Sequence& sequence, int limit) const {
  if (!cache_ || sequence.prompt_left() <= 0) return limit;
  const auto prompt = sequence.tokens().first(static_cast<size_t>(sequence.prompt_tokens));
  const int next = cache_->next_checkpoint(prompt, sequence.computed);
  return next > sequence.computed ? std::min(limit, next - sequence.computed) : limit;
}

void Residency::advanced(Sequence& sequence, int before) {
  if (!cache_) return;
  const int boundary = sequence.computed / kPageTokens * kPageTokens;
  if (boundary <= before / kPageTokens * kPageTokens) return;
  const auto tokens = sequence.tokens();
  if (before < sequence.prompt_tokens) {  // prompt rows: they end at a boundary where a checkpoint is worth it
    const auto prompt = tokens.first(static_cast<size_t>(sequence.prompt_tokens));
    if (boundary == sequence.computed && cache_->next_checkpoint(prompt, before) == boundary) {
      cache_->insert(tokens.first(static_cast<size_t>(boundary)), sequence.pages);
      cache_->checkpoint(tokens.first(static_cast<size_t>(boundary)), sequence.slot);
    }
    return;
  }
  // An answer's last boundary becomes a checkpoint when the answer ends; by then the rings have moved on.
  save_slot(store_, sequence.slot, boundary_state(sequence.slot));
  sequence.boundary = boundary;
}

void Residency::drop(Sequence& sequence) {
  for (const int page : sequence.pages) {
    if (--users_[static_cast<size_t>(page)] == 0) --used_;
    pool_.release(page);
  }
  sequence.pages.clear();
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
}

void Residency::release(Sequence& sequence, bool keep) {
  if (sequence.slot < 0) return;
  if (cache_ && keep && sequence.boundary > 0) {
    const auto tokens = sequence.tokens().first(static_cast<size_t>(sequence.boundary));
    load_slot(store_, sequence.slot, boundary_state(sequence.slot));
    cache_->insert(tokens, sequence.pages);
    cache_->checkpoint(tokens, sequence.slot);
  }
  drop(sequence);
}

void Residency::spill(Sequence& sequence) {
  sequence.spilled = SpilledSequence(store_, sequence.slot, sequence.pages);
  sequence.resume = sequence.stage;
  sequence.stage = Sequence::Stage::kSpilled;
  sequence.boundary = 0;  // its state stays behind
  ++sequence.stats.preemptions;
  drop(sequence);
}

bool Residency::restore(Sequence& sequence, int spare) {
  const int count = sequence.spilled.page_count();
  if (!has_slot() || available() < count + spare) return false;
  if (pool_.free() < count && cache_) cache_->reclaim(count - pool_.free());
  if (pool_.free() < count) return false;
  sequence.slot = take_slot();
  for (int i = 0; i < count; ++i) hold(sequence, *pool_.take());
  sequence.spilled.restore(store_, sequence.slot, sequence.pages);
  sequence.spilled = SpilledSequence();
  sequence.stage = sequence.resume;
  return true;
}

}  // namespace onelane
