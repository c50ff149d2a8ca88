// JsonFields: reads the fields of a request, each with a type and a range.
//
// The first problem is remembered as an ApiError that names the field by its path ("messages[2].content"); everything
// after it returns nothing, so a route reads as a list of fields and asks once, at the end. A field that is absent or
// null was not given.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_error.h"
#include "text/python_json.h"

namespace onelane {

// Nothing: all is well.
using ApiProblem = std::optional<ApiError>;

// Reads a body that must be a JSON object. Refused with 400: what is not JSON (with the byte offset), nesting deeper
// than 256, more than two million values, anything but an object.
ApiProblem parse_body(std::string_view body, JsonValue& out);

class JsonFields {
 public:
  // `object` must outlive this and may be of any kind (all fields are then absent); `path` is "" for the body itself;
  // `problem` is shared by all parts of one request.
  JsonFields(const JsonValue& object, std::string path, ApiProblem& problem)
      : object_(&object), path_(std::move(path)), problem_(&problem) {}

  bool ok() const { return !problem_->has_value(); }
  bool has(std::string_view key) const { return !(*object_)[key].is(JsonValue::Kind::kNull); }
  const JsonValue& raw(std::string_view key) const { return (*object_)[key]; }
  const JsonValue& self() const { return *object_; }
  std::string path_of(std::string_view key) const;

  std::optional<bool> boolean(std::string_view key);
  // A whole number in [low, high]; 5.0 is one.
  std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high);
  // A number in [low, high].
  std::optional<double> number(std::string_view key, double low, double high);
  std::optional<std::string> text(std::string_view key);
  // A string out of `values`.
  std::optional<std::string> one_of(std::string_view key, std::initializer_list<std::string_view> values);
  // A string, or an array of at most `max_count` of them.
  std::optional<std::vector<std::string>> texts(std::string_view key, size_t max_count);
  // An array of at most `max_count` whole numbers in [low, high].
  std::optional<std::vector<int32_t>> integers(std::string_view key, size_t max_count, int32_t low, int32_t high);
  // A nested object.
  std::optional<JsonFields> object(std::string_view key);
  // An array of at most `max_count` objects.
  std::optional<std::vector<JsonFields>> objects(std::string_view key, size_t max_count);

  // The field must not be given: `why` says what to do instead.
  void refuse(std::string_view key, std::string_view why);
  // Remembers a problem with `key` unless there is one already; the message becomes "path: why".
  void fail(std::string_view key, std::string_view why, std::string code = "");

 private:
  const JsonValue* find(std::string_view key) const;

  const JsonValue* object_;
  std::string path_;
  ApiProblem* problem_;
};

// The number of a JSON number as Python prints it; nothing when it is not whole or leaves 64 bits.
std::optional<int64_t> whole_number(const JsonValue& value);

}  // namespace onelane
