// Building JsonValue trees: for the protocols that hand a client's JSON on in another shape and back, to the digit
// (nlohmann's values lose big integers).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/python_json.h"

namespace onelane {

inline JsonValue json_text(std::string text) {
  JsonValue value;
  value.kind = JsonValue::Kind::kString;
  value.text = std::move(text);
  return value;
}

inline JsonValue json_number(int64_t number) {
  JsonValue value;
  value.kind = JsonValue::Kind::kNumber;
  value.text = std::to_string(number);
  return value;
}

inline JsonValue json_bool(bool truth) {
  JsonValue value;
  value.kind = JsonValue::Kind::kBool;
  value.text = truth ? "true" : "false";
  return value;
}

inline JsonValue json_array(std::vector<JsonValue> items = {}) {
  JsonValue value;
  value.kind = JsonValue::Kind::kArray;
  value.items = std::move(items);
  return value;
}

inline JsonValue json_object(std::vector<JsonMember> members = {}) {
  JsonValue value;
  value.kind = JsonValue::Kind::kObject;
  value.members = std::move(members);
  return value;
}

// Appends a member; the caller knows that there is none of this name yet.
inline void add_member(JsonValue& object, std::string_view name, JsonValue value) {
  object.members.push_back({std::string(name), std::move(value)});
}

// {"type": "function", "function": {"name", "description"?, "parameters"}}: a tool as chat requests have it.
JsonValue chat_tool(std::string name, const JsonValue& description, const JsonValue& parameters);

// {"id"?, "type": "function", "function": {"name", "arguments"}}
JsonValue chat_call(const std::string& id, std::string name, JsonValue arguments);

}  // namespace onelane
