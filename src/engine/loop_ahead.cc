// The step behind the one under way. While every sequence takes the best token of each row, the device knows all that
// the next step needs: how many rows count, what follows them, where that stands. So the step is asked for before the
// host has read the one ahead of it, and the device goes from one to the other without a pause.
//
// What the host finds out a step late does no harm. A sequence that ends has a step too many under way: its part is
// void, and what that step writes lies behind the tokens that count, in a slot and pages that whoever gets them next
// writes or loads later on the same device. What must see a slot exactly as the last counted token left it, a
// checkpoint at a page boundary, is waited for (Residency::keeps_state).
#include <algorithm>

#include "engine/loop.h"

namespace onelane {

bool Engine::Loop::may_follow() {
  const auto& parts = flight_.parts;
  if (!forward_.beside_host() || !waiting_.empty() || !spilled_.empty() || parts.size() != running_.size())
    return false;
  const int depth =
      draft_depth(options_.draft_schedule, static_cast<int>(parts.size()), block_, sizes_.step_rows, false);
  const bool follows = std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
    if (part.sequence == nullptr || !part.sequence->decoding() || !part.sequence->takes_best()) return false;
    const Sequence& sequence = *part.sequence;
    const bool drafted = part.rows == 1 || part.first_draft >= 0;
    return drafted && useful_drafts(sequence, depth, part.rows) == part.rows - 1 &&
           !residency_.keeps_state(sequence, part.rows);
  });
  return follows && std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
           return residency_.grow(*part.sequence, part.sequence->computed + 2 * part.rows);
         });
}

void Engine::Loop::follow() {
  following_ = flight_;
  const auto& parts = following_.parts;
  const auto runs = static_cast<int>(parts.size());
  step_.clear();
  step_.set_pages(residency_.page_table(), residency_.pages_per_slot());
  for (int run = 0; run < runs; ++run) {
    const Part& part = parts[static_cast<size_t>(run)];
    if (part.rows == 1) continue;
    const int32_t verdict = forward_.verdict(run);
    fill_draft_block(spec_.dspark, ~(verdict + 1), part.rows - 1, row_tokens_);
    step_.add(part.sequence->slot, part.sequence->computed, row_tokens_, {}, verdict);
  }
  if (step_.count() > 0) forward_.draft(step_, logits_buffer_.as<float>().data());
  for (const Part& part : parts) {
    if (part.rows > 1) forward_.chain(part.first_draft, part.rows - 1);
  }

  step_.clear();
  step_.set_pages(residency_.page_table(), residency_.pages_per_slot());
  std::array<int32_t, kHistory> before{};
  for (int run = 0; run < runs; ++run) {
    const Part& part = parts[static_cast<size_t>(run)];
    const int32_t verdict = forward_.verdict(run);
    for (int i = 0; i < kHistory; ++i) before[static_cast<size_t>(i)] = ~(verdict + 2 + i);
    row_tokens_.assign(1, ~(verdict + 1));
    refer_to_drafts(part);
    step_.add(part.sequence->slot, part.sequence->computed, row_tokens_, before, verdict);
  }
  run_target(following_);
  ++counters_.steps_ahead;
}

}  // namespace onelane
