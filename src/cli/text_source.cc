#include "cli/text_source.h"

#include <iostream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"

namespace onelane {

Result<std::string> read_text(const std::string& path) {
  if (!path.empty() && path != "-") return read_file(path);
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (std::cin.bad()) return Error{ErrorCode::kIo, "stdin cannot be read"};
  return text;
}

Result<const PromptFormat*> choose_format(const std::string& dir, const std::string& name) {
  if (!name.empty()) {
    if (const PromptFormat* format = find_prompt_format(name)) return format;
    return Error{ErrorCode::kInvalidArgument, format("--format must be v4 or v41, not '{}'", name)};
  }
  if (dir.empty()) return Error{ErrorCode::kInvalidArgument, "a model directory (-m) or --format is needed"};
  const std::string path = dir + "/config.json";
  ONELANE_ASSIGN(const std::string text, read_file(path));
  const auto config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return Error{ErrorCode::kCorrupt, format("{}: is not a JSON object", path)};
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) {
    return Error{ErrorCode::kCorrupt, format("{}: model_type must be a string", path)};
  }
  if (const PromptFormat* found = find_prompt_format(type->get<std::string>())) return found;
  return Error{ErrorCode::kUnsupported,
               format("{}: no prompt format for model_type '{}': deepseek_v4 and deepseek_v41 are known", path,
                      type->get<std::string>())};
}

}  // namespace onelane
