// What POST /v1/messages takes, turned into a chat request.
//
// Tools that a server would run itself (web_search_20250305 and the like) are left out and listed, not refused, since
// Claude Code offers them to every server. The billing header in front of its system prompt is encode_chat's business.
#pragma once

#include <string>
#include <string_view>

#include "api/chat_request.h"
#include "base/result.h"

namespace onelane {

struct MessagesInput {
  ChatRequest chat;
  // thinking.display is "omitted": blocks of thinking go out without their text, which travels in the signature.
  bool hide_thinking = false;
};

// `body`: the request as parse_json gives it. Errors name the field: wrong types, unknown roles, a conversation that
// ends with a tool_use.
//
// Thinking is off unless `thinking` asks for it, as in Anthropic's API; output_config.effort is the effort, and
// budget_tokens, which the model has no notion of, only lowers it when small. Signatures are not checked; thinking
// blocks of other servers keep their text, redacted ones are left out. The arguments of tool_use keep their types to
// the digit. An assistant message at the end is continued.
Result<MessagesInput> read_messages_input(const JsonValue& body);

// A signature that carries the text of a thinking block whose text is hidden; without text: one that says nothing.
std::string thinking_signature(std::string_view hidden_text = "");
// The text again; empty if there is none or the signature is not ours.
std::string_view text_of_signature(std::string_view signature);

}  // namespace onelane
