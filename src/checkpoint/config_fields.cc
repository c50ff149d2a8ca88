#include "checkpoint/config_fields.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "base/format.h"

namespace onelane {
namespace {

using nlohmann::json;

const json& empty_object() {
  static const json object = json::object();
  return object;
}

// A value as the reader of a message wants to see it: short.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// A JSON number that is whole and fits; 6.0 counts, because some writers print every number as a float.
std::optional<int64_t> whole(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number == std::floor(number) && std::fabs(number) < 9e15) return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

}  // namespace

ConfigFields::ConfigFields(const json& object, std::string path, std::optional<Error>& problem)
    : object_(&object), path_(std::move(path)), problem_(&problem) {
  if (!object.is_object()) {
    if (!problem) {
      problem = Error{ErrorCode::kInvalidArgument,
                      format("{}: is {}; an object is needed", path_.empty() ? "top level" : path_, shown(object))};
    }
    object_ = &empty_object();
  }
}

std::string ConfigFields::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : format("{}.{}", path_, key);
}

void ConfigFields::fail(ErrorCode code, std::string_view key, const std::string& message) {
  if (!*problem_) *problem_ = Error{code, format("{}: {}", path_of(key), message)};
}

bool ConfigFields::has(std::string_view key) const {
  const auto found = object_->find(key);
  return found != object_->end() && !found->is_null();
}

const json* ConfigFields::find(std::string_view key) {
  seen_.emplace(key);
  const auto found = object_->find(key);
  if (found == object_->end()) {
    fail(ErrorCode::kNotFound, key, "is missing");
    return nullptr;
  }
  return &*found;
}

int64_t ConfigFields::integer(std::string_view key, int64_t low, int64_t high) {
  const json* value = find(key);
  if (value == nullptr) return low;
  const auto number = whole(*value);
  if (!number || *number < low || *number > high) {
    fail(ErrorCode::kInvalidArgument, key,
         format("is {}; a whole number from {} to {} is needed", shown(*value), low, high));
    return low;
  }
  return *number;
}

int ConfigFields::small_or(std::string_view key, int low, int high, int absent) {
  if (!has(key)) {
    seen_.emplace(key);
    return absent;
  }
  return small(key, low, high);
}

float ConfigFields::number(std::string_view key, double low, double high) {
  const json* value = find(key);
  if (value == nullptr) return static_cast<float>(low);
  if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) {
    fail(ErrorCode::kInvalidArgument, key, format("is {}; a number from {} to {} is needed", shown(*value), low, high));
    return static_cast<float>(low);
  }
  return static_cast<float>(value->get<double>());
}

std::vector<int64_t> ConfigFields::integers(std::string_view key, size_t max_count, int64_t low, int64_t high) {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array() || value->size() > max_count) {
    fail(ErrorCode::kInvalidArgument, key,
         format("is {}; an array of at most {} whole numbers is needed", shown(*value), max_count));
    return {};
  }
  std::vector<int64_t> out;
  for (const json& entry : *value) {
    const auto number = whole(entry);
    if (!number || *number < low || *number > high) {
      fail(ErrorCode::kInvalidArgument, format("{}[{}]", key, out.size()),
           format("is {}; a whole number from {} to {} is needed", shown(entry), low, high));
      return {};
    }
    out.push_back(*number);
  }
  return out;
}

std::vector<int> ConfigFields::ascending(std::string_view key, size_t max_count, int low, int high) {
  std::vector<int> out;
  for (const int64_t entry : integers(key, max_count, low, high)) {
    if (!out.empty() && entry <= out.back()) {
      fail(ErrorCode::kInvalidArgument, format("{}[{}]", key, out.size()),
           format("is {} after {}; entries must ascend", entry, out.back()));
      return {};
    }
    out.push_back(static_cast<int>(entry));
  }
  return out;
}

std::string ConfigFields::text(std::string_view key) {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    fail(ErrorCode::kInvalidArgument, key, format("is {}; a string is needed", shown(*value)));
    return {};
  }
  return value->get<std::string>();
}

void ConfigFields::require_text(std::string_view key, std::string_view expected) {
  const json* value = find(key);
  if (value != nullptr && *value != json(expected)) {
    fail(ErrorCode::kUnsupported, key, format("is {}; only \"{}\" is supported", shown(*value), expected));
  }
}

void ConfigFields::require_text_if_present(std::string_view key, std::string_view expected) {
  seen_.emplace(key);
  if (has(key)) require_text(key, expected);
}

void ConfigFields::require_true(std::string_view key) {
  const json* value = find(key);
  if (value != nullptr && *value != json(true)) {
    fail(ErrorCode::kUnsupported, key, format("is {}; only true is supported", shown(*value)));
  }
}

void ConfigFields::require_false(std::string_view key) {
  seen_.emplace(key);
  const auto found = object_->find(key);
  if (found != object_->end() && *found != json(false)) {
    fail(ErrorCode::kUnsupported, key, format("is {}; only false is supported", shown(*found)));
  }
}

void ConfigFields::require_equal(std::string_view key, int64_t expected) {
  const json* value = find(key);
  if (value != nullptr && whole(*value) != std::optional<int64_t>(expected)) {
    fail(ErrorCode::kUnsupported, key, format("is {}; only {} is supported", shown(*value), expected));
  }
}

ConfigFields ConfigFields::object(std::string_view key) {
  const json* value = find(key);
  return {value == nullptr ? empty_object() : *value, path_of(key), *problem_};
}

void ConfigFields::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) seen_.emplace(key);
}

void ConfigFields::collect_unknown(std::vector<std::string>& out) const {
  for (const auto& [key, value] : object_->items()) {
    if (!seen_.contains(key)) out.push_back(path_of(key));
  }
}

}  // namespace onelane
