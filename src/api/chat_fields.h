// The fields of a chat completion request, apart from the messages.
#pragma once

#include <string_view>
#include <vector>

#include "api/answer_options.h"
#include "api/generation.h"
#include "api/json_fields.h"
#include "api/services.h"

namespace onelane {

struct ChatFields {
  AnswerOptions answer;
  std::vector<GenerationRequest> requests;  // one per choice
  std::vector<int32_t> prompt;              // kept where prompt_logprobs are asked for
  bool logprobs = false;
  int top_logprobs = 0;
  bool calls = true;  // false: tool_choice is none
};

// Reads everything and encodes the prompt. Pure: the engine is asked for its limits only.
ApiProblem read_chat(const ApiContext& context, std::string_view body, ChatFields& out);

}  // namespace onelane
