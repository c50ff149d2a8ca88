// Whether a tool call fits what the request offered.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "lane/chat_stream.h"

namespace onelane {

// Why a call does not fit the tools of a request ({"type": "function", "function": {...}}); empty when it does: the
// name was offered, the arguments are a JSON object with the required members, known names, and values of their types
// and enums. Of JSON Schema that is type, properties, required, items and enum, which is what our tools use.
std::string call_problem(const nlohmann::ordered_json& tools, const ChatToolCall& call);

}  // namespace onelane
