// The TOML file of `onelane serve`.
#include <toml++/toml.h>

#include "base/format.h"
#include "base/mapped_file.h"
#include "cli/serve_options.h"
#include "lane/toml_check.h"

namespace onelane {
namespace {

// A value as the text that a flag would have; nothing for what no option takes.
std::optional<std::string> value_text(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto whole = node.value_exact<int64_t>()) return format("{}", *whole);
  if (const auto number = node.value_exact<double>()) return format("{}", *number);
  if (const auto truth = node.value_exact<bool>()) return *truth ? "true" : "false";
  return std::nullopt;
}

}  // namespace

Result<std::vector<FileOption>> read_option_file(const std::string& path) {
  ONELANE_ASSIGN(const std::string text, read_file(path));
  if (auto sound = check_toml_characters(text); !sound) return std::move(sound).error().in(path);
  toml::table table;
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    return Error{ErrorCode::kInvalidArgument,
                 format("{}:{}: {}", path, error.source().begin.line, error.description())};
  }
  std::vector<FileOption> out;
  for (const auto& [key, node] : table) {
    FileOption option{std::string(key.str()), {}, static_cast<int>(node.source().begin.line)};
    const auto wrong = [&] {
      return Error{ErrorCode::kInvalidArgument,
                   format("{}:{}: {}: must be a string, a number, true or false, or an array of strings", path,
                          option.line, option.key)};
    };
    if (const toml::array* array = node.as_array()) {
      for (const toml::node& item : *array) {
        const auto value = value_text(item);
        if (!value) return wrong();
        option.values.push_back(*value);
      }
    } else {
      const auto value = value_text(node);
      if (!value) return wrong();
      option.values.push_back(*value);
    }
    out.push_back(std::move(option));
  }
  return out;
}

}  // namespace onelane
