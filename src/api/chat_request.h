// ChatRequest: a request of another protocol, said as a chat completion request.
//
// There is one way from a request to a prompt, and it starts from chat's JSON (text/conversation.h). What the Responses
// and the Messages route take is turned into that first; this is the result, with what is needed to speak to the client
// in its own terms again.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/chat_prompt.h"
#include "base/result.h"
#include "text/python_json.h"

namespace onelane {

struct ChatRequest {
  JsonValue json;  // the object; without tool_choice, which is below
  ToolChoice tool_choice;
  std::vector<std::string> origins;                          // of json.messages: the client's field, "input[3]"
  std::vector<std::pair<std::string, std::string>> renamed;  // other fields: chat's name, the client's name
  std::vector<std::string> ignored;                          // what the server does not do, "tools[2] (web_search)"

  // A message about a field of `json`, as one about the client's field: "messages[1].content: ..." becomes
  // "input[3].content: ...".
  std::string in_client_words(std::string_view message) const;
};

// Stands in a tool's result for an image. Refusing it would end an agent's work for good, since it sends its history
// again every time; a user who shows an image is told (encode_chat).
inline constexpr std::string_view kImageInResult = "[image: this server reads text only]";

// Collects messages for a ChatRequest. What the model says in one turn arrives in several pieces (reasoning, text,
// calls, or messages of the same role): they become one assistant message again, as the model wrote it.
class ChatMessages {
 public:
  // `content`: a string or an array of parts. System messages before everything else become one.
  void add(std::string_view role, JsonValue content, const std::string& origin);
  void add_tool_result(const std::string& call_id, JsonValue content, const std::string& origin);

  // Parts of an assistant turn. Text and reasoning that follow on text and reasoning are set off by a blank line.
  void add_reasoning(std::string_view text, const std::string& origin);
  void add_answer(std::string_view text, const std::string& origin);
  void add_call(JsonValue call, const std::string& origin);
  // What follows belongs to another turn.
  void end_turn() { in_assistant_ = false; }

  // Ends the list. An assistant turn at the end is one to be continued; one with calls cannot be: the error says that
  // their results are missing.
  Result<void> finish();
  bool empty() const { return messages_.empty(); }

  std::vector<JsonValue> take_messages() { return std::move(messages_); }
  std::vector<std::string> take_origins() { return std::move(origins_); }

 private:
  JsonValue& assistant(const std::string& origin);

  std::vector<JsonValue> messages_;
  std::vector<std::string> origins_;
  bool in_assistant_ = false;
};

}  // namespace onelane
