#include "cli/tokenize.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "cli/runtime.h"
#include "cli/text_source.h"
#include "text/tokenizer.h"

namespace onelane {
namespace {

using nlohmann::ordered_json;

void print(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
}

std::string dump(const ordered_json& value) {
  // A token may be half a character: shown as U+FFFD.
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

Result<void> print_lines(const Tokenizer& tokenizer, const std::string& path) {
  ONELANE_ASSIGN(const std::string text, read_text(path));
  std::string_view rest = text;
  for (int line = 1; !rest.empty(); ++line) {
    const std::string_view current = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), current.size() + 1));
    const auto value = ordered_json::parse(current, nullptr, /*allow_exceptions=*/false);
    if (!value.is_string()) {
      return Error{ErrorCode::kInvalidArgument, format("{}, line {}: must be a JSON string", path, line)};
    }
    auto ids = tokenizer.encode(value.get_ref<const std::string&>());
    if (!ids) return std::move(ids).error().in(format("{}, line {}", path, line));
    print(ordered_json(*ids).dump());
  }
  return {};
}

Result<void> tokenize(const TokenizeCommand& command) {
  const std::string path = command.tokenizer.empty() ? command.dir + "/tokenizer.json" : command.tokenizer;
  ONELANE_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(path));
  if (!command.jsonl.empty()) return print_lines(tokenizer, command.jsonl);

  std::string text = command.prompt;
  if (!command.has_prompt) {
    ONELANE_ASSIGN(text, read_text(command.file));
  }
  ONELANE_ASSIGN(const std::vector<int32_t> ids, tokenizer.encode(text));
  if (command.json) {
    ordered_json tokens = ordered_json::array();
    for (const int32_t id : ids) {
      tokens.push_back({{"id", id},
                        {"token", std::string(tokenizer.raw(id))},
                        {"text", std::string(tokenizer.bytes(id))},
                        {"special", tokenizer.is_special(id)}});
    }
    print(dump(tokens));
  } else if (command.ids) {
    print(format("{}", join(ids, " ")));
  } else {
    for (const int32_t id : ids) print(format("{}\t{}", id, tokenizer.raw(id)));
  }
  return {};
}

}  // namespace

int run_tokenize(const TokenizeCommand& command) {
  const auto done = tokenize(command);
  return done ? 0 : fail(done.error());
}

}  // namespace onelane
