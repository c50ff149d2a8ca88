// Generation: prompt in, tokens out, one sequence, with speculation where it cannot change the answer.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/session.h"

namespace onelane {

struct GenerateOptions {
  int max_tokens = 256;
  SamplingParams sampling;
  bool ignore_eos = false;
  int draft_depth = 5;  // drafts verified per step, at most the model's block; changes no token (verify.h)
};

struct GenerateStats {
  int prompt_tokens = 0;
  int tokens = 0;  // generated, the end token included
  int steps = 0;   // target steps after the prompt
  int draft_blocks = 0;
  std::array<int, kMaxDraftDepth> accepted{};  // accepted[i]: blocks whose draft i was accepted
  double prefill_seconds = 0;
  double decode_seconds = 0;

  // Mean number of drafts accepted per block: tokens per step beyond the first.
  double mean_accepted() const;
};

struct GenerateResult {
  std::vector<int32_t> tokens;  // without the end token
  FinishReason reason = FinishReason::kStop;
  GenerateStats stats;
};

// Called for every token as it is decided; false stops the generation.
using TokenSink = std::function<bool(int32_t token)>;

// Appends `prompt` to the session (which must not be empty afterwards) and generates. At most max_tokens, and no more
// than fit the session. Afterwards the session holds prompt and generated tokens, apart from the last.
Result<GenerateResult> generate(Session& session, std::span<const int32_t> prompt, const GenerateOptions& options,
                                int32_t eos, const TokenSink& sink = {}, const Session::Progress& progress = {});

}  // namespace onelane
