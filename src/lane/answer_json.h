// Members of JSON that a server answered with: whatever it holds, reading never fails.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace onelane {

// A member that is a string, or "". `object` must be an object; the view lives as long as it.
inline std::string_view string_in(const nlohmann::ordered_json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return {};
  return found->get_ref<const std::string&>();
}

// A member that is a whole number.
inline std::optional<int64_t> integer_in(const nlohmann::ordered_json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

}  // namespace onelane
