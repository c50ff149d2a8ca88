#include "api/json_fields.h"

#include <charconv>
#include <cmath>

#include "base/format.h"

namespace onelane {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMostValues = 2'000'000;  // a prompt of a million token ids has room; memory stays below 400 MB

const char* kind_name(const JsonValue& value) {
  switch (value.kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kNumber:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kArray:
      return "an array";
    case Kind::kObject:
      return "an object";
  }
  return "";
}

std::string not_a(std::string_view wanted, const JsonValue& value) {
  return format("must be {}, not {}", wanted, kind_name(value));
}

// An upper bound on the values of a JSON text, from its commas and brackets outside strings.
size_t count_values(std::string_view json) {
  size_t count = 1;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == ',' || c == '[' || c == '{') {
      ++count;
    }
  }
  return count;
}

// The parser counts lines and columns; clients send one long line, where the byte offset is what helps.
std::string with_offset(std::string message, std::string_view body) {
  constexpr std::string_view kLine = "at line ", kColumn = ", column ";
  const size_t line_at = message.find(kLine), column_at = message.find(kColumn);
  if (line_at == std::string::npos || column_at == std::string::npos) return message;
  size_t line = 1, column = 1;
  const char* end = message.data() + message.size();
  std::from_chars(message.data() + line_at + kLine.size(), end, line);
  const auto parsed = std::from_chars(message.data() + column_at + kColumn.size(), end, column);
  size_t start = 0;
  for (size_t i = 1; i < line; ++i) {
    const size_t next = body.find('\n', start);
    if (next == std::string_view::npos) break;
    start = next + 1;
  }
  const size_t offset = std::min(body.size(), start + (column > 0 ? column - 1 : 0));
  return message.replace(line_at, static_cast<size_t>(parsed.ptr - message.data()) - line_at,
                         format("at byte {}", offset));
}

std::optional<double> real_number(const JsonValue& value) {
  if (!value.is(Kind::kNumber)) return std::nullopt;
  double number = 0;
  const char* end = value.text.data() + value.text.size();
  const auto parsed = std::from_chars(value.text.data(), end, number);
  if (parsed.ec != std::errc{} || parsed.ptr != end || !std::isfinite(number)) return std::nullopt;
  return number;
}

}  // namespace

std::optional<int64_t> whole_number(const JsonValue& value) {
  if (!value.is(Kind::kNumber)) return std::nullopt;
  int64_t whole = 0;
  const char* end = value.text.data() + value.text.size();
  const auto parsed = std::from_chars(value.text.data(), end, whole);
  if (parsed.ec == std::errc{} && parsed.ptr == end) return whole;
  const auto number = real_number(value);
  if (!number || *number != std::floor(*number) || std::abs(*number) > 0x1p53) return std::nullopt;
  return static_cast<int64_t>(*number);
}

ApiProblem parse_body(std::string_view body, JsonValue& out) {
  if (body.empty()) return ApiError{.message = "the request has no body; it must be a JSON object"};
  if (count_values(body) > kMostValues) {
    return ApiError{.message = format("the body has more than {} JSON values", kMostValues)};
  }
  auto parsed = parse_json(body);
  if (!parsed) {
    return ApiError{.message = "the body is not valid JSON: " + with_offset(parsed.error().message, body)};
  }
  if (!parsed->is(Kind::kObject)) return ApiError{.message = "the body " + not_a("a JSON object", *parsed)};
  out = *std::move(parsed);
  return {};
}

std::string JsonFields::path_of(std::string_view key) const {
  if (key.empty()) return path_;
  return path_.empty() ? std::string(key) : format("{}.{}", path_, key);
}

void JsonFields::fail(std::string_view key, std::string_view why, std::string code) {
  if (!ok()) return;
  std::string path = path_of(key);
  std::string message = path.empty() ? std::string(why) : format("{}: {}", path, why);
  *problem_ = ApiError{.message = std::move(message), .param = std::move(path), .code = std::move(code)};
}

const JsonValue* JsonFields::find(std::string_view key) const {
  if (!ok()) return nullptr;
  const JsonValue& value = (*object_)[key];
  return value.is(Kind::kNull) ? nullptr : &value;
}

std::optional<bool> JsonFields::boolean(std::string_view key) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is(Kind::kBool)) {
    fail(key, not_a("true or false", *value));
    return std::nullopt;
  }
  return value->is_true();
}

std::optional<int64_t> JsonFields::integer(std::string_view key, int64_t low, int64_t high) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto whole = whole_number(*value);
  if (!value->is(Kind::kNumber)) {
    fail(key, not_a("an integer", *value));
  } else if (!whole && real_number(*value).value_or(1.5) != std::floor(real_number(*value).value_or(1.5))) {
    fail(key, format("must be an integer, not {}", value->text));
  } else if (!whole || *whole < low || *whole > high) {
    fail(key, format("must lie in [{}, {}], not {}", low, high, value->text));
  } else {
    return whole;
  }
  return std::nullopt;
}

std::optional<double> JsonFields::number(std::string_view key, double low, double high) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is(Kind::kNumber)) {
    fail(key, not_a("a number", *value));
    return std::nullopt;
  }
  const auto number = real_number(*value);
  if (!number || !(*number >= low && *number <= high)) {
    fail(key, format("must lie in [{}, {}], not {}", low, high, value->text));
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> JsonFields::text(std::string_view key) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is(Kind::kString)) {
    fail(key, not_a("a string", *value));
    return std::nullopt;
  }
  return value->text;
}

std::optional<std::string> JsonFields::one_of(std::string_view key, std::initializer_list<std::string_view> values) {
  auto given = text(key);
  if (!given) return std::nullopt;
  for (const std::string_view value : values) {
    if (*given == value) return given;
  }
  fail(key, format("must be one of {}, not {}", fmt::join(values, ", "), dump_json_string(given->substr(0, 64))));
  return std::nullopt;
}

std::optional<std::vector<std::string>> JsonFields::texts(std::string_view key, size_t max_count) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> out;
  if (value->is(Kind::kString)) {
    out.push_back(value->text);
    return out;
  }
  if (!value->is(Kind::kArray)) {
    fail(key, not_a("a string or an array of strings", *value));
    return std::nullopt;
  }
  if (value->items.size() > max_count) {
    fail(key, format("has {} entries, the limit is {}", value->items.size(), max_count));
    return std::nullopt;
  }
  for (size_t i = 0; i < value->items.size(); ++i) {
    const JsonValue& item = value->items[i];
    if (!item.is(Kind::kString)) {
      fail(format("{}[{}]", key, i), not_a("a string", item));
      return std::nullopt;
    }
    out.push_back(item.text);
  }
  return out;
}

std::optional<std::vector<int32_t>> JsonFields::integers(std::string_view key, size_t max_count, int32_t low,
                                                         int32_t high) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is(Kind::kArray)) {
    fail(key, not_a("an array of integers", *value));
    return std::nullopt;
  }
  if (value->items.size() > max_count) {
    fail(key, format("has {} entries, the limit is {}", value->items.size(), max_count));
    return std::nullopt;
  }
  std::vector<int32_t> out;
  out.reserve(value->items.size());
  for (size_t i = 0; i < value->items.size(); ++i) {
    const JsonValue& item = value->items[i];
    const auto whole = whole_number(item);
    if (!whole || *whole < low || *whole > high) {
      const std::string what = item.is(Kind::kNumber) ? item.text : kind_name(item);
      fail(format("{}[{}]", key, i), format("must be an integer in [{}, {}], not {}", low, high, what));
      return std::nullopt;
    }
    out.push_back(static_cast<int32_t>(*whole));
  }
  return out;
}

std::optional<JsonFields> JsonFields::object(std::string_view key) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is(Kind::kObject)) {
    fail(key, not_a("an object", *value));
    return std::nullopt;
  }
  return JsonFields(*value, path_of(key), *problem_);
}

std::optional<std::vector<JsonFields>> JsonFields::objects(std::string_view key, size_t max_count) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is(Kind::kArray)) {
    fail(key, not_a("an array of objects", *value));
    return std::nullopt;
  }
  if (value->items.size() > max_count) {
    fail(key, format("has {} entries, the limit is {}", value->items.size(), max_count));
    return std::nullopt;
  }
  std::vector<JsonFields> out;
  for (size_t i = 0; i < value->items.size(); ++i) {
    if (!value->items[i].is(Kind::kObject)) {
      fail(format("{}[{}]", key, i), not_a("an object", value->items[i]));
      return std::nullopt;
    }
    out.emplace_back(value->items[i], path_of(format("{}[{}]", key, i)), *problem_);
  }
  return out;
}

void JsonFields::refuse(std::string_view key, std::string_view why) {
  if (find(key) != nullptr) fail(key, why);
}

}  // namespace onelane
