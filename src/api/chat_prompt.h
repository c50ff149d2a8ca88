// ChatPrompt: from a conversation to the tokens a model continues, the same for every chat protocol.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_error.h"
#include "api/generation.h"
#include "api/json_fields.h"
#include "api/services.h"

namespace onelane {

struct ToolChoice {
  enum class Mode { kAuto, kNone, kRequired, kNamed };
  Mode mode = Mode::kAuto;
  std::string name;  // kNamed
};

struct ChatPrompt {
  std::vector<int32_t> tokens;
  bool thinking = false;           // the completion starts inside <think>
  std::vector<std::string> tools;  // names of the functions that the request defines
};

// `conversation` is a request in OpenAI's chat shape, as JSON text (parse_conversation reads messages, tools, thinking
// switches and reasoning_effort); the order of its keys reaches the model. Lines of the system prompt that carry a
// client's billing header are left out, because they change with every request and would defeat the prefix cache.
// Refused: what parse_conversation refuses, and images (there is no vision tower here).
ApiProblem encode_chat(const ApiContext& context, std::string_view conversation, ChatPrompt& out);

// Whether `choice` asks for tools that `prompt` does not have; names `param`.
ApiProblem check_tool_choice(const ToolChoice& choice, const ChatPrompt& prompt, const std::string& param);

// Makes `request` call a tool (kRequired, kNamed), whatever its grammar says, or keeps it from doing so (kNone). Free
// to choose, the model may begin a call where a grammar would begin an answer. The filter serves one generation.
void apply_tool_choice(const ApiContext& context, const ToolChoice& choice, const ChatPrompt& prompt,
                       GenerationRequest& request);

}  // namespace onelane
