#include "api/messages_input.h"

#include <array>
#include <utility>

#include "api/json_tree.h"
#include "base/format.h"

namespace onelane {
namespace {

using Kind = JsonValue::Kind;

constexpr std::string_view kSignature = "onelane-thinking-1:";

// Fields that chat requests have as well, under the same name.
constexpr std::array<std::string_view, 12> kSameFields = {
    "model", "stream", "max_tokens", "temperature",        "top_p",      "top_k",
    "min_p", "seed",   "min_tokens", "repetition_penalty", "ignore_eos", "chat_template_kwargs"};

bool starts_with_ignoring_case(std::string_view text, std::string_view lower) {
  if (text.size() < lower.size()) return false;
  for (size_t i = 0; i < lower.size(); ++i) {
    const char c = text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] | 0x20) : text[i];
    if (c != lower[i]) return false;
  }
  return true;
}

class Reader {
 public:
  explicit Reader(const JsonValue& body) : body_(body) {}

  Result<MessagesInput> read() {
    if (!body_.is(Kind::kObject)) return field_error("request", "must be an object");
    ONELANE_TRY(read_system());
    const JsonValue& messages = body_["messages"];
    if (!messages.is(Kind::kArray) || messages.items.empty())
      return field_error("messages", "must be a non-empty array");
    for (size_t i = 0; i < messages.items.size(); ++i) {
      ONELANE_TRY(read_message(messages.items[i], format("messages[{}]", i)));
    }
    ONELANE_TRY(messages_.finish());
    if (messages_.empty()) return field_error("messages", "hold nothing that a model could read");
    JsonValue& chat = out_.chat.json;
    chat = json_object({{"messages", json_array(messages_.take_messages())}});
    out_.chat.origins = messages_.take_origins();
    for (const std::string_view name : kSameFields) {
      if (!body_[name].is(Kind::kNull)) add_member(chat, name, body_[name]);
    }
    if (const JsonValue& stop = body_["stop_sequences"]; !stop.is(Kind::kNull)) add_member(chat, "stop", stop);
    out_.chat.renamed = {{"stop", "stop_sequences"},
                         {"reasoning_effort", "output_config.effort"},
                         {"response_format.json_schema.schema", format_field() + ".schema"},
                         {"response_format", format_field()}};
    ONELANE_TRY(read_tools());
    ONELANE_TRY(read_tool_choice());
    ONELANE_TRY(read_thinking());
    return std::move(out_);
  }

 private:
  // ---- system and messages

  Result<void> read_system() {
    const JsonValue& system = body_["system"];
    if (system.is(Kind::kNull)) return {};
    ONELANE_ASSIGN(const std::string text, read_text_blocks(system, "system"));
    if (!text.empty()) messages_.add("system", json_text(text), "system");
    return {};
  }

  static Result<std::string> text_of(const JsonValue& block, std::string_view field, const std::string& path) {
    const JsonValue& value = block[field];
    if (!value.is(Kind::kString)) return field_error(format("{}.{}", path, field), "must be a string");
    return value.text;
  }

  // A string, or text blocks set off by blank lines.
  static Result<std::string> read_text_blocks(const JsonValue& content, const std::string& path) {
    if (content.is(Kind::kString)) return content.text;
    if (!content.is(Kind::kArray)) return field_error(path, "must be a string or an array of text blocks");
    std::string out;
    for (size_t i = 0; i < content.items.size(); ++i) {
      const std::string where = format("{}[{}]", path, i);
      if (content.items[i]["type"].text != "text") return field_error(where + ".type", "must be \"text\"");
      ONELANE_ASSIGN(const std::string text, text_of(content.items[i], "text", where));
      if (!out.empty() && !text.empty()) out += "\n\n";
      out += text;
    }
    return out;
  }

  Result<void> read_message(const JsonValue& message, const std::string& path) {
    if (!message.is(Kind::kObject)) return field_error(path, "must be an object");
    const JsonValue& role = message["role"];
    const JsonValue& content = message["content"];
    const std::string where = path + ".content";
    if (role.is(Kind::kString) && role.text == "assistant") return read_assistant(content, where, path);
    if (role.is(Kind::kString) && role.text == "system") {
      ONELANE_ASSIGN(const std::string text, read_text_blocks(content, where));
      messages_.add("system", json_text(text), path);
      return {};
    }
    if (!role.is(Kind::kString) || role.text != "user") {
      return field_error(path + ".role", format("{} is not one of user, assistant, system", dump_json(role)));
    }
    if (content.is(Kind::kString)) {
      messages_.add("user", content, path);
      return {};
    }
    ONELANE_ASSIGN(JsonValue parts, read_parts(content, where));
    messages_.add("user", std::move(parts), path);
    return {};
  }

  static Result<JsonValue> read_parts(const JsonValue& content, const std::string& path) {
    if (!content.is(Kind::kArray)) return field_error(path, "must be a string or an array of content blocks");
    JsonValue parts = json_array();
    for (size_t i = 0; i < content.items.size(); ++i) {
      ONELANE_ASSIGN(JsonValue part, read_part(content.items[i], format("{}[{}]", path, i)));
      parts.items.push_back(std::move(part));
    }
    return parts;
  }

  static JsonValue text_part(std::string text) {
    return json_object({{"type", json_text("text")}, {"text", json_text(std::move(text))}});
  }

  // A block of a user message or of a tool result, as chat has it.
  static Result<JsonValue> read_part(const JsonValue& block, const std::string& path) {
    const JsonValue& type = block["type"];
    if (!type.is(Kind::kString)) return field_error(path + ".type", "must be a string");
    if (type.text == "text") {
      ONELANE_ASSIGN(std::string text, text_of(block, "text", path));
      return text_part(std::move(text));
    }
    if (type.text == "tool_result") return read_tool_result(block, path);
    if (type.text == "document" && block["source"]["type"].text == "text") {
      ONELANE_ASSIGN(std::string text, text_of(block["source"], "data", path + ".source"));
      return text_part(titled(block["title"], text));
    }
    if (type.text == "search_result") {
      ONELANE_ASSIGN(const std::string text, read_text_blocks(block["content"], path + ".content"));
      return text_part(titled(block["title"], text));
    }
    if (type.text == "tool_reference") return text_part(block["tool_name"].text);
    if (type.text == "image") {
      return json_object({{"type", json_text("image_url")}, {"image_url", json_object({{"url", json_text("")}})}});
    }
    return json_object({{"type", type}});  // parse_conversation says what is unsupported
  }

  static std::string titled(const JsonValue& title, const std::string& text) {
    return title.is(Kind::kString) && !title.text.empty() ? title.text + "\n\n" + text : text;
  }

  static Result<JsonValue> read_tool_result(const JsonValue& block, const std::string& path) {
    ONELANE_ASSIGN(const std::string id, text_of(block, "tool_use_id", path));
    const JsonValue& content = block["content"];
    JsonValue inner = json_array();
    if (content.is(Kind::kString)) {
      if (!content.text.empty()) inner.items.push_back(text_part(content.text));
    } else if (!content.is(Kind::kNull)) {
      ONELANE_ASSIGN(inner, read_parts(content, path + ".content"));
      for (JsonValue& part : inner.items) {
        if (part["type"].text == "image_url") part = text_part(std::string(kImageInResult));
      }
    }
    if (block["is_error"].truthy()) mark_error(inner);
    return json_object({{"type", json_text("tool_result")}, {"tool_use_id", json_text(id)}, {"content", inner}});
  }

  // The prompt has no mark for a failed call: the words must say it, and those of Claude Code's own tools do.
  static void mark_error(JsonValue& parts) {
    if (parts.items.empty()) {
      parts.items.push_back(text_part("Error: the tool failed without output"));
      return;
    }
    JsonValue& first = parts.items.front();
    if (first["type"].text != "text") return;
    std::string& text = first.members[1].value.text;
    if (!starts_with_ignoring_case(text, "error") && !text.starts_with('<')) text.insert(0, "Error: ");
  }

  Result<void> read_assistant(const JsonValue& content, const std::string& where, const std::string& path) {
    if (content.is(Kind::kString)) {
      messages_.add_answer(content.text, path);
      return {};
    }
    if (!content.is(Kind::kArray)) return field_error(where, "must be a string or an array of content blocks");
    for (size_t i = 0; i < content.items.size(); ++i) {
      ONELANE_TRY(read_assistant_block(content.items[i], format("{}[{}]", where, i), path));
    }
    return {};
  }

  Result<void> read_assistant_block(const JsonValue& block, const std::string& where, const std::string& path) {
    const JsonValue& type = block["type"];
    if (!type.is(Kind::kString)) return field_error(where + ".type", "must be a string");
    if (type.text == "text") {
      ONELANE_ASSIGN(const std::string text, text_of(block, "text", where));
      messages_.add_answer(text, path);
    } else if (type.text == "thinking") {
      ONELANE_ASSIGN(const std::string text, text_of(block, "thinking", where));
      messages_.add_reasoning(text.empty() ? text_of_signature(block["signature"].text) : text, path);
    } else if (type.text == "tool_use") {
      ONELANE_ASSIGN(const std::string name, text_of(block, "name", where));
      ONELANE_ASSIGN(const std::string id, text_of(block, "id", where));
      if (name.empty()) return field_error(where + ".name", "must not be empty");
      // Some clients keep the streamed JSON as a string.
      if (!block["input"].is(Kind::kObject) && !block["input"].is(Kind::kString)) {
        return field_error(where + ".input", "must be an object");
      }
      messages_.add_call(chat_call(id, name, block["input"]), path);
    } else if (type.text != "redacted_thinking") {
      out_.chat.ignored.push_back(format("{} ({})", where, type.text));
    }
    return {};
  }

  // ---- tools and thinking

  Result<void> read_tools() {
    const JsonValue& tools = body_["tools"];
    if (tools.is(Kind::kNull)) return {};
    if (!tools.is(Kind::kArray)) return field_error("tools", "must be an array");
    std::vector<JsonValue> schemas;
    for (size_t i = 0; i < tools.items.size(); ++i) {
      const JsonValue& tool = tools.items[i];
      const std::string path = format("tools[{}]", i);
      if (!tool.is(Kind::kObject)) return field_error(path, "must be an object");
      const JsonValue& type = tool["type"];
      const JsonValue& schema = tool["input_schema"];
      const bool typed = type.is(Kind::kString) && type.text != "custom";
      if (typed && schema.is(Kind::kNull)) {
        out_.chat.ignored.push_back(format("{} ({})", path, type.text));
        continue;
      }
      ONELANE_ASSIGN(const std::string name, text_of(tool, "name", path));
      if (name.empty()) return field_error(path + ".name", "must not be empty");
      if (!schema.is(Kind::kObject)) return field_error(path + ".input_schema", "must be an object");
      names_.push_back(name);
      schemas.push_back(chat_tool(name, tool["description"], schema));
    }
    if (!schemas.empty()) add_member(out_.chat.json, "tools", json_array(std::move(schemas)));
    return {};
  }

  Result<void> read_tool_choice() {
    const JsonValue& choice = body_["tool_choice"];
    if (choice.is(Kind::kNull)) return {};
    if (!choice.is(Kind::kObject)) return field_error("tool_choice", "must be an object");
    const JsonValue& type = choice["type"];
    ToolChoice& out = out_.chat.tool_choice;
    if (choice["disable_parallel_tool_use"].truthy()) {
      add_member(out_.chat.json, "parallel_tool_calls", json_bool(false));
    }
    // All tools were left out, as when Claude Code searches the web: an answer in words is all there can be.
    const bool nothing_left = names_.empty() && !out_.chat.ignored.empty();
    if (type.is(Kind::kString) && type.text == "auto") return {};
    if (type.is(Kind::kString) && type.text == "none") {
      out.mode = ToolChoice::Mode::kNone;
      return {};
    }
    if (type.is(Kind::kString) && type.text == "any") {
      if (!nothing_left) out.mode = ToolChoice::Mode::kRequired;
      return {};
    }
    if (type.is(Kind::kString) && type.text == "tool") {
      ONELANE_ASSIGN(const std::string name, text_of(choice, "name", "tool_choice"));
      for (const std::string& known : names_) {
        if (known == name) out = {ToolChoice::Mode::kNamed, name};
      }
      if (out.mode == ToolChoice::Mode::kNamed || is_left_out(name)) return {};
      return field_error("tool_choice.name", format("tools has no {}", dump_json_string(name)));
    }
    return field_error("tool_choice.type", format("{} is not one of auto, any, tool, none", dump_json(type)));
  }

  bool is_left_out(std::string_view name) const {
    for (const JsonValue& tool : body_["tools"].items) {
      if (tool["name"].text == name || tool["type"].text == name) return true;
    }
    return false;
  }

  Result<void> read_thinking() {
    const JsonValue& thinking = body_["thinking"];
    if (!thinking.is(Kind::kNull) && !thinking.is(Kind::kObject)) return field_error("thinking", "must be an object");
    const JsonValue& type = thinking["type"];
    bool on = false;
    if (type.is(Kind::kString)) {
      if (type.text != "enabled" && type.text != "adaptive" && type.text != "between_tools" &&
          type.text != "disabled") {
        return field_error("thinking.type", format("{} is not one of enabled, adaptive, disabled", dump_json(type)));
      }
      on = type.text != "disabled";
    } else if (!thinking.is(Kind::kNull)) {
      return field_error("thinking.type", "must be a string");
    }
    out_.hide_thinking = thinking["display"].text == "omitted";
    if (body_["chat_template_kwargs"].is(Kind::kNull) || type.is(Kind::kString)) {
      add_member(out_.chat.json, "thinking_mode", json_text(on ? "thinking" : "chat"));
    }
    const JsonValue& config = body_["output_config"];
    if (!config.is(Kind::kNull) && !config.is(Kind::kObject)) return field_error("output_config", "must be an object");
    if (!config["effort"].is(Kind::kNull)) {
      add_member(out_.chat.json, "reasoning_effort", config["effort"]);
    } else if (const auto budget = whole_number(thinking["budget_tokens"]); budget && *budget < 4096) {
      add_member(out_.chat.json, "reasoning_effort", json_text("low"));
    }
    return read_format(config["format"].is(Kind::kNull) ? body_["output_format"] : config["format"]);
  }

  // The schema of the answer; clients from before output_config have it at the top.
  std::string format_field() const {
    return body_["output_config"]["format"].is(Kind::kNull) ? "output_format" : "output_config.format";
  }

  Result<void> read_format(const JsonValue& rule) {
    if (rule.is(Kind::kNull)) return {};
    if (!rule.is(Kind::kObject)) return field_error(format_field(), "must be an object");
    if (rule["type"].text != "json_schema") return field_error(format_field() + ".type", "must be \"json_schema\"");
    const JsonValue schema = json_object({{"name", json_text("answer")}, {"schema", rule["schema"]}});
    add_member(out_.chat.json, "response_format",
               json_object({{"type", json_text("json_schema")}, {"json_schema", schema}}));
    return {};
  }

  const JsonValue& body_;
  MessagesInput out_;
  ChatMessages messages_;
  std::vector<std::string> names_;  // of the tools that the model sees
};

}  // namespace

Result<MessagesInput> read_messages_input(const JsonValue& body) { return Reader(body).read(); }

std::string thinking_signature(std::string_view hidden_text) {
  return std::string(kSignature) + std::string(hidden_text);
}

std::string_view text_of_signature(std::string_view signature) {
  return signature.starts_with(kSignature) ? signature.substr(kSignature.size()) : std::string_view();
}

}  // namespace onelane
