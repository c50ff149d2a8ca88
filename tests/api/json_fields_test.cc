#include "api/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace onelane {
namespace {

using ::testing::HasSubstr;

JsonValue body(const std::string& text) {
  JsonValue value;
  const auto problem = parse_body(text, value);
  EXPECT_FALSE(problem) << problem->message;
  return value;
}

std::string refusal(const std::string& text) {
  JsonValue value;
  const auto problem = parse_body(text, value);
  EXPECT_TRUE(problem) << text.substr(0, 80);
  return problem ? problem->message : "";
}

TEST(ParseBody, SaysWhereAndWhat) {
  EXPECT_THAT(refusal(""), HasSubstr("no body"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("must be a JSON object, not an array"));
  EXPECT_THAT(refusal("{\"a\": 1, }"), HasSubstr("at byte 9"));
  EXPECT_THAT(refusal("{\n\"a\": 1,\n \"b\" 2}"), HasSubstr("at byte 15"));
  EXPECT_THAT(refusal("{\"a\": 1} x"), HasSubstr("at byte 9"));
  EXPECT_THAT(refusal("{\"a\": \"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\": NaN}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\": 1e999}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\": " + std::string(300, '[') + std::string(300, ']') + "}"), HasSubstr("deeper"));
  std::string many = "{\"a\": [0";
  for (int i = 0; i < 2'000'001; ++i) many += ",0";
  EXPECT_THAT(refusal(many + "]}"), HasSubstr("more than 2000000"));
}

// What `read` makes of {"f": value}: the problem's param and message, or "ok".
template <class Read>
std::string outcome(const std::string& value, Read read) {
  const JsonValue root = body("{\"o\": {\"f\": " + value + "}}");
  ApiProblem problem;
  JsonFields top(root, "", problem);
  auto fields = top.object("o");
  read(*fields);
  return problem ? problem->param + " | " + problem->message : "ok";
}

TEST(JsonFields, NumbersHaveTypesAndRanges) {
  const auto number = [](JsonFields& f) { f.number("f", 0, 2); };
  EXPECT_EQ(outcome("1.5", number), "ok");
  EXPECT_EQ(outcome("null", number), "ok");
  EXPECT_EQ(outcome("2.5", number), "o.f | o.f: must lie in [0, 2], not 2.5");
  EXPECT_EQ(outcome("-1", number), "o.f | o.f: must lie in [0, 2], not -1");
  EXPECT_EQ(outcome("\"1\"", number), "o.f | o.f: must be a number, not a string");
  EXPECT_EQ(outcome("true", number), "o.f | o.f: must be a number, not a boolean");
  const auto integer = [](JsonFields& f) { f.integer("f", 1, 9); };
  EXPECT_EQ(outcome("5.0", integer), "ok");
  EXPECT_EQ(outcome("5.5", integer), "o.f | o.f: must be an integer, not 5.5");
  EXPECT_EQ(outcome("0", integer), "o.f | o.f: must lie in [1, 9], not 0");
  EXPECT_EQ(outcome("99999999999999999999999", integer), "o.f | o.f: must lie in [1, 9], not 99999999999999999999999");
  EXPECT_EQ(outcome("1e300", integer), "o.f | o.f: must lie in [1, 9], not 1e+300");
  EXPECT_EQ(outcome("[]", integer), "o.f | o.f: must be an integer, not an array");
}

TEST(JsonFields, TextsListsAndObjects) {
  EXPECT_EQ(outcome("1", [](JsonFields& f) { f.text("f"); }), "o.f | o.f: must be a string, not a number");
  EXPECT_EQ(outcome("1", [](JsonFields& f) { f.boolean("f"); }), "o.f | o.f: must be true or false, not a number");
  const auto one_of = [](JsonFields& f) { f.one_of("f", {"a", "b"}); };
  EXPECT_EQ(outcome("\"b\"", one_of), "ok");
  EXPECT_EQ(outcome("\"c\"", one_of), "o.f | o.f: must be one of a, b, not \"c\"");
  const auto texts = [](JsonFields& f) { f.texts("f", 2); };
  EXPECT_EQ(outcome("[\"a\", 1]", texts), "o.f[1] | o.f[1]: must be a string, not a number");
  EXPECT_EQ(outcome("[\"a\", \"a\", \"a\"]", texts), "o.f | o.f: has 3 entries, the limit is 2");
  const auto ids = [](JsonFields& f) { f.integers("f", 9, 0, 99); };
  EXPECT_EQ(outcome("[1, 100]", ids), "o.f[1] | o.f[1]: must be an integer in [0, 99], not 100");
  EXPECT_EQ(outcome("{}", ids), "o.f | o.f: must be an array of integers, not an object");
  EXPECT_EQ(outcome("[]", [](JsonFields& f) { f.object("f"); }), "o.f | o.f: must be an object, not an array");
  const auto inner = [](JsonFields& f) {
    if (auto items = f.objects("f", 9)) items->back().text("x");
  };
  EXPECT_EQ(outcome("[{\"x\": \"\"}, {\"x\": 1}]", inner), "o.f[1].x | o.f[1].x: must be a string, not a number");
  EXPECT_EQ(outcome("[{}, 1]", inner), "o.f[1] | o.f[1]: must be an object, not a number");
  EXPECT_EQ(outcome("1", [](JsonFields& f) { f.refuse("f", "not here"); }), "o.f | o.f: not here");
}

TEST(JsonFields, TheFirstProblemStays) {
  const JsonValue root = body(R"({"a": 1, "b": 2})");
  ApiProblem problem;
  JsonFields fields(root, "", problem);
  EXPECT_FALSE(fields.text("a"));
  EXPECT_FALSE(fields.integer("b", 0, 9));
  EXPECT_EQ(problem->param, "a");
}

}  // namespace
}  // namespace onelane
