// The fields of a (text) completion request.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/answer_options.h"
#include "api/generation.h"
#include "api/json_fields.h"
#include "api/services.h"

namespace onelane {

struct CompletionPrompt {
  std::string text;             // what echo repeats
  std::vector<int32_t> tokens;  // kept where logprobs of the prompt are asked for
};

struct CompletionFields {
  AnswerOptions answer;
  std::vector<CompletionPrompt> prompts;
  int n = 1;
  std::vector<GenerationRequest> requests;  // n for each prompt, prompt by prompt
  bool echo = false;
  int logprobs = -1;             // of the best tokens; -1: none
  bool token_ids = false;        // logprobs name tokens by their ids
  bool prompt_logprobs = false;  // vLLM's own field
};

// Reads everything and encodes the prompts.
ApiProblem read_completion(const ApiContext& context, std::string_view body, CompletionFields& out);

// `text` as tokens, with BOS in front unless it is there or `bos` is false.
ApiProblem encode_text(const ApiContext& context, std::string_view text, std::string_view field, bool bos,
                       std::vector<int32_t>& tokens);

}  // namespace onelane
