#include "lane/tool_schema.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/format.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

std::string value_problem(const Json& schema, const Json& value, const std::string& path) {
  const std::string type = schema.value("type", "");
  const bool fits = type == "string"    ? value.is_string()
                    : type == "integer" ? value.is_number_integer()
                    : type == "number"  ? value.is_number()
                    : type == "boolean" ? value.is_boolean()
                    : type == "array"   ? value.is_array()
                    : type == "object"  ? value.is_object()
                                        : true;
  if (!fits) return format("{} is {}, not of type {}", path, value.dump(), type);
  if (schema.contains("enum") &&
      std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) {
    return format("{} is {}, none of {}", path, value.dump(), schema["enum"].dump());
  }
  if (value.is_array() && schema.contains("items")) {
    for (const Json& item : value) {
      if (std::string problem = value_problem(schema["items"], item, path + "[]"); !problem.empty()) return problem;
    }
  }
  if (!value.is_object()) return "";
  for (const Json& name : schema.value("required", Json::array())) {
    if (!value.contains(name.get<std::string>())) return format("{} lacks {}", path, name.dump());
  }
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [name, member] : value.items()) {
    if (!properties.contains(name)) return format("{} has an unknown member \"{}\"", path, name);
    if (std::string problem = value_problem(properties[name], member, path + "." + name); !problem.empty()) {
      return problem;
    }
  }
  return "";
}

}  // namespace

std::string call_problem(const Json& tools, const ChatToolCall& call) {
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    if (function.at("name") != call.name) continue;
    const Json arguments = Json::parse(call.arguments, nullptr, false);
    if (!arguments.is_object())
      return format("the arguments of {} are not a JSON object: {}", call.name, call.arguments);
    return value_problem(function.at("parameters"), arguments, call.name);
  }
  return format("calls \"{}\", which was not offered", call.name);
}

}  // namespace onelane
