// Structs as JSON, from one list of their fields: visit(v, x) calls v("name", x.field) for each. StructWriter writes
// them in that order; StructReader reads them strictly: unknown keys, missing ones (but for std::optional) and other
// types are errors that name the field by its path ("cells[2].tok_s"). In files that people write, missing fields may
// keep their defaults.
//
// Fields are strings, numbers, booleans, enums with names_of(E), other visited structs, and optionals, vectors and maps
// of these. What is not known is null.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/result.h"
#include "checkpoint/strict_json.h"
#include "lane/scrub.h"
#include "text/utf8.h"

namespace onelane {

// `T` is `S` or `const S`.
template <class T, class S>
concept Some = std::same_as<std::remove_const_t<T>, S>;

template <class E>
using EnumNames = std::vector<std::pair<E, std::string_view>>;

template <class E>
std::string_view name_of(E value) {
  for (const auto& [known, name] : names_of(value)) {
    if (known == value) return name;
  }
  return "";
}

constexpr size_t kMostJsonEntries = 4'000'000;  // of one array: a day of gaps at 40 a second

// The first problem is remembered; paths are dotted, with [i] for entries.
struct FieldProblem {
  std::optional<Error> error;
  void note(const std::string& path, const std::string& why) {
    if (!error) error = Error{ErrorCode::kCorrupt, format("{}: {}", path.empty() ? "the document" : path, why)};
  }
};

class StructWriter {
 public:
  // `host`: strings are scrubbed of it and of secrets (scrub.h); null: they stay as they are.
  StructWriter(FieldProblem& problem, const std::string* host = nullptr, std::string path = "")
      : problem_(problem), host_(host), path_(std::move(path)) {}

  template <class T>
  void operator()(std::string_view key, const T& value) {
    out_[std::string(key)] = write(value, path_.empty() ? std::string(key) : format("{}.{}", path_, key));
  }
  nlohmann::ordered_json take() && { return std::move(out_); }

  nlohmann::ordered_json write(const std::string& text, const std::string&) const {
    Utf8Stream repaired;
    const std::string whole = repaired.push(text);
    const std::string valid = whole + repaired.flush();
    return host_ == nullptr ? valid : scrub(valid, *host_);
  }
  nlohmann::ordered_json write(double number, const std::string& path) const {
    if (!std::isfinite(number)) problem_.note(path, "is not a finite number; leave unknown figures out");
    return number;
  }
  nlohmann::ordered_json write(int64_t number, const std::string&) const { return number; }
  nlohmann::ordered_json write(bool truth, const std::string&) const { return truth; }
  template <class E>
    requires std::is_enum_v<E>
  nlohmann::ordered_json write(E value, const std::string&) const {
    return name_of(value);
  }
  template <class T>
  nlohmann::ordered_json write(const std::optional<T>& value, const std::string& path) const {
    return value ? write(*value, path) : nlohmann::ordered_json();
  }
  template <class T>
  nlohmann::ordered_json write(const std::vector<T>& values, const std::string& path) const {
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (size_t i = 0; i < values.size(); ++i) array.push_back(write(values[i], format("{}[{}]", path, i)));
    return array;
  }
  template <class T>
  nlohmann::ordered_json write(const std::map<std::string, T>& values, const std::string& path) const {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (const auto& [key, value] : values) {
      const bool secret = host_ != nullptr && std::is_same_v<T, std::string> && is_secret_name(key);
      object[key] = secret ? nlohmann::ordered_json("[key]") : write(value, format("{}.{}", path, key));
    }
    return object;
  }
  template <class S>
    requires std::is_class_v<S>
  nlohmann::ordered_json write(const S& part, const std::string& path) const {
    StructWriter inner(problem_, host_, path);
    visit(inner, part);
    return std::move(inner).take();
  }

 private:
  FieldProblem& problem_;
  const std::string* host_;
  std::string path_;
  nlohmann::ordered_json out_ = nlohmann::ordered_json::object();
};

inline std::string json_kind(const nlohmann::json& value) {
  if (value.is_null()) return "null";
  return format("{} {}", value.is_array() || value.is_object() ? "an" : "a", value.type_name());
}

enum class Missing { kIsAnError, kKeepsDefault };

class StructReader {
 public:
  // `document` names the kind of file in messages: "lane-receipt/1". `object` must outlive this.
  StructReader(FieldProblem& problem, const nlohmann::json& object, std::string_view document,
               Missing missing = Missing::kIsAnError, std::string path = "")
      : problem_(problem), object_(object), document_(document), missing_(missing), path_(std::move(path)) {}

  template <class T>
  void operator()(std::string_view key, T& value) {
    known_.insert(std::string(key));
    if (problem_.error) return;
    const auto found = object_.find(key);
    if (found == object_.end()) {
      if (!is_optional(value) && missing_ == Missing::kIsAnError) problem_.note(path_of(key), "is missing");
      return;
    }
    read(*found, path_of(key), value);
  }
  void also_known(std::string_view key) { known_.insert(std::string(key)); }
  void refuse_unknown() {
    for (const auto& [key, value] : object_.items()) {
      if (!known_.contains(key)) problem_.note(path_of(key), format("is not a field of {}", document_));
    }
  }

 private:
  std::string path_of(std::string_view key) const {
    return path_.empty() ? std::string(key) : format("{}.{}", path_, key);
  }
  template <class T>
  static bool is_optional(const std::optional<T>&) {
    return true;
  }
  template <class T>
  static bool is_optional(const T&) {
    return false;
  }
  bool expect(bool fits, std::string_view wanted, const nlohmann::json& value, const std::string& path) {
    if (!fits) problem_.note(path, format("must be {}, not {}", wanted, json_kind(value)));
    return fits;
  }

  void read(const nlohmann::json& value, const std::string& path, std::string& out) {
    if (expect(value.is_string(), "a string", value, path)) out = value.get<std::string>();
  }
  void read(const nlohmann::json& value, const std::string& path, bool& out) {
    if (expect(value.is_boolean(), "true or false", value, path)) out = value.get<bool>();
  }
  void read(const nlohmann::json& value, const std::string& path, double& out) {
    if (!expect(value.is_number(), "a number", value, path)) return;
    out = value.get<double>();
    if (!std::isfinite(out)) problem_.note(path, "must be a finite number");
  }
  void read(const nlohmann::json& value, const std::string& path, int64_t& out) {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() ||
                       value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    if (expect(fits, "a whole number of 64 bits", value, path)) out = value.get<int64_t>();
  }
  template <class E>
    requires std::is_enum_v<E>
  void read(const nlohmann::json& value, const std::string& path, E& out) {
    if (!expect(value.is_string(), "a string", value, path)) return;
    std::vector<std::string_view> choices;
    for (const auto& [known, name] : names_of(out)) {
      choices.push_back(name);
      if (value.get_ref<const std::string&>() == name) {
        out = known;
        return;
      }
    }
    problem_.note(path, format("must be one of {}", fmt::join(choices, ", ")));
  }
  template <class T>
  void read(const nlohmann::json& value, const std::string& path, std::optional<T>& out) {
    if (value.is_null()) return;
    T inner{};
    read(value, path, inner);
    out = std::move(inner);
  }
  template <class T>
  void read(const nlohmann::json& value, const std::string& path, std::vector<T>& out) {
    if (!expect(value.is_array(), "an array", value, path)) return;
    if (value.size() > kMostJsonEntries)
      return problem_.note(path, format("has more than {} entries", kMostJsonEntries));
    out.resize(value.size());
    for (size_t i = 0; i < value.size() && !problem_.error; ++i) read(value[i], format("{}[{}]", path, i), out[i]);
  }
  template <class T>
  void read(const nlohmann::json& value, const std::string& path, std::map<std::string, T>& out) {
    if (!expect(value.is_object(), "an object", value, path)) return;
    for (const auto& [key, entry] : value.items()) read(entry, format("{}.{}", path, key), out[key]);
  }
  template <class S>
    requires std::is_class_v<S>
  void read(const nlohmann::json& value, const std::string& path, S& out) {
    if (!expect(value.is_object(), "an object", value, path)) return;
    StructReader inner(problem_, value, document_, missing_, path);
    visit(inner, out);
    inner.refuse_unknown();
  }

  FieldProblem& problem_;
  const nlohmann::json& object_;
  std::string_view document_;
  Missing missing_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

// The struct that a whole document is; `besides`: members that are not its fields.
template <class T>
Result<T> read_struct(const nlohmann::json& document, std::string_view schema,
                      std::initializer_list<std::string_view> besides, Missing missing = Missing::kIsAnError) {
  FieldProblem problem;
  T out;
  StructReader reader(problem, document, schema, missing);
  for (const std::string_view key : besides) reader.also_known(key);
  visit(reader, out);
  reader.refuse_unknown();
  if (problem.error) return *std::move(problem.error);
  return out;
}

// {"schema": ..., then the fields}, an entry a line, and back. Of structs whose numbers are finite.
template <class T>
std::string schema_json(std::string_view schema, const T& value) {
  FieldProblem problem;
  StructWriter writer(problem);
  visit(writer, value);
  nlohmann::ordered_json document = {{"schema", schema}};
  document.update(std::move(writer).take());
  return document.dump(1) + "\n";
}
template <class T>
Result<T> parse_schema_json(std::string_view text, std::string_view schema) {
  ONELANE_ASSIGN(const nlohmann::json document, parse_strict_json(text));
  if (!document.is_object() || document.value("schema", nlohmann::json()) != schema) {
    return Error{ErrorCode::kUnsupported, format("schema: must be \"{}\"", schema)};
  }
  return read_struct<T>(document, schema, {"schema"});
}

}  // namespace onelane
