#include "lane/tool_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace onelane {
namespace {

using ::testing::HasSubstr;

TEST(ToolSchema, CallsAreHeldAgainstTheirSchema) {
  const auto tools = nlohmann::ordered_json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {"type": "string", "enum": ["x"]},
    "c": {"type": "array", "items": {"type": "boolean"}}, "d": {"type": "object", "properties": {"e": {"type": "number"}},
    "required": ["e"]}}}}}])");
  const auto problem = [&](const char* name, const char* arguments) {
    return call_problem(tools, {.id = "", .name = name, .arguments = arguments});
  };
  EXPECT_EQ(problem("f", R"({"a": 1, "b": "x", "c": [true], "d": {"e": 0.5}})"), "");
  EXPECT_THAT(problem("g", "{}"), HasSubstr("\"g\", which was not offered"));
  EXPECT_THAT(problem("f", "{"), HasSubstr("are not a JSON object"));
  EXPECT_THAT(problem("f", "[]"), HasSubstr("are not a JSON object"));
  EXPECT_THAT(problem("f", "{}"), HasSubstr("f lacks \"a\""));
  EXPECT_THAT(problem("f", R"({"a": "1"})"), HasSubstr("f.a is \"1\", not of type integer"));
  EXPECT_THAT(problem("f", R"({"a": 1, "b": "y"})"), HasSubstr("f.b is \"y\", none of [\"x\"]"));
  EXPECT_THAT(problem("f", R"({"a": 1, "c": [1]})"), HasSubstr("f.c[] is 1"));
  EXPECT_THAT(problem("f", R"({"a": 1, "d": {}})"), HasSubstr("f.d lacks \"e\""));
  EXPECT_THAT(problem("f", R"({"a": 1, "z": 1})"), HasSubstr("unknown member \"z\""));
}

}  // namespace
}  // namespace onelane
