// ConfigFields: reads the keys of one JSON object of config.json, each with a type and a range.
//
// The first problem is remembered and everything after it returns a harmless value inside its range, so a parser reads
// as a list of fields and asks once, at the end. Every message carries the key's dotted path and what would be right.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace onelane {

class ConfigFields {
 public:
  // `object` must outlive this; `path` is "" for the top level. `problem` is shared by all objects of one file.
  ConfigFields(const nlohmann::json& object, std::string path, std::optional<Error>& problem);

  bool has(std::string_view key) const;

  // A whole number in [low, high].
  int64_t integer(std::string_view key, int64_t low, int64_t high);
  int small(std::string_view key, int low, int high) { return static_cast<int>(integer(key, low, high)); }
  // The same, or `absent` when the key is missing or null.
  int small_or(std::string_view key, int low, int high, int absent);
  // A number in [low, high], rounded once to float.
  float number(std::string_view key, double low, double high);
  // An array of at most `max_count` whole numbers in [low, high].
  std::vector<int64_t> integers(std::string_view key, size_t max_count, int64_t low, int64_t high);
  // The same with ascending, distinct entries.
  std::vector<int> ascending(std::string_view key, size_t max_count, int low, int high);
  std::string text(std::string_view key);
  // Keys whose only supported value is `expected`. `require_false` also accepts absence.
  void require_text(std::string_view key, std::string_view expected);
  void require_text_if_present(std::string_view key, std::string_view expected);
  void require_true(std::string_view key);
  void require_false(std::string_view key);
  void require_equal(std::string_view key, int64_t expected);
  // A nested object; an empty one after a problem.
  ConfigFields object(std::string_view key);

  // Keys that mean nothing to the forward pass.
  void ignore(std::initializer_list<std::string_view> keys);
  // Appends the dotted path of every key that was neither read nor ignored.
  void collect_unknown(std::vector<std::string>& out) const;

  // Remembers a problem unless there is one already.
  void fail(ErrorCode code, std::string_view key, const std::string& message);
  std::string path_of(std::string_view key) const;

 private:
  const nlohmann::json* find(std::string_view key);

  const nlohmann::json* object_;
  std::string path_;
  std::optional<Error>* problem_;
  std::set<std::string, std::less<>> seen_;
};

}  // namespace onelane
