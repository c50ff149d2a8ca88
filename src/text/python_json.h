// JSON as Python's json module reads and writes it.
//
// DeepSeek's prompt encoders call json.dumps(value, ensure_ascii=False), so the model has seen exactly that text:
// ", " and ": " between items, keys in the order they came, numbers as Python prints them. One byte of difference
// here is another prompt (spec/model.md, trap 44).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace onelane {

struct JsonMember;

struct JsonValue {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  std::string text;                 // kString: the text; kBool, kNumber: as Python's json prints it
  std::vector<JsonValue> items;     // kArray
  std::vector<JsonMember> members;  // kObject, in order of first appearance

  bool is(Kind other) const { return kind == other; }
  bool is_true() const { return kind == Kind::kBool && text == "true"; }
  // The member `key`, or null (the JSON value) when this is no object or has none.
  const JsonValue& operator[](std::string_view key) const;
  // Python's truth value: null, false, 0, "", [] and {} are false.
  bool truthy() const;
};

struct JsonMember {
  std::string name;
  JsonValue value;
};

// Parses JSON text. A repeated key keeps its first place and its last value, as in Python; integers keep all digits.
// Errors say where: malformed text, invalid UTF-8, numbers beyond a double's range, nesting deeper than 256.
Result<JsonValue> parse_json(std::string_view json);

// json.dumps(value, ensure_ascii=False).
std::string dump_json(const JsonValue& value);
// The same of one string, quotes included.
std::string dump_json_string(std::string_view text);
// Appends the inside of a JSON string. `text` may be any stretch of a longer text: each byte is escaped by itself.
void append_json_escaped(std::string& out, std::string_view text);

// Whether `text` is one complete JSON value.
bool is_json(std::string_view text);

// "path: why": a request's field that is wrong, by its path ("messages[2].content").
Error field_error(const std::string& path, std::string_view why);

}  // namespace onelane
