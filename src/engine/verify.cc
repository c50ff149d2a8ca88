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
  const int depth = std::clamp(limits.depth, 0, static_cast<int>(logits.size() / width));
  double survival = 1;
  // Whether the next draft is too unlikely to be accepted, with all before it.
  const auto hopeless = [&](float confidence) {
    survival /= 1 + std::exp(-static_cast<double>(confidence));
    return limits.confidence > 0 && !(survival >= static_cast<double>(limits.confidence));
  };
  if (sampler.takes_best()) {
    std::vector<int32_t> tokens(static_cast<size_t>(depth));
    std::vector<float> confidences(tokens.size());
    if (depth > 0) forward.draft_chain(first_row, tokens, confidences);
    for (size_t i = 0; i < tokens.size() && tokens[i] >= 0 && !hopeless(confidences[i]); ++i) {
      drafts.push_back({tokens[i], confidences[i]});
    }
    return;
  }
  int32_t previous = anchor;
  for (int row = 0; row < depth; ++row) {
    const std::span<float> values = logits.subspan(static_cast<size_t>(row) * width, width);
    const float confidence = forward.draft_token(first_row + row, previous, values.data());
    if (hopeless(confidence)) return;
    const auto token = sampler.sample(values, position + 1 + row);
    if (!token) return;
    drafts.push_back({*token, confidence});
    previous = *token;
  }
}

}  // namespace onelane
