#include "api/responses_input.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "api/json_tree.h"
#include "base/format.h"

namespace onelane {
namespace {

using Kind = JsonValue::Kind;

constexpr std::string_view kReasoningToken = "onelane-reasoning-1:";

// Fields that chat requests have as well, under the same name.
constexpr std::array<std::string_view, 20> kSameFields = {"model",
                                                          "stream",
                                                          "temperature",
                                                          "top_p",
                                                          "top_k",
                                                          "min_p",
                                                          "seed",
                                                          "presence_penalty",
                                                          "logit_bias",
                                                          "frequency_penalty",
                                                          "repetition_penalty",
                                                          "stop",
                                                          "min_tokens",
                                                          "ignore_eos",
                                                          "user",
                                                          "parallel_tool_calls",
                                                          "thinking",
                                                          "thinking_mode",
                                                          "drop_thinking",
                                                          "chat_template_kwargs"};

// What a server with memory or tools of its own would use, and its client can do without.
constexpr std::array<std::string_view, 17> kHostedItems = {"web_search_call",
                                                           "file_search_call",
                                                           "computer_call",
                                                           "computer_call_output",
                                                           "code_interpreter_call",
                                                           "mcp_call",
                                                           "mcp_list_tools",
                                                           "mcp_approval_request",
                                                           "mcp_approval_response",
                                                           "image_generation_call",
                                                           "tool_search_call",
                                                           "tool_search_output",
                                                           "compaction",
                                                           "compaction_summary",
                                                           "ghost_snapshot",
                                                           "context_compaction",
                                                           "other"};

template <size_t n>
bool is_one_of(std::string_view text, const std::array<std::string_view, n>& names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

class Reader {
 public:
  explicit Reader(const JsonValue& body) : body_(body) {}

  Result<ResponsesInput> read() {
    if (!body_.is(Kind::kObject)) return field_error("request", "must be an object");
    ONELANE_TRY(refuse_memory());
    ONELANE_TRY(read_instructions());
    ONELANE_TRY(read_items());
    ONELANE_TRY(messages_.finish());
    JsonValue& chat = out_.chat.json;
    chat = json_object({{"messages", json_array(messages_.take_messages())}});
    out_.chat.origins = messages_.take_origins();
    for (const std::string_view name : kSameFields) {
      if (!body_[name].is(Kind::kNull)) add_member(chat, name, body_[name]);
    }
    out_.chat.renamed.emplace_back("messages", "input");
    rename("max_output_tokens", body_["max_output_tokens"], "max_tokens");
    ONELANE_TRY(read_tools());
    ONELANE_TRY(read_reasoning());
    ONELANE_TRY(read_text_format());
    return std::move(out_);
  }

 private:
  void rename(const std::string& field, const JsonValue& value, const std::string& chat_field) {
    if (!value.is(Kind::kNull)) add_member(out_.chat.json, chat_field, value);
    out_.chat.renamed.emplace_back(chat_field, field);
  }

  Result<void> refuse_memory() {
    for (const char* field : {"previous_response_id", "conversation", "prompt"}) {
      if (body_[field].truthy()) {
        return field_error(field, "nothing is kept between requests here; send the whole history in input");
      }
    }
    if (body_["background"].truthy()) return field_error("background", "must be false: responses are answered at once");
    if (const JsonValue& top = body_["top_logprobs"]; top.truthy()) {
      return field_error("top_logprobs", "not available here; use /v1/chat/completions");
    }
    return {};
  }

  Result<void> read_instructions() {
    const JsonValue& text = body_["instructions"];
    if (text.is(Kind::kNull)) return {};
    if (!text.is(Kind::kString)) return field_error("instructions", "must be a string");
    if (!text.text.empty()) messages_.add("system", text, "instructions");
    return {};
  }

  Result<void> read_items() {
    const JsonValue& input = body_["input"];
    if (input.is(Kind::kString)) {
      messages_.add("user", input, "input");
      return {};
    }
    if (!input.is(Kind::kArray) || input.items.empty()) {
      return field_error("input", "must be a string or a non-empty array of items");
    }
    for (size_t i = 0; i < input.items.size(); ++i) ONELANE_TRY(read_item(input.items[i], format("input[{}]", i)));
    if (messages_.empty()) return field_error("input", "holds nothing that a model could read");
    return {};
  }

  Result<void> read_item(const JsonValue& item, const std::string& path) {
    if (!item.is(Kind::kObject)) return field_error(path, "must be an object");
    const JsonValue& type = item["type"];
    if (type.is(Kind::kNull) && !item["role"].is(Kind::kNull)) return read_message(item, path);
    if (!type.is(Kind::kString)) return field_error(path + ".type", "must be a string");
    if (type.text == "message") return read_message(item, path);
    if (type.text == "reasoning") return read_reasoning_item(item, path);
    if (type.text == "function_call") return read_call(item, path, "arguments");
    if (type.text == "custom_tool_call") return read_call(item, path, "input");
    if (type.text == "local_shell_call") return read_shell_call(item, path);
    if (type.text == "function_call_output" || type.text == "custom_tool_call_output" ||
        type.text == "local_shell_call_output") {
      return read_output(item, path);
    }
    if (type.text == "item_reference")
      return field_error(path, "items are not kept between requests; send the item itself");
    if (is_one_of(type.text, kHostedItems)) {
      out_.chat.ignored.push_back(format("{} ({})", path, type.text));
      return {};
    }
    return field_error(
        path + ".type",
        format("{} is not one of message, reasoning, function_call, function_call_output, custom_tool_call, "
               "custom_tool_call_output",
               dump_json(type)));
  }

  Result<void> read_message(const JsonValue& item, const std::string& path) {
    const JsonValue& role = item["role"];
    const bool system = role.text == "system" || role.text == "developer";
    if (!role.is(Kind::kString) || !(system || role.text == "user" || role.text == "assistant")) {
      return field_error(path + ".role",
                         format("{} is not one of user, assistant, system, developer", dump_json(role)));
    }
    const std::string where = path + ".content";
    if (role.text == "user") {
      ONELANE_ASSIGN(JsonValue content, read_parts(item["content"], where));
      messages_.add("user", std::move(content), path);
      return {};
    }
    ONELANE_ASSIGN(const std::string text, read_plain_text(item["content"], where));
    if (system) {
      messages_.add("system", json_text(text), path);
    } else {
      messages_.add_answer(text, path);
    }
    return {};
  }

  // Content of a user message or a tool's output, as chat has it: a string, or an array of parts.
  static Result<JsonValue> read_parts(const JsonValue& content, const std::string& path) {
    if (content.is(Kind::kString)) return content;
    if (!content.is(Kind::kArray)) return field_error(path, "must be a string or an array of parts");
    JsonValue parts = json_array();
    for (size_t i = 0; i < content.items.size(); ++i) {
      const JsonValue& part = content.items[i];
      const std::string where = format("{}[{}]", path, i);
      const JsonValue& type = part["type"];
      if (!type.is(Kind::kString)) return field_error(where + ".type", "must be a string");
      if (const auto field = text_field(type.text)) {
        const JsonValue& text = part[*field];
        if (!text.is(Kind::kString)) return field_error(where + "." + std::string(*field), "must be a string");
        parts.items.push_back(json_object({{"type", json_text("text")}, {"text", text}}));
      } else if (type.text == "input_image") {
        parts.items.push_back(
            json_object({{"type", json_text("image_url")}, {"image_url", json_object({{"url", part["image_url"]}})}}));
      } else {
        parts.items.push_back(json_object({{"type", type}}));  // parse_conversation says what is unsupported
      }
    }
    return parts;
  }

  static std::optional<std::string_view> text_field(std::string_view type) {
    if (type == "input_text" || type == "output_text" || type == "text") return "text";
    if (type == "refusal") return "refusal";
    return std::nullopt;
  }

  // Content of a message that cannot hold anything but text.
  static Result<std::string> read_plain_text(const JsonValue& content, const std::string& path) {
    ONELANE_ASSIGN(const JsonValue parts, read_parts(content, path));
    if (parts.is(Kind::kString)) return parts.text;
    std::string text;
    for (size_t i = 0; i < parts.items.size(); ++i) {
      if (!parts.items[i]["text"].is(Kind::kString)) {
        return field_error(format("{}[{}].type", path, i), "only text can stand here");
      }
      if (i > 0) text += "\n\n";
      text += parts.items[i]["text"].text;
    }
    return text;
  }

  Result<void> read_reasoning_item(const JsonValue& item, const std::string& path) {
    const JsonValue& content = item["content"];
    if (!content.is(Kind::kNull) && !content.is(Kind::kArray))
      return field_error(path + ".content", "must be an array");
    std::string text;
    for (size_t i = 0; i < content.items.size(); ++i) {
      const JsonValue& part = content.items[i]["text"];
      if (!part.is(Kind::kString)) return field_error(format("{}.content[{}].text", path, i), "must be a string");
      text += part.text;
    }
    if (text.empty()) text = reasoning_of_token(item["encrypted_content"].text);
    messages_.add_reasoning(text, path);
    return {};
  }

  static Result<std::string> text_of(const JsonValue& item, std::string_view field, const std::string& path) {
    const JsonValue& value = item[field];
    if (!value.is(Kind::kString) || value.text.empty()) {
      return field_error(format("{}.{}", path, field), "must be a non-empty string");
    }
    return value.text;
  }

  Result<void> read_call(const JsonValue& item, const std::string& path, const std::string& field) {
    ONELANE_ASSIGN(const std::string name, text_of(item, "name", path));
    ONELANE_ASSIGN(const std::string id, text_of(item, "call_id", path));
    JsonValue arguments = item[field];
    if (!arguments.is(Kind::kString)) return field_error(path + "." + field, "must be a string");
    if (field == "input") arguments = json_object({{"input", std::move(arguments)}});
    messages_.add_call(chat_call(id, responses_function_name(item["namespace"].text, name), std::move(arguments)),
                       path);
    return {};
  }

  Result<void> read_shell_call(const JsonValue& item, const std::string& path) {
    if (!item["action"].is(Kind::kObject)) return field_error(path + ".action", "must be an object");
    const std::string& id = item["call_id"].is(Kind::kString) ? item["call_id"].text : item["id"].text;
    messages_.add_call(chat_call(id, "local_shell", item["action"]), path);
    return {};
  }

  Result<void> read_output(const JsonValue& item, const std::string& path) {
    const bool shell = item["call_id"].is(Kind::kNull) && item["type"].text == "local_shell_call_output";
    ONELANE_ASSIGN(const std::string id, text_of(item, shell ? "id" : "call_id", path));
    const JsonValue& output = item["output"];
    JsonValue content;
    if (output.is(Kind::kArray)) {
      ONELANE_ASSIGN(content, read_parts(output, path + ".output"));
      for (JsonValue& part : content.items) {
        if (part["type"].text == "image_url") {
          part = json_object({{"type", json_text("text")}, {"text", json_text(std::string(kImageInResult))}});
        }
      }
    } else {
      content = output.is(Kind::kString) ? output : json_text(output.is(Kind::kNull) ? "" : dump_json(output));
    }
    messages_.add_tool_result(id, std::move(content), path);
    return {};
  }

  Result<void> read_tools() {
    ONELANE_ASSIGN(ResponsesTools tools, read_responses_tools(body_));
    if (!tools.schemas.empty()) add_member(out_.chat.json, "tools", json_array(std::move(tools.schemas)));
    out_.tools = std::move(tools.tools);
    out_.chat.tool_choice = std::move(tools.choice);
    for (std::string& ignored : tools.ignored) out_.chat.ignored.push_back(std::move(ignored));
    return {};
  }

  Result<void> read_reasoning() {
    const JsonValue& reasoning = body_["reasoning"];
    if (!reasoning.is(Kind::kNull) && !reasoning.is(Kind::kObject))
      return field_error("reasoning", "must be an object");
    rename("reasoning.effort", reasoning["effort"], "reasoning_effort");
    const JsonValue& include = body_["include"];
    if (!include.is(Kind::kNull) && !include.is(Kind::kArray))
      return field_error("include", "must be an array of strings");
    out_.carry_reasoning = (!body_["store"].is(Kind::kNull) && !body_["store"].truthy()) ||
                           std::any_of(include.items.begin(), include.items.end(), [](const JsonValue& item) {
                             return item.text == "reasoning.encrypted_content";
                           });
    return {};
  }

  Result<void> read_text_format() {
    const JsonValue& text = body_["text"];
    if (!text.is(Kind::kNull) && !text.is(Kind::kObject)) return field_error("text", "must be an object");
    const JsonValue& rule = text["format"];
    out_.chat.renamed.emplace_back("response_format.json_schema", "text.format");
    out_.chat.renamed.emplace_back("response_format", "text.format");
    if (rule.is(Kind::kNull)) return {};
    if (!rule.is(Kind::kObject)) return field_error("text.format", "must be an object");
    JsonValue chat_rule = json_object({{"type", rule["type"]}});
    if (rule["type"].text == "json_schema") {
      JsonValue schema = json_object();
      for (const auto& [name, value] : rule.members) {
        if (name != "type") add_member(schema, name, value);
      }
      add_member(chat_rule, "json_schema", std::move(schema));
    }
    add_member(out_.chat.json, "response_format", std::move(chat_rule));
    return {};
  }

  const JsonValue& body_;
  ResponsesInput out_;
  ChatMessages messages_;
};

}  // namespace

const ResponsesTool* ResponsesInput::tool(std::string_view function) const {
  for (const ResponsesTool& tool : tools) {
    if (tool.function == function) return &tool;
  }
  return nullptr;
}

Result<ResponsesInput> read_responses_input(const JsonValue& body) { return Reader(body).read(); }

std::string reasoning_token(std::string_view text) { return std::string(kReasoningToken) + std::string(text); }

std::string_view reasoning_of_token(std::string_view token) {
  return token.starts_with(kReasoningToken) ? token.substr(kReasoningToken.size()) : std::string_view();
}

}  // namespace onelane
