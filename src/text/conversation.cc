#include "text/conversation.h"

#include "base/format.h"
#include "text/python_json.h"

namespace onelane {
namespace {

using Kind = JsonValue::Kind;

class Reader {
 public:
  explicit Reader(const PromptFormat& prompt_format) : format_(prompt_format) {}

  Result<Conversation> read(const JsonValue& root) {
    const JsonValue& messages = root.is(Kind::kArray) ? root : root["messages"];
    if (!root.is(Kind::kArray) && !root.is(Kind::kObject)) {
      return field_error("request", "must be an object with messages, or an array of messages");
    }
    if (!messages.is(Kind::kArray) || messages.items.empty())
      return field_error("messages", "must be a non-empty array");
    for (size_t i = 0; i < messages.items.size(); ++i) {
      ONELANE_ASSIGN(Message message, read_message(messages.items[i], format("messages[{}]", i)));
      conversation_.messages.push_back(std::move(message));
    }
    ONELANE_TRY(read_mode(root));
    ONELANE_TRY(attach_request_fields(root));
    return std::move(conversation_);
  }

 private:
  Result<void> read_mode(const JsonValue& root) {
    const JsonValue& extra = root["chat_template_kwargs"];
    std::optional<bool> thinking;
    for (const char* key : {"thinking", "enable_thinking"}) {
      if (!extra[key].is(Kind::kNull)) thinking = extra[key].truthy();
    }
    const JsonValue& switch_type = root["thinking"]["type"];
    if (switch_type.is(Kind::kString)) thinking = switch_type.text != "disabled";
    const JsonValue& mode = root["thinking_mode"];
    if (!mode.is(Kind::kNull)) {
      if (mode.text != "thinking" && mode.text != "chat")
        return field_error("thinking_mode", "must be \"thinking\" or \"chat\"");
      thinking = mode.text == "thinking";
    }
    const JsonValue& own = root["reasoning_effort"];
    const JsonValue& effort = own.is(Kind::kNull) ? extra["reasoning_effort"] : own;
    if (!effort.is(Kind::kNull) && !effort.is(Kind::kString) && !effort.is(Kind::kNumber)) {
      return field_error("reasoning_effort", "must be a name or an integer");
    }
    if (effort.is(Kind::kNumber) && effort.text.find_first_not_of("-0123456789") != std::string::npos) {
      return field_error("reasoning_effort", format("{} is not an integer", effort.text));
    }
    conversation_.effort = effort.text;
    conversation_.thinking = thinking.value_or(effort.text != "none");
    const JsonValue& drop = root["drop_thinking"];
    if (!drop.is(Kind::kNull) && !drop.is(Kind::kBool)) return field_error("drop_thinking", "must be true or false");
    conversation_.drop_thinking = drop.is(Kind::kNull) || drop.is_true();
    return {};
  }

  // Request-level tools and schema belong to a system message at the front.
  Result<void> attach_request_fields(const JsonValue& root) {
    ONELANE_ASSIGN(std::vector<std::string> tools, read_tools(root["tools"], "tools"));
    std::string schema;
    const JsonValue& response = root["response_format"];
    if (!response.is(Kind::kNull)) {
      const std::string& type = response["type"].text;
      if (type == "json_schema") {
        const JsonValue& inner = response["json_schema"]["schema"];
        if (!inner.is(Kind::kObject)) return field_error("response_format.json_schema.schema", "must be an object");
        schema = dump_json(inner);
      } else if (type != "text" && type != "json_object") {
        return field_error("response_format.type", "must be \"text\", \"json_object\" or \"json_schema\"");
      }
    }
    if (tools.empty() && schema.empty()) return {};
    auto& messages = conversation_.messages;
    if (messages.front().role != Role::kSystem) {
      Message system;
      system.role = Role::kSystem;
      system.parts.emplace_back();
      messages.insert(messages.begin(), std::move(system));
    }
    Message& first = messages.front();
    if (!tools.empty()) first.tools = std::move(tools);
    if (!schema.empty()) first.response_format = std::move(schema);
    return {};
  }

  Result<Role> read_role(const JsonValue& value, const std::string& path) const {
    if (value.is(Kind::kString)) {
      if (value.text == "system") return Role::kSystem;
      if (value.text == "developer") return format_.developer_role ? Role::kDeveloper : Role::kSystem;
      if (value.text == "user") return Role::kUser;
      if (value.text == "assistant") return Role::kAssistant;
      if (value.text == "tool") return Role::kTool;
      if (value.text == "latest_reminder") return Role::kReminder;
    }
    return field_error(
        path + ".role",
        format("{} is not one of system, developer, user, assistant, tool, latest_reminder", dump_json(value)));
  }

  Result<Message> read_message(const JsonValue& value, const std::string& path) {
    if (!value.is(Kind::kObject)) return field_error(path, "must be an object");
    Message message;
    ONELANE_ASSIGN(message.role, read_role(value["role"], path));
    ONELANE_TRY(read_content(value, path, message));
    ONELANE_ASSIGN(message.tools, read_tools(value["tools"], path + ".tools"));
    if (value["response_format"].truthy()) message.response_format = dump_json(value["response_format"]);
    const JsonValue& task = value["task"];
    if (!task.is(Kind::kNull)) {
      if (!task.is(Kind::kString) || !task_text(task.text)) {
        return field_error(path + ".task", format("{} is not one of action, query, authority, domain, title, read_url",
                                                  dump_json(task)));
      }
      message.task = task.text;
    }
    if (message.role == Role::kAssistant) ONELANE_TRY(read_assistant(value, path, message));
    return message;
  }

  Result<void> read_assistant(const JsonValue& value, const std::string& path, Message& message) {
    const bool deepseek_name = !value["reasoning_content"].is(Kind::kNull);
    const std::string field = deepseek_name ? "reasoning_content" : "reasoning";
    const JsonValue& reasoning = value[field];
    if (!reasoning.is(Kind::kNull) && !reasoning.is(Kind::kString))
      return field_error(path + "." + field, "must be a string");
    message.reasoning = reasoning.text;
    ONELANE_TRY(refuse_placeholder(message.reasoning, path + "." + field));
    message.unfinished = value["wo_eos"].truthy() || value["prefix"].truthy();
    const JsonValue& calls = value["tool_calls"];
    if (calls.is(Kind::kNull)) return {};
    if (!calls.is(Kind::kArray)) return field_error(path + ".tool_calls", "must be an array");
    for (size_t i = 0; i < calls.items.size(); ++i) {
      ONELANE_ASSIGN(CallRecord call, read_call(calls.items[i], format("{}.tool_calls[{}]", path, i)));
      message.calls.push_back(std::move(call));
    }
    return {};
  }

  static Result<CallRecord> read_call(const JsonValue& value, const std::string& path) {
    const JsonValue& function = value["function"];
    if (!function.is(Kind::kObject)) return field_error(path + ".function", "must be an object");
    const JsonValue& name = function["name"];
    if (!name.is(Kind::kString) || name.text.empty())
      return field_error(path + ".function.name", "must be a non-empty string");
    CallRecord call;
    call.name = name.text;
    const JsonValue& id = value["id"].truthy() ? value["id"] : function["id"];
    if (id.is(Kind::kString)) call.id = id.text;
    call.arguments = read_arguments(function["arguments"]);
    return call;
  }

  // Arguments are an object, or its JSON in a string (OpenAI), or that encoded once more (clients that re-encode
  // history). What is none of these is passed as one string parameter, so that no history is refused.
  static std::vector<CallArgument> read_arguments(const JsonValue& source) {
    JsonValue object = source;
    for (int depth = 0; depth < 2 && object.is(Kind::kString); ++depth) {
      auto parsed = parse_json(object.text);
      if (!parsed) break;
      object = *std::move(parsed);
    }
    std::vector<CallArgument> arguments;
    if (object.is(Kind::kObject)) {
      for (const auto& [name, value] : object.members) {
        const bool is_string = value.is(Kind::kString);
        arguments.push_back({name, is_string ? value.text : dump_json(value), is_string});
      }
    } else if (source.is(Kind::kString) && !source.text.empty()) {
      arguments.push_back({"arguments", source.text, true});
    } else if (!source.is(Kind::kString) && !source.is(Kind::kNull)) {
      arguments.push_back({"arguments", dump_json(source), false});
    }
    return arguments;
  }

  static Result<std::vector<std::string>> read_tools(const JsonValue& value, const std::string& path) {
    std::vector<std::string> schemas;
    if (value.is(Kind::kNull)) return schemas;
    if (!value.is(Kind::kArray)) return field_error(path, "must be an array");
    for (size_t i = 0; i < value.items.size(); ++i) {
      const JsonValue& function = value.items[i]["function"];
      if (!function.is(Kind::kObject)) return field_error(format("{}[{}].function", path, i), "must be an object");
      schemas.push_back(dump_json(function));
    }
    return schemas;
  }

  Result<void> read_content(const JsonValue& value, const std::string& path, Message& message) {
    const char* field = value["content_blocks"].is(Kind::kNull) ? "content" : "content_blocks";
    const JsonValue& content = value[field];
    const std::string where = path + "." + field;
    std::vector<ContentPart> parts;
    if (content.is(Kind::kArray)) {
      for (size_t i = 0; i < content.items.size(); ++i) {
        ONELANE_ASSIGN(ContentPart part, read_part(content.items[i], format("{}[{}]", where, i)));
        parts.push_back(std::move(part));
      }
    } else if (content.is(Kind::kString)) {
      ONELANE_TRY(refuse_placeholder(content.text, where));
      parts.push_back({content.text, false, {}});
    } else if (!content.is(Kind::kNull)) {
      if (message.role != Role::kTool) return field_error(where, "must be a string or an array of parts");
      parts.push_back({dump_json(content), false, {}});  // clients that send a result as bare JSON
    } else if (message.role != Role::kAssistant && message.role != Role::kTool) {
      return field_error(where, "is missing: must be a string or an array of parts");
    }
    if (message.role == Role::kUser && !parts.empty()) {
      message.parts = std::move(parts);
      return {};
    }
    ContentPart joined{join(parts), message.role == Role::kTool, {}};
    if (const JsonValue& id = value["tool_call_id"]; id.is(Kind::kString)) joined.tool_call_id = id.text;
    message.parts.push_back(std::move(joined));
    return {};
  }

  static std::string join(const std::vector<ContentPart>& parts) {
    std::string text;
    for (const ContentPart& part : parts) {
      if (&part != &parts.front()) text += "\n\n";
      text += part.text;
    }
    return text;
  }

  Result<ContentPart> read_part(const JsonValue& part, const std::string& path) {
    if (part.is(Kind::kString)) {
      ONELANE_TRY(refuse_placeholder(part.text, path));
      return ContentPart{part.text, false, {}};
    }
    const JsonValue& type = part["type"];
    if (!type.is(Kind::kString)) return field_error(path + ".type", "must be a string");
    if (type.text == "text") {
      const JsonValue& text = part["text"];
      if (!text.is(Kind::kString)) return field_error(path + ".text", "must be a string");
      ONELANE_TRY(refuse_placeholder(text.text, path + ".text"));
      return ContentPart{text.text, false, {}};
    }
    if (type.text == "tool_result") {
      const JsonValue& content = part["content"];
      std::vector<ContentPart> inner;
      if (content.is(Kind::kString)) {
        ONELANE_TRY(refuse_placeholder(content.text, path + ".content"));
        inner.push_back({content.text, false, {}});
      } else if (content.is(Kind::kArray)) {
        for (size_t i = 0; i < content.items.size(); ++i) {
          if (content.items[i]["type"].text == "tool_result")
            return field_error(path + ".content", "tool results do not nest");
          ONELANE_ASSIGN(ContentPart item, read_part(content.items[i], format("{}.content[{}]", path, i)));
          inner.push_back(std::move(item));
        }
      } else if (!content.is(Kind::kNull)) {
        return field_error(path + ".content", "must be a string or an array of parts");
      }
      return ContentPart{join(inner), true, part["tool_use_id"].text};
    }
    if ((type.text == "image_url" || type.text == "image") && !format_.image_placeholder.empty()) {
      ++conversation_.images;
      return ContentPart{std::string(format_.image_placeholder), false, {}};
    }
    return ContentPart{format("[Unsupported {}]", type.text), false, {}};
  }

  // The placeholder in running text would be counted as an image that nobody sent.
  Result<void> refuse_placeholder(std::string_view text, const std::string& path) const {
    if (format_.image_placeholder.empty() || text.find(format_.image_placeholder) == std::string_view::npos) return {};
    return field_error(path,
                       format("contains the image placeholder {}; send images as parts", format_.image_placeholder));
  }

  const PromptFormat& format_;
  Conversation conversation_;
};

}  // namespace

Result<Conversation> parse_conversation(std::string_view json, const PromptFormat& format) {
  auto root = parse_json(json);
  if (!root) return std::move(root).error().in("request");
  return Reader(format).read(*root);
}

}  // namespace onelane
