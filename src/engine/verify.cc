#include "engine/verify.h"

#include <algorithm>
#include <cmath>

namespace onelane {

void fill_draft_block(const DsparkSpec& dspark, int32_t anchor, int depth, std::vector<int32_t>& block) {
  block.assign(static_cast<size_t>(std::clamp(depth, 1, dspark.block_size)), dspark.noise_token_id);
  block[0] = anchor;
}

void choose_drafts(ForwardPass& forward, int first_row, int32_t anchor, int64_t position, std::span<float> logits,
                   int vocab, const DraftLimits& limits, Sampler& sampler, std::vector<DraftToken>& drafts) {
  drafts.clear();
  const auto width = static_cast<size_t>(vocab);
  const int rows = static_cast<int>(logits.size() / width);
  if (sampler.takes_best()) {
    const auto depth = static_cast<size_t>(std::clamp(limits.depth, 0, rows));
    std::vector<int32_t> tokens(depth);
    std::vector<float> confidences(depth);
    if (depth > 0) forward.draft_chain(first_row, tokens, confidences);
    double survival = 1;
    for (size_t i = 0; i < depth && tokens[i] >= 0; ++i) {
      survival /= 1 + std::exp(-static_cast<double>(confidences[i]));
      if (limits.confidence > 0 && !(survival >= static_cast<double>(limits.confidence))) return;
      drafts.push_back({tokens[i], confidences[i]});
    }
    return;
  }
  int32_t previous = anchor;
  double survival = 1;
  for (int row = 0; row < std::min(limits.depth, rows); ++row) {
    const std::span<float> values = logits.subspan(static_cast<size_t>(row) * width, width);
    const float confidence = forward.draft_token(first_row + row, previous, values.data());
    survival /= 1 + std::exp(-static_cast<double>(confidence));
    if (limits.confidence > 0 && !(survival >= static_cast<double>(limits.confidence))) return;
    const auto token = sampler.sample(values, position + 1 + row);
    if (!token) return;
    drafts.push_back({*token, confidence});
    previous = *token;
  }
}

}  // namespace onelane
