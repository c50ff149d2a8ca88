#include "api/chat_request.h"

#include "api/json_tree.h"
#include "base/format.h"

namespace onelane {
namespace {

using Kind = JsonValue::Kind;

// Assistant messages have these three, in this order, from the start.
enum Field : size_t { kRole, kReasoning, kContent, kCalls };

void join_text(std::string& text, std::string_view more) {
  if (!text.empty() && !more.empty()) text += "\n\n";
  text += more;
}

}  // namespace

JsonValue chat_tool(std::string name, const JsonValue& description, const JsonValue& parameters) {
  JsonValue function = json_object();
  add_member(function, "name", json_text(std::move(name)));
  if (description.is(Kind::kString) && !description.text.empty()) add_member(function, "description", description);
  if (parameters.is(Kind::kObject)) {
    add_member(function, "parameters", parameters);
  } else {
    add_member(function, "parameters", json_object({{"type", json_text("object")}, {"properties", json_object()}}));
  }
  return json_object({{"type", json_text("function")}, {"function", std::move(function)}});
}

JsonValue chat_call(const std::string& id, std::string name, JsonValue arguments) {
  JsonValue call = json_object();
  if (!id.empty()) add_member(call, "id", json_text(id));
  add_member(call, "type", json_text("function"));
  add_member(call, "function",
             json_object({{"name", json_text(std::move(name))}, {"arguments", std::move(arguments)}}));
  return call;
}

std::string ChatRequest::in_client_words(std::string_view message) const {
  constexpr std::string_view kMessages = "messages[";
  if (message.starts_with(kMessages)) {
    size_t index = 0;
    size_t at = kMessages.size();
    while (at < message.size() && message[at] >= '0' && message[at] <= '9' && index < origins.size()) {
      index = index * 10 + static_cast<size_t>(message[at++] - '0');
    }
    if (index < origins.size() && message.substr(at).starts_with("]")) {
      return origins[index] + std::string(message.substr(at + 1));
    }
    return std::string(message);
  }
  for (const auto& [from, to] : renamed) {
    if (!message.starts_with(from)) continue;
    const std::string_view rest = message.substr(from.size());
    if (rest.empty() || rest.find_first_of(" .:[") == 0) return to + std::string(rest);
  }
  return std::string(message);
}

void ChatMessages::add(std::string_view role, JsonValue content, const std::string& origin) {
  in_assistant_ = false;
  if (role == "system" && messages_.size() == 1 && messages_[0]["role"].text == "system" &&
      messages_[0]["content"].is(Kind::kString) && content.is(Kind::kString)) {
    join_text(messages_[0].members[1].value.text, content.text);
    return;
  }
  messages_.push_back(json_object({{"role", json_text(std::string(role))}, {"content", std::move(content)}}));
  origins_.push_back(origin);
}

void ChatMessages::add_tool_result(const std::string& call_id, JsonValue content, const std::string& origin) {
  add("tool", std::move(content), origin);
  add_member(messages_.back(), "tool_call_id", json_text(call_id));
}

JsonValue& ChatMessages::assistant(const std::string& origin) {
  if (!in_assistant_) {
    messages_.push_back(json_object({{"role", json_text("assistant")},
                                     {"reasoning_content", json_text("")},
                                     {"content", json_text("")},
                                     {"tool_calls", json_array()}}));
    origins_.push_back(origin);
    in_assistant_ = true;
  }
  return messages_.back();
}

void ChatMessages::add_reasoning(std::string_view text, const std::string& origin) {
  if (!text.empty()) join_text(assistant(origin).members[kReasoning].value.text, text);
}

void ChatMessages::add_answer(std::string_view text, const std::string& origin) {
  if (!text.empty()) join_text(assistant(origin).members[kContent].value.text, text);
}

void ChatMessages::add_call(JsonValue call, const std::string& origin) {
  assistant(origin).members[kCalls].value.items.push_back(std::move(call));
}

Result<void> ChatMessages::finish() {
  if (!in_assistant_) return {};
  if (!messages_.back().members[kCalls].value.items.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 format("{}: the conversation ends with a tool call; its result must follow", origins_.back())};
  }
  add_member(messages_.back(), "prefix", json_bool(true));
  return {};
}

}  // namespace onelane
