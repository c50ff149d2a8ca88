// The options of `onelane serve`: one table, from which flags, TOML keys, environment names and help come.
//
// Option "max-model-len" is the flag --max-model-len, the key max_model_len of the TOML file and the variable
// ONELANE_MAX_MODEL_LEN. A flag beats the environment, that beats the file, that beats the default.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/services.h"
#include "base/result.h"
#include "cli/runtime.h"
#include "engine/engine.h"
#include "http/server.h"

namespace onelane {

struct ServeOptions {
  RuntimeOptions runtime;
  EngineOptions engine;
  HttpOptions http;
  ApiOptions api;
  double drain_seconds = 30;
};

struct ServeOption {
  enum class Kind { kText, kInteger, kNumber, kBool, kBytes, kList };
  std::string name;  // "max-model-len"
  Kind kind = Kind::kText;
  std::string help;
  bool secret = false;  // the value is not printed
  // Takes a value as text (of a list: separated by commas); an error says what would be right, without naming the
  // option.
  std::function<Result<void>(ServeOptions&, const std::string&)> set;
  std::function<std::string(const ServeOptions&)> get;

  std::string key() const;          // "max_model_len"
  std::string environment() const;  // "ONELANE_MAX_MODEL_LEN"
};

std::span<const ServeOption> serve_option_table();

// Name of an option to its values, as text; only lists have several.
using OptionTexts = std::map<std::string, std::vector<std::string>>;

// One value of a TOML file with its place.
struct FileOption {
  std::string key;
  std::vector<std::string> values;
  int line = 0;
};
// The keys of a TOML file. Errors name file and line: what is not TOML, values that are tables, dates or mixed arrays.
Result<std::vector<FileOption>> read_option_file(const std::string& path);

struct ServeSettings {
  ServeOptions options;
  std::map<std::string, std::string> origins;  // name to "default", "lane.toml:3", "ONELANE_PORT", "--port"
};

// Puts it together. `environment` gives a variable's value or null. Errors name the flag, variable or file and line:
// unknown keys (with the nearest known one), values that are wrong, a key given twice.
Result<ServeSettings> read_serve_settings(const OptionTexts& flags, const std::string& config_file,
                                          const std::function<const char*(const std::string&)>& environment);

// One line for every option: name, value, origin. Secrets are masked.
std::string settings_text(const ServeSettings& settings);

// "4GiB", "512 MiB", "1e9", "4096"; errors say what is accepted.
Result<int64_t> parse_bytes(std::string_view text);

}  // namespace onelane
