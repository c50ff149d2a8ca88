// What /v1/completions answers to a request for logprobs, as positions of a capture: of the prompt's own tokens
// (prompt_logprobs) and of generated ones (logprobs, with return_tokens_as_token_ids). vLLM's names, which ours are.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "lane/capture.h"

namespace onelane {

struct CompletionChoice {
  std::vector<CapturePosition> prompt;     // of the prompt's second token and all behind it; empty: not asked for
  std::vector<int32_t> tokens;             // generated; empty: without logprobs nothing is known of them
  std::vector<CapturePosition> positions;  // one each
};

struct CompletionAnswer {
  std::vector<CompletionChoice> choices;
  std::optional<int64_t> cached_tokens;   // of the prompt
  std::optional<int64_t> drafted_tokens;  // ours alone says it
};

// The position of `token` among `top`, which may be in any order and hold more than kCaptureTop: what does not belong
// there is cut off. A token that is not among them has at most the mass of the tail.
CapturePosition make_position(std::vector<std::pair<int32_t, float>> top, int32_t token);

// Errors name the field. `prompt`: the tokens that were asked with.
Result<CompletionAnswer> parse_completion(std::string_view json, std::span<const int32_t> prompt);

}  // namespace onelane
