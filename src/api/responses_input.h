// What POST /v1/responses takes, turned into a chat request.
//
// Written for clients that send the whole history every time, as Codex does. What only a server with a memory or with
// tools of its own could do is refused by name (previous_response_id, item references), or left out and listed
// (web_search and the like, which Codex offers to every server).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/chat_request.h"
#include "api/responses_tools.h"
#include "base/result.h"

namespace onelane {

struct ResponsesInput {
  ChatRequest chat;
  std::vector<ResponsesTool> tools;
  // Reasoning items carry their text in encrypted_content too: the only field of them that Codex sends back.
  bool carry_reasoning = false;

  // Null: the client has no such tool.
  const ResponsesTool* tool(std::string_view function) const;
};

// `body`: the request as parse_json gives it. Errors name the field: what is refused above, wrong types, an empty
// input.
//
// Reasoning comes from a reasoning item's content, or from an encrypted_content that
// this server wrote; another server's, and summaries, are left out.
Result<ResponsesInput> read_responses_input(const JsonValue& body);

// The encrypted_content of a reasoning item with this text. Nothing in it is secret, it is the client's own text.
std::string reasoning_token(std::string_view text);
// The text again; empty if `token` is not ours.
std::string_view reasoning_of_token(std::string_view token);

}  // namespace onelane
