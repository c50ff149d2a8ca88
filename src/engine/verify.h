// Speculation: drafting a block and verifying it. The rule is here once; sessions and the engine both call it.
//
// Why it is lossless: the token after a row is decided from that row's logits, by a choice that depends on the logits,
// the tokens so far and the position (sampler.h). A verified row's logits are, to the bit, those of plain decoding as
// long as the drafts before it were what was decided (kernels.h, batch invariance). So a draft that equals the decided
// token saves a step, and one that does not costs a row; neither can change a token, at any depth or temperature.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "engine/sampler.h"
#include "model/forward.h"

namespace onelane {

struct DraftToken {
  int32_t token = 0;
  float confidence = 0;  // logit of P(accepted | all before it accepted)
};

struct DraftLimits {
  int depth = 0;
  float confidence = 0;  // stop before the draft whose chance to be accepted, with all before it, is below this
};

// Rows of a draft block: the anchor, then noise. As many rows as drafts are wanted, at most the trained block:
// measured, the drafts of a shorter block are as good, and each row left out is one less to compute. Clears `block`.
void fill_draft_block(const DsparkSpec& dspark, int32_t anchor, int depth, std::vector<int32_t>& block);

// Walks the Markov chain over a block that begins at row `first_row` of the last ForwardPass::draft(). `logits` [rows
// of the block, vocab] are that block's. `position` is the anchor's; drafts are choices of `sampler` at the positions
// behind it. Ends early at a row that is not finite: a draft is only a guess.
void choose_drafts(ForwardPass& forward, int first_row, int32_t anchor, int64_t position, std::span<float> logits,
                   int vocab, const DraftLimits& limits, Sampler& sampler, std::vector<DraftToken>& drafts);

struct Decision {
  int32_t token = 0;
  bool more = true;  // false: the token ends the generation
};

struct Verification {
  int decided = 0;   // tokens: rows that counted
  int accepted = 0;  // drafts that were what was decided
};

// Rows 0..drafts.size() are the anchor and its drafts. decide(row) -> Result<Decision> chooses the token after a row
// and records it; it is called in order and only for rows whose drafts were all accepted.
template <class Decide>
Result<Verification> verify(std::span<const DraftToken> drafts, Decide&& decide) {
  Verification verdict;
  while (true) {
    const auto row = static_cast<size_t>(verdict.decided);
    ONELANE_ASSIGN(const Decision decision, decide(verdict.decided));
    ++verdict.decided;
    if (row == drafts.size() || decision.token != drafts[row].token) return verdict;
    ++verdict.accepted;
    if (!decision.more) return verdict;
  }
}

}  // namespace onelane
