// The prompt: a conversation as the one text the model was trained to continue. spec/model.md 8.3 and 8.4.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/conversation.h"
#include "text/prompt_format.h"

namespace onelane {

struct EncodedPrompt {
  std::string text;                 // BOS included
  bool starts_in_thinking = false;  // the completion begins inside <think>
  int images = 0;                   // placeholders in the text
};

// Error: an effort number outside 1-100.
Result<EncodedPrompt> encode_prompt(const Conversation& conversation, const PromptFormat& format);

// parse_conversation and encode_prompt in one.
Result<EncodedPrompt> encode_prompt(std::string_view json, const PromptFormat& format);

}  // namespace onelane
