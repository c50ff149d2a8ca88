// Sampling fields: what requests of all protocols say about how tokens are chosen and when to stop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/generation.h"
#include "api/json_fields.h"
#include "api/services.h"

namespace onelane {

struct SamplingFields {
  GenerationRequest base;  // everything but prompt, max_tokens and the choice's seed; chat and thinking are not set
  int n = 1;
};

// Reads temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty, logit_bias, seed,
// stop, stop_token_ids, include_stop_str_in_output, skip_special_tokens, min_tokens, ignore_eos, n, prompt_logprobs and
// the deadline. Problems end up in `fields`.
SamplingFields read_sampling(JsonFields& fields, const ApiContext& context);

// Puts `prompt` and the limit into `request`. Without a limit: options.default_max_tokens, at most what the context
// takes. A prompt that is too long, or a limit that does not fit behind it, is refused with the numbers
// (context_length_exceeded; `field` is the prompt's). With `cap` such a limit is lowered instead: some protocols make
// clients send one that has nothing to do with the model.
ApiProblem set_prompt(const ApiContext& context, std::string_view field, std::vector<int32_t> prompt,
                      std::optional<int64_t> max_tokens, bool cap, Request& request);

// The request of choice `index` of n: the same prompt with its own seed.
GenerationRequest choice_request(const GenerationRequest& base, int index);

// The model that a request names, or 404 model_not_found. Absent: the first served name.
ApiProblem check_model(JsonFields& fields, const ApiContext& context, std::string& model);

}  // namespace onelane
