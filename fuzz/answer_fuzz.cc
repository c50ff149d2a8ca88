// What a model says, as oracles and checks of flaws read it. The first byte chooses the oracle; nothing is run.
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "lane/oracle.h"
#include "lane/text_flaws.h"
#include "lane/tool_schema.h"
#include "text/utf8.h"

namespace {

using onelane::Oracle;

const Oracle kOracles[] = {
    {.kind = Oracle::Kind::kNone},
    {.kind = Oracle::Kind::kContains, .all = {"1"}, .script = "latin"},
    {.kind = Oracle::Kind::kContains, .script = "kana"},
    {.kind = Oracle::Kind::kContains, .script = "han"},
    {.kind = Oracle::Kind::kNumber, .number = -12},
    {.kind = Oracle::Kind::kJson, .value = R"([{"a": 1}])"},
    {.kind = Oracle::Kind::kRows, .format = "csv", .rows = {{"a", "b"}}},
    {.kind = Oracle::Kind::kRows, .format = "markdown", .rows = {{"a", "b"}}},
    {.kind = Oracle::Kind::kRows, .format = "yaml", .rows = {{"a", "b"}}},
    {.kind = Oracle::Kind::kToolCalls, .value = R"([{"name": "f", "arguments": {"a": 1}}])"},
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  // Answers come out of JSON, which is UTF-8.
  if (onelane::first_invalid_utf8(text)) return 0;
  const Oracle& oracle = kOracles[data[0] % std::size(kOracles)];
  onelane::ChatResult answer;
  if (oracle.kind == Oracle::Kind::kToolCalls) {
    static const auto tools = nlohmann::ordered_json::parse(
        R"([{"function": {"name": "f", "parameters": {"type": "object", "required": ["a"], "properties":
        {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string", "enum": ["x"]}}}}}}])");
    answer.tool_calls = {{"1", "f", text}};
    (void)onelane::call_problem(tools, answer.tool_calls[0]);
  } else {
    answer.content = text;
  }
  (void)onelane::grade_answer(oracle, answer);
  (void)onelane::find_flaws(text);
  return 0;
}
