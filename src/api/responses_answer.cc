#include "api/responses_answer.h"

#include <array>
#include <utility>

#include "api/json_tree.h"
#include "api/router.h"
#include "base/format.h"

namespace onelane {
namespace {

using Event = CompletionEvent::Kind;

JsonValue or_default(const JsonValue& value, JsonValue otherwise) {
  return value.is(JsonValue::Kind::kNull) ? std::move(otherwise) : value;
}

// The text of a custom tool's call: its one parameter, or all there is when the model took others.
std::string custom_input(const std::string& arguments) {
  const auto parsed = parse_json(arguments);
  if (parsed && (*parsed)["input"].is(JsonValue::Kind::kString)) return (*parsed)["input"].text;
  return arguments;
}

// Clients compare codes with those that OpenAI has.
JsonValue error_json(const ApiError& error) {
  const std::string code = error.code == "context_length_exceeded" ? error.code : "server_error";
  return json_object({{"code", json_text(code)}, {"message", json_text(error.message)}});
}

}  // namespace

ResponsesAnswer::ResponsesAnswer(const JsonValue& request, ResponsesInput input, std::string model, int64_t created_at)
    : input_(std::move(input)), model_(std::move(model)), created_at_(created_at), id_(random_id("resp_")) {
  const JsonValue text = json_object({{"format", json_object({{"type", json_text("text")}})}});
  echo_ = json_object({{"instructions", request["instructions"]},
                       {"max_output_tokens", request["max_output_tokens"]},
                       {"metadata", or_default(request["metadata"], json_object())},
                       {"parallel_tool_calls", or_default(request["parallel_tool_calls"], json_bool(true))},
                       {"previous_response_id", JsonValue()},
                       {"reasoning", or_default(request["reasoning"], json_object())},
                       {"store", json_bool(false)},
                       {"temperature", or_default(request["temperature"], json_number(1))},
                       {"text", or_default(request["text"], text)},
                       {"tool_choice", or_default(request["tool_choice"], json_text("auto"))},
                       {"tools", or_default(request["tools"], json_array())},
                       {"top_p", or_default(request["top_p"], json_number(1))},
                       {"truncation", json_text("disabled")},
                       {"user", request["user"]}});
}

JsonValue ResponsesAnswer::part_json(const Item& item, const std::string& text) {
  if (item.kind == Kind::kReasoning) {
    return json_object({{"type", json_text("reasoning_text")}, {"text", json_text(text)}});
  }
  return json_object({{"type", json_text("output_text")},
                      {"text", json_text(text)},
                      {"annotations", json_array()},
                      {"logprobs", json_array()}});
}

JsonValue ResponsesAnswer::item_json(const Item& item) const {
  JsonValue out = json_object({{"id", json_text(item.id)}});
  const bool begun = item.status != "in_progress";
  const JsonValue content = begun ? json_array({part_json(item, item.text)}) : json_array();
  if (item.kind == Kind::kReasoning) {
    add_member(out, "type", json_text("reasoning"));
    add_member(out, "summary", json_array());
    add_member(out, "content", content);
    const bool carry = input_.carry_reasoning && begun;
    add_member(out, "encrypted_content", carry ? json_text(reasoning_token(item.text)) : JsonValue());
  } else if (item.kind == Kind::kMessage) {
    add_member(out, "type", json_text("message"));
    add_member(out, "role", json_text("assistant"));
    add_member(out, "content", content);
  } else {
    add_member(out, "type", json_text(item.tool.custom ? "custom_tool_call" : "function_call"));
    add_member(out, "call_id", json_text(item.call_id));
    add_member(out, "name", json_text(item.tool.name));
    if (!item.tool.space.empty()) add_member(out, "namespace", json_text(item.tool.space));
    const std::string text = begun ? item.text : "";
    add_member(out, item.tool.custom ? "input" : "arguments", json_text(text));
  }
  add_member(out, "status", json_text(item.status));
  return out;
}

JsonValue ResponsesAnswer::response() const {
  JsonValue output = json_array();
  if (status_ != "in_progress") {
    for (const Item& item : items_) output.items.push_back(item_json(item));
  }
  JsonValue usage;
  if (status_ != "in_progress") {
    usage = json_object({{"input_tokens", json_number(usage_.input)},
                         {"input_tokens_details", json_object({{"cached_tokens", json_number(usage_.cached)},
                                                               {"cache_write_tokens", json_number(0)}})},
                         {"output_tokens", json_number(usage_.output)},
                         {"output_tokens_details", json_object({{"reasoning_tokens", json_number(usage_.reasoning)}})},
                         {"total_tokens", json_number(usage_.input + usage_.output)}});
  }
  JsonValue out = json_object({{"id", json_text(id_)},
                               {"object", json_text("response")},
                               {"created_at", json_number(created_at_)},
                               {"status", json_text(status_)},
                               {"background", json_bool(false)},
                               {"error", error_},
                               {"incomplete_details", incomplete_},
                               {"model", json_text(model_)},
                               {"output", std::move(output)},
                               {"usage", std::move(usage)}});
  out.members.insert(out.members.end(), echo_.members.begin(), echo_.members.end());
  return out;
}

void ResponsesAnswer::send(std::string_view type, JsonValue event) { emit(type, dump_json(event)); }

void ResponsesAnswer::tell_response(std::string_view type) {
  if (!streams()) return;
  send(type, json_object({{"type", json_text(std::string(type))},
                          {"sequence_number", json_number(sequence_++)},
                          {"response", response()}}));
}

void ResponsesAnswer::tell(std::string_view type, std::vector<JsonMember> members) {
  if (!streams()) return;
  JsonValue event = json_object({{"type", json_text(std::string(type))},
                                 {"sequence_number", json_number(sequence_++)},
                                 {"output_index", json_number(static_cast<int64_t>(items_.size()) - 1)}});
  for (JsonMember& member : members) event.members.push_back(std::move(member));
  send(type, std::move(event));
}

void ResponsesAnswer::open() {
  tell_response("response.created");
  tell_response("response.in_progress");
}

ResponsesAnswer::Item& ResponsesAnswer::item_of(Kind kind) {
  if (item_open_ && items_.back().kind == kind && kind != Kind::kCall) return items_.back();
  close_item(items_.empty() || items_.back().kind != Kind::kCall);
  constexpr std::array<std::string_view, 3> kPrefixes = {"rs_", "msg_", "fc_"};
  items_.push_back({.kind = kind, .id = random_id(kPrefixes[static_cast<size_t>(kind)])});
  item_open_ = true;
  return items_.back();
}

void ResponsesAnswer::add(const CompletionEvent& event) {
  switch (event.kind) {
    case Event::kReasoning:
    case Event::kContent: {
      const Kind kind = event.kind == Event::kReasoning ? Kind::kReasoning : Kind::kMessage;
      const bool fresh = !item_open_ || items_.back().kind != kind;
      Item& item = item_of(kind);
      const std::pair<std::string, JsonValue> id = {"item_id", json_text(item.id)};
      if (fresh) {
        tell("response.output_item.added", {{"item", item_json(item)}});
        tell("response.content_part.added",
             {{"item_id", id.second}, {"content_index", json_number(0)}, {"part", part_json(item, "")}});
      }
      item.text += event.text;
      std::vector<JsonMember> delta = {
          {"item_id", id.second}, {"content_index", json_number(0)}, {"delta", json_text(event.text)}};
      if (kind == Kind::kMessage) delta.push_back({"logprobs", json_array()});
      tell(kind == Kind::kMessage ? "response.output_text.delta" : "response.reasoning_text.delta", std::move(delta));
      break;
    }
    case Event::kCallBegin: {
      Item& item = item_of(Kind::kCall);
      item.call_id = random_id("call_");
      // A function that nobody defined is for the client to refuse.
      const ResponsesTool* tool = input_.tool(event.text);
      item.tool = tool != nullptr ? *tool : ResponsesTool{event.text, event.text, "", false};
      if (item.tool.custom) item.id.replace(0, 2, "ctc");
      tell("response.output_item.added", {{"item", item_json(item)}});
      break;
    }
    case Event::kCallArguments: {
      if (!item_open_ || items_.back().kind != Kind::kCall) break;
      Item& item = items_.back();
      item.text += event.text;
      if (item.tool.custom) break;  // its text is known when its JSON is complete
      tell("response.function_call_arguments.delta",
           {{"item_id", json_text(item.id)}, {"delta", json_text(event.text)}});
      break;
    }
    case Event::kCallEnd:
      if (item_open_ && items_.back().kind == Kind::kCall) close_item(true);
      break;
  }
}

void ResponsesAnswer::close_item(bool complete) {
  if (!std::exchange(item_open_, false)) return;
  Item& item = items_.back();
  item.status = complete ? "completed" : "incomplete";
  const JsonValue id = json_text(item.id);
  if (item.kind == Kind::kCall && item.tool.custom) {
    if (complete) {
      item.text = custom_input(item.text);
      tell("response.custom_tool_call_input.delta", {{"item_id", id}, {"delta", json_text(item.text)}});
      tell("response.custom_tool_call_input.done", {{"item_id", id}, {"input", json_text(item.text)}});
    }
  } else if (item.kind == Kind::kCall) {
    // Arguments that were cut off are no JSON: nothing says that they are done.
    if (complete) {
      tell("response.function_call_arguments.done",
           {{"item_id", id}, {"name", json_text(item.tool.name)}, {"arguments", json_text(item.text)}});
    }
  } else {
    std::vector<JsonMember> done = {{"item_id", id}, {"content_index", json_number(0)}, {"text", json_text(item.text)}};
    if (item.kind == Kind::kMessage) done.push_back({"logprobs", json_array()});
    tell(item.kind == Kind::kMessage ? "response.output_text.done" : "response.reasoning_text.done", std::move(done));
    tell("response.content_part.done",
         {{"item_id", id}, {"content_index", json_number(0)}, {"part", part_json(item, item.text)}});
  }
  tell("response.output_item.done", {{"item", item_json(item)}});
}

void ResponsesAnswer::end(const AnswerEnd& end) {
  // A call ends by itself; one that is still open was cut off, be it by a stop string.
  close_item(end.reason == FinishReason::kStop && !items_.empty() && items_.back().kind != Kind::kCall);
  if (end.failed()) {
    status_ = "failed";
    error_ = error_json(end.error);
  } else if (end.reason == FinishReason::kLength) {
    status_ = "incomplete";
    incomplete_ = json_object({{"reason", json_text("max_output_tokens")}});
  } else {
    status_ = "completed";
  }
  tell_response("response." + status_);
}

}  // namespace onelane
