#include "api/responses_tools.h"

#include <utility>

#include "api/json_tree.h"
#include "base/format.h"

namespace onelane {
namespace {

using Kind = JsonValue::Kind;

class Reader {
 public:
  Result<ResponsesTools> read(const JsonValue& body) {
    const JsonValue& tools = body["tools"];
    if (!tools.is(Kind::kNull) && !tools.is(Kind::kArray)) return field_error("tools", "must be an array");
    for (size_t i = 0; i < tools.items.size(); ++i) {
      ONELANE_TRY(read_tool(tools.items[i], format("tools[{}]", i), ""));
    }
    ONELANE_TRY(read_choice(body["tool_choice"]));
    return std::move(out_);
  }

 private:
  static Result<std::string> name_of(const JsonValue& tool, const std::string& path) {
    const JsonValue& name = tool["name"];
    if (!name.is(Kind::kString) || name.text.empty()) return field_error(path + ".name", "must be a non-empty string");
    return name.text;
  }

  Result<void> read_tool(const JsonValue& tool, const std::string& path, const std::string& space) {
    const JsonValue& type = tool["type"];
    if (!type.is(Kind::kString)) return field_error(path + ".type", "must be a string");
    const bool custom = type.text == "custom";
    if (type.text == "namespace" && space.empty()) {
      ONELANE_ASSIGN(const std::string name, name_of(tool, path));
      const JsonValue& inner = tool["tools"];
      if (!inner.is(Kind::kArray)) return field_error(path + ".tools", "must be an array");
      for (size_t i = 0; i < inner.items.size(); ++i) {
        ONELANE_TRY(read_tool(inner.items[i], format("{}.tools[{}]", path, i), name));
      }
      return {};
    }
    if (type.text != "function" && !custom) {
      out_.ignored.push_back(format("{} ({})", path, type.text));
      return {};
    }
    // Chat's nested form is a common mistake, and says the same.
    const JsonValue& function = tool["function"].is(Kind::kObject) ? tool["function"] : tool;
    ONELANE_ASSIGN(const std::string name, name_of(function, path));
    ResponsesTool entry{responses_function_name(space, name), name, space, custom};
    out_.schemas.push_back(custom ? custom_tool(entry.function, tool)
                                  : chat_tool(entry.function, function["description"], function["parameters"]));
    out_.tools.push_back(std::move(entry));
    return {};
  }

  static JsonValue custom_tool(const std::string& name, const JsonValue& tool) {
    std::string description = tool["description"].text;
    const JsonValue& rule = tool["format"];
    if (rule["type"].text == "grammar" && rule["definition"].is(Kind::kString)) {
      if (!description.empty()) description += "\n\n";
      description += format("The input must match this {} grammar:\n{}", rule["syntax"].text, rule["definition"].text);
    }
    const JsonValue input = json_object({{"type", json_text("string")}});
    return chat_tool(name, json_text(std::move(description)),
                     json_object({{"type", json_text("object")},
                                  {"properties", json_object({{"input", input}})},
                                  {"required", json_array({json_text("input")})}}));
  }

  Result<void> read_choice(const JsonValue& choice) {
    if (choice.is(Kind::kNull)) return {};
    if (choice.is(Kind::kObject)) return read_chosen_tools(choice);
    return read_mode(choice, "tool_choice", true);
  }

  Result<void> read_mode(const JsonValue& mode, const std::string& path, bool with_none) {
    if (mode.is(Kind::kString) && mode.text == "auto") return {};
    if (mode.is(Kind::kString) && mode.text == "none" && with_none) {
      out_.choice.mode = ToolChoice::Mode::kNone;
      return {};
    }
    if (mode.is(Kind::kString) && mode.text == "required") {
      // Only tools that were left out: an answer in words is all there can be.
      if (!out_.schemas.empty() || out_.ignored.empty()) out_.choice.mode = ToolChoice::Mode::kRequired;
      return {};
    }
    return field_error(path, format("{} is not one of auto, {}required", dump_json(mode), with_none ? "none, " : ""));
  }

  Result<void> read_chosen_tools(const JsonValue& choice) {
    const std::string& type = choice["type"].text;
    if (type == "function" || type == "custom") {
      ONELANE_ASSIGN(const size_t index, find_tool(choice, "tool_choice"));
      out_.choice = {ToolChoice::Mode::kNamed, out_.tools[index].function};
      return {};
    }
    if (!choice["type"].is(Kind::kString)) return field_error("tool_choice.type", "must be a string");
    if (type != "allowed_tools") return {};  // one of the tools that are left out
    const JsonValue& allowed = choice["tools"];
    if (!allowed.is(Kind::kArray)) return field_error("tool_choice.tools", "must be an array");
    std::vector<bool> keep(out_.schemas.size(), false);
    for (size_t i = 0; i < allowed.items.size(); ++i) {
      const std::string& kind = allowed.items[i]["type"].text;
      if (kind != "function" && kind != "custom") continue;
      ONELANE_ASSIGN(const size_t index, find_tool(allowed.items[i], format("tool_choice.tools[{}]", i)));
      keep[index] = true;
    }
    std::vector<JsonValue> kept;
    for (size_t i = 0; i < keep.size(); ++i) {
      if (keep[i]) kept.push_back(std::move(out_.schemas[i]));
    }
    out_.schemas = std::move(kept);
    return read_mode(choice["mode"], "tool_choice.mode", false);
  }

  Result<size_t> find_tool(const JsonValue& named, const std::string& path) const {
    const JsonValue& name = named["name"].is(Kind::kNull) ? named["function"]["name"] : named["name"];
    const std::string& space = named["namespace"].text;
    for (size_t i = 0; i < out_.tools.size(); ++i) {
      const ResponsesTool& tool = out_.tools[i];
      const bool meant = tool.name == name.text && (space.empty() || tool.space == space);
      if (name.is(Kind::kString) && (meant || tool.function == name.text)) return i;
    }
    return field_error(path + ".name", format("tools has no {}", dump_json(name)));
  }

  ResponsesTools out_;
};

}  // namespace

Result<ResponsesTools> read_responses_tools(const JsonValue& body) { return Reader().read(body); }

std::string responses_function_name(const std::string& space, const std::string& name) {
  if (space.empty() || space == "functions") return name;
  return space + (space.ends_with('_') ? "" : "__") + name;
}

}  // namespace onelane
