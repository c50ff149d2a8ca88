// Log-probabilities that a request asks for, from raw logits.
#pragma once

#include <span>

#include "engine/request.h"

namespace onelane {

// Of `token` under softmax(logits), with the `top` best tokens, best first and ties to the lower id. Logits are finite.
TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int top);

}  // namespace onelane
