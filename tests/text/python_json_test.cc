#include "text/python_json.h"

#include <gtest/gtest.h>

namespace onelane {
namespace {

std::string round_trip(std::string_view json) {
  const auto value = parse_json(json);
  EXPECT_TRUE(value) << json << ": " << value.error().message;
  return value ? dump_json(*value) : "";
}

// Right-hand sides: json.dumps(json.loads(left), ensure_ascii=False) of CPython.
TEST(PythonJson, PrintsAsPythonDoes) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"b":1,"a":[1,2,{}],"c":[]})", R"({"b": 1, "a": [1, 2, {}], "c": []})"},
      {"[1e5, 1.0, 0.1, 1e16, 1e15, 123456789012345680.0]",
       "[100000.0, 1.0, 0.1, 1e+16, 1000000000000000.0, 1.2345678901234568e+17]"},
      {"[1E-5, 0.0001, 0.00012345, -2.50, 5e-324, 1.7976931348623157e308]",
       "[1e-05, 0.0001, 0.00012345, -2.5, 5e-324, 1.7976931348623157e+308]"},
      {"[-0, -0.0, 0e0, 3.0e0, 9007199254740993.0]", "[0, -0.0, 0.0, 3.0, 9007199254740992.0]"},
      {"[18446744073709551616, -9223372036854775809, 123456789012345678901234567890]",
       "[18446744073709551616, -9223372036854775809, 123456789012345678901234567890]"},
      {R"("\u4f60\u00e9\ud83d\udc4d\/\"\\\b\f\n\r\t\u0001\u007f\u2028")",
       "\"你é👍/\\\"\\\\\\b\\f\\n\\r\\t\\u0001\x7f\u2028\""},
      {R"({"a": 1, "b": 2, "a": 3})", R"({"a": 3, "b": 2})"},
      {"[true, false, null]", "[true, false, null]"},
  };
  for (const auto& [json, printed] : cases) EXPECT_EQ(round_trip(json), printed);
}

TEST(PythonJson, RefusesWithAPlace) {
  for (const char* json :
       {"", "{", "[1,]", "{\"a\" 1}", "nul", "1 2", "[1e999]", "\"\xFF\"", R"("\ud800")", "NaN", "'a'"}) {
    const auto value = parse_json(json);
    ASSERT_FALSE(value) << json;
    EXPECT_FALSE(value.error().message.empty());
    EXPECT_FALSE(is_json(json)) << json;
  }
  const std::string_view hidden("1\0.5", 4);
  EXPECT_FALSE(parse_json(hidden));
  EXPECT_FALSE(is_json(hidden));
  EXPECT_NE(parse_json("[1,\n x]").error().message.find("line 2"), std::string::npos);
}

TEST(PythonJson, DepthIsLimited) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse_json(nested(256)));
  const auto deep = parse_json(nested(257));
  ASSERT_FALSE(deep);
  EXPECT_NE(deep.error().message.find("256"), std::string::npos);
  EXPECT_FALSE(parse_json(std::string(10'000'000, '[')));
}

TEST(PythonJson, Truthiness) {
  for (const char* json : {"null", "false", "0", "-0.0", "0e5", "\"\"", "[]", "{}"})
    EXPECT_FALSE(parse_json(json)->truthy()) << json;
  for (const char* json : {"true", "1", "0.5", "-1e-9", "\"0\"", "[0]", "{\"a\": 0}"})
    EXPECT_TRUE(parse_json(json)->truthy()) << json;
}

}  // namespace
}  // namespace onelane
