#include "grammar/grammar.h"

#include <functional>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "grammar_support.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Kind = GrammarSource::Kind;

std::shared_ptr<const Grammar> compiled(const GrammarSource& source) {
  auto grammar = Grammar::compile(source, mini_vocabulary());
  EXPECT_TRUE(grammar) << (grammar ? "" : grammar.error().message);
  return grammar ? *grammar : nullptr;
}

std::string refusal(const GrammarSource& source) {
  const auto grammar = Grammar::compile(source, mini_vocabulary());
  EXPECT_FALSE(grammar) << "taken: " << (source.texts.empty() ? "" : source.texts.front());
  if (grammar) return "";
  EXPECT_EQ(grammar.error().code, ErrorCode::kInvalidArgument);
  return grammar.error().message;
}

bool is_integer(const Json& value, int64_t low, int64_t high) {
  return value.is_number_integer() && value.get<int64_t>() >= low && value.get<int64_t>() <= high;
}

bool is_tree(const Json& value) {
  if (value.size() != 2 || !value["value"].is_number_integer() || !value["children"].is_array()) return false;
  for (const Json& child : value["children"]) {
    if (!is_tree(child)) return false;
  }
  return true;
}

struct SchemaCase {
  const char* name;
  const char* schema;
  std::function<bool(const Json&)> valid;
  std::vector<std::string> fit;
  std::vector<std::string> unfit;
};

const std::vector<SchemaCase>& schema_cases() {
  static const std::vector<SchemaCase> cases = {
      {"nested objects, arrays, enums and numbers",
       R"({"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", 3, null]}, "minItems": 1, "maxItems": 3},
            "at": {"type": "object", "properties": {"lat": {"type": "number"}, "ok": {"type": "boolean"}},
                   "required": ["lat", "ok"], "additionalProperties": false}},
          "required": ["name", "age", "tags", "at"], "additionalProperties": false})",
       [](const Json& v) {
         return v.size() == 4 && v["name"].is_string() && is_integer(v["age"], 0, 150) && v["tags"].is_array() &&
                !v["tags"].empty() && v["tags"].size() <= 3 && v["at"].size() == 2 && v["at"]["lat"].is_number() &&
                v["at"]["ok"].is_boolean();
       },
       {R"({"name": "Zoë 中", "age": 150, "tags": ["red", 3, null], "at": {"lat": -1.5e3, "ok": true}})",
        "{\n  \"name\": \"\",\n  \"age\": 0,\n  \"tags\": [\n    \"green\"\n  ],\n  \"at\": "
        "{\"lat\":0,\"ok\":false}\n}"},
       {R"({"name": "x", "age": 151, "tags": ["red"], "at": {"lat": 0, "ok": true}})",
        R"({"name": "x", "age": 1, "tags": ["blue"], "at": {"lat": 0, "ok": true}})",
        R"({"name": "x", "age": 1, "tags": [], "at": {"lat": 0, "ok": true}})",
        R"({"name": "x", "age": 1, "tags": ["red"], "at": {"lat": 0, "ok": true}, "more": 1})",
        R"({"name": "x", "age": 1, "tags": ["red"], "at": {"lat": 0, "ok": true}} and more)",
        R"({"age": 1, "name": "x", "tags": ["red"], "at": {"lat": 0, "ok": true}})", R"({"name": "x"})", ""}},
      {"a reference to itself",
       R"({"$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
            "required": ["value", "children"], "additionalProperties": false}}, "$ref": "#/$defs/node"})",
       is_tree,
       {R"({"value": 1, "children": [{"value": 2, "children": []}, {"value": -3, "children": []}]})"},
       {R"({"value": 1, "children": [{"value": 2}]})", R"({"value": 1, "children": [1]})"}},
      {"properties beside those named",
       R"({"type": "object", "properties": {"a": {"const": "x"}}, "required": ["a"],
           "additionalProperties": {"type": "boolean"}})",
       [](const Json& v) {
         for (const auto& [key, value] : v.items()) {
           if (key != "a" && !value.is_boolean()) return false;
         }
         return v["a"] == "x";
       },
       {R"({"a": "x"})", R"({"a": "x", "b": true, "ç": false})"},
       {R"({"a": "y"})", R"({"a": "x", "b": 1})", "{}"}},
      {"one of two shapes, optional members, an escape in every string",
       R"({"anyOf": [{"type": "object", "properties": {"kind": {"const": "\"q\"\n"},
            "n": {"type": ["integer", "null"]}},
            "required": ["kind"]}, {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"}]})",
       [](const Json& v) { return v.is_string() || v["kind"] == "\"q\"\n"; },
       {R"({"kind": "\"q\"\n", "n": null})", R"({"kind": "\"q\"\n"})", R"("AB-12")"},
       {R"("AB-")", R"("ab-1")", R"({"n": 1})"}},
      {"discriminated by a constant",
       R"({"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}, "x": {"type": "integer"}},
            "required": ["t", "x"]}, {"type": "object", "properties": {"t": {"const": "b"}}, "required": ["t"]}]})",
       [](const Json& v) { return v["t"] == "b" || v["x"].is_number_integer(); },
       {R"({"t": "a", "x": 1})", R"({"t": "b"})"},
       {R"({"t": "a"})", R"({"t": "c"})"}},
  };
  return cases;
}

TEST(Grammar, TextsOfASchemaParseAndAreValidAndOthersDoNotFit) {
  int ended = 0;
  for (const SchemaCase& c : schema_cases()) {
    SCOPED_TRACE(c.name);
    const auto grammar = compiled(schema_of(c.schema));
    ASSERT_TRUE(grammar);
    for (const std::string& text : c.fit) EXPECT_TRUE(fits(*grammar, text)) << text;
    for (const std::string& text : c.unfit) EXPECT_FALSE(fits(*grammar, text)) << text;
    for (unsigned seed = 0; seed < (kSanitized ? 5 : 40); ++seed) {
      const auto text = random_text(*grammar, seed, 400);
      if (!text) continue;
      ++ended;
      const Json value = Json::parse(*text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << *text;
      EXPECT_TRUE(c.valid(value)) << *text;
    }
  }
  EXPECT_GT(ended, 10);
}

TEST(Grammar, AnyObject) {
  const auto grammar = compiled(source_of(Kind::kJsonObject));
  for (const char* text : {"{}", R"({"a": [1, {"b": null}], "c": "\u00e9"})", "{ \"a\" :\n1 }"}) {
    EXPECT_TRUE(fits(*grammar, text)) << text;
  }
  for (const char* text : {"[]", "1", "{", "{} ", R"({a: 1})", "```json\n{}"})
    EXPECT_FALSE(fits(*grammar, text)) << text;
}

// 39: white space that never ends.
TEST(Grammar, Complaint39WhiteSpaceIsBounded) {
  const auto grammar = compiled(source_of(Kind::kJsonObject));
  EXPECT_TRUE(fits(*grammar, "{" + std::string(Grammar::kMaxWhitespace, ' ') + "\"a\": 1}"));
  EXPECT_FALSE(fits(*grammar, "{" + std::string(Grammar::kMaxWhitespace + 1, ' ') + "\"a\": 1}"));
}

TEST(Grammar, RegexChoiceEbnfLarkAndStructuralTag) {
  const struct {
    GrammarSource source;
    std::vector<std::string> fit, unfit;
  } cases[] = {
      {source_of(Kind::kRegex, {R"(^[A-Z]{3}-\d{2,4}$)"}), {"ABC-12", "XYZ-1234"}, {"AB-12", "ABC-1", "ABC-12345", ""}},
      {source_of(Kind::kRegex, {R"((é|中文)+)"}), {"é", "中文é"}, {"中", "e"}},
      {source_of(Kind::kChoice, {"yes", "no", "say \"no\"\\\n", "中文", ""}),
       {"yes", "no", "say \"no\"\\\n", "中文", ""},
       {"ye", "yesno", "中"}},
      {source_of(Kind::kGrammar, {"root ::= item (\", \" item)*\nitem ::= [a-c]+ | \"(\" root \")\"\n"}),
       {"a", "abc, (b, c)"},
       {"d", "a,b", "(a"}},
      {source_of(Kind::kGrammar, {"start: NAME \"=\" NUMBER\nNAME: /[a-z]+/\nNUMBER: /[0-9]+/\n"}),
       {"x=1", "abc=42"},
       {"x=", "X=1"}},
      {source_of(Kind::kStructuralTag, {R"({"type": "structural_tag", "format": {"type": "tag", "begin": "<f>",
         "content": {"type": "json_schema", "json_schema": {"type": "integer"}}, "end": "</f>"}})"}),
       {"<f>12</f>"},
       {"<f>x</f>", "12"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.source.texts.front());
    const auto grammar = compiled(c.source);
    ASSERT_TRUE(grammar);
    for (const std::string& text : c.fit) EXPECT_TRUE(fits(*grammar, text)) << text;
    for (const std::string& text : c.unfit) EXPECT_FALSE(fits(*grammar, text)) << text;
  }
}

TEST(Grammar, WhatCannotBeKeptToIsRefusedWithTheReason) {
  const struct {
    GrammarSource source;
    const char* says;
  } cases[] = {
      {schema_of("{\"type\": "), "the_field: "},
      {schema_of(R"({"type": "strin"})"), "strin"},
      {schema_of(R"({"$ref": "#/nope"})"), "nope"},
      {schema_of("false"), "false"},
      {schema_of(R"({"$ref": "#"})"), "no text fits it"},
      {schema_of(R"({"type": "integer", "minimum": 5, "maximum": 4})"), "the_field: "},
      {schema_of(R"({"not": {"type": "string"}})"), "Keyword not"},
      {schema_of(R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true})"), "Keyword uniqueItems"},
      {schema_of(R"({"type": "number", "multipleOf": 0.1})"), "multipleOf"},
      {schema_of(R"({"allOf": [{"type": "object"}, {"properties": {"b": {}}}]})"), "allOf"},
      {source_of(Kind::kRegex, {"(a"}), "parenthesis"},
      {source_of(Kind::kRegex, {"[a"}), "Unclosed"},
      {source_of(Kind::kRegex, {"a\\"}), "Escape"},
      {source_of(Kind::kRegex, {"a(?=b)"}), "Lookahead"},
      {source_of(Kind::kGrammar, {"root ::= thing"}), "thing"},
      {source_of(Kind::kGrammar, {"rot ::= \"a\""}), "root"},
      {source_of(Kind::kGrammar, {"root ::= root"}), "no text fits it"},
      {source_of(Kind::kGrammar, {""}), "the_field: "},
      {source_of(Kind::kStructuralTag, {R"({"type": "nothing"})"}), "the_field: "},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(refusal(c.source), HasSubstr(c.says)) << c.source.texts.front();
    // Not only the first time.
    EXPECT_THAT(refusal(c.source), HasSubstr(c.says)) << c.source.texts.front();
  }
}

TEST(Grammar, HostileSourcesAreRefusedOrCompiledAndNeverCrash) {
  const auto repeated = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  std::vector<GrammarSource> sources = {
      source_of(Kind::kRegex, {repeated("(", 20'000)}),
      source_of(Kind::kRegex, {repeated("(", 20'000) + "a" + repeated(")", 20'000)}),
      source_of(Kind::kRegex, {repeated("(", 990) + "a" + repeated(")*", 990)}),
      source_of(Kind::kRegex, {repeated("[", 20'000)}),
      source_of(Kind::kRegex, {repeated("a|", 20'000)}),
      source_of(Kind::kRegex, {"((((a{1,100}){1,100}){1,100}){1,100}){1,100}"}),
      source_of(Kind::kRegex, {"a{99999999999999999999}"}),
      source_of(Kind::kRegex, {"a{5,2}"}),
      source_of(Kind::kRegex, {"\\p{L}\\u{110000}\\x"}),
      source_of(Kind::kRegex, {std::string("a\0b", 3)}),
      source_of(Kind::kRegex, {"\xff\xfe"}),
      source_of(Kind::kRegex, {""}),
      source_of(Kind::kGrammar, {"root ::= " + repeated("(", 20'000)}),
      source_of(Kind::kGrammar, {"root ::= \"" + repeated("\\", 20'001)}),
      source_of(Kind::kGrammar, {"root ::= [\\"}),
      source_of(Kind::kGrammar, {"root ::= \"a\"{0,4294967296}"}),
      source_of(Kind::kGrammar, {"start: " + repeated("(", 5'000)}),
      source_of(Kind::kGrammar, {repeated("%", 100)}),
      schema_of(repeated("[", 256) + repeated("]", 256)),
      schema_of(repeated(R"({"items": )", 250) + "{}" + repeated("}", 250)),
      schema_of(R"({"type": "string", "pattern": "a||b"})"),
      schema_of(R"({"type": "string", "minLength": -1})"),
      schema_of(R"({"type": "string", "minLength": 1e300})"),
      schema_of(R"({"type": "integer", "minimum": 1e300})"),
      schema_of(R"({"enum": []})"),
      schema_of(R"({"type": []})"),
      schema_of(R"({"required": 5, "properties": []})"),
  };
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < (kSanitized ? 500 : 4000); ++i)
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
  sources.push_back(source_of(Kind::kGrammar, {chain}));
  for (const GrammarSource& source : sources) {
    const auto grammar = Grammar::compile(source, mini_vocabulary(), 1);
    if (!grammar) {
      EXPECT_THAT(grammar.error().message, HasSubstr("the_field: "));
      continue;
    }
    random_text(**grammar, 1, 8);
  }
}

TEST(Grammar, CompilingIsBounded) {
  std::string schema = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 400; ++i)
    schema += (i > 0 ? ", " : "") + ("\"p" + std::to_string(i)) + R"(": {"type": "string"})";
  schema += "}}";
  const auto grammar = Grammar::compile(schema_of(schema), mini_vocabulary(), 0);
  ASSERT_FALSE(grammar);
  EXPECT_THAT(grammar.error().message, HasSubstr("too complex"));
  std::atomic<bool> stop = true;
  EXPECT_FALSE(Grammar::compile(schema_of(schema), mini_vocabulary(), 1e9, &stop));
}

TEST(Grammar, AMaskIsBounded) {
  const auto grammar = compiled(source_of(Kind::kGrammar, {"root ::= s\ns ::= s s s | [a-z] | \"a\" | \"b\" s"}));
  const auto filter = grammar->filter(0);
  try {
    for (int i = 0; i < 400; ++i) {
      logits_of(*filter);
      filter->accept(mini_tokenizer().token_to_id("a").value());
    }
    FAIL() << "a mask that costs nothing";
  } catch (const std::exception& thrown) {
    EXPECT_THAT(thrown.what(), HasSubstr("too ambiguous"));
  }
}

TEST(Grammar, BehindTheEndOnlyEndTokensCome) {
  const auto grammar = compiled(source_of(Kind::kChoice, {"yes"}));
  const auto filter = grammar->filter();
  const std::vector<int32_t> yes = mini_tokenizer().encode("yes").value();
  for (const int32_t token : yes) filter->accept(token);
  for (int i = 0; i < 3; ++i) {  // ignore_eos goes on
    const std::vector<float> logits = logits_of(*filter);
    for (size_t id = 0; id < logits.size(); ++id) EXPECT_EQ(std::isfinite(logits[id]), id == kEnd) << id;
    filter->accept(kEnd);
  }
}

TEST(Grammar, TokensWithAMeaningNeverCome) {
  const auto grammar = compiled(source_of(Kind::kRegex, {"(.|\\n)*"}));
  const std::vector<float> logits = logits_of(*grammar->filter());
  for (int32_t id = 0; id < mini_tokenizer().size(); ++id) {
    if (!mini_tokenizer().is_added(id) || id == kEnd) continue;
    EXPECT_FALSE(std::isfinite(logits[static_cast<size_t>(id)])) << mini_tokenizer().raw(id);
  }
}

TEST(Grammar, LogitsBeyondTheVocabularyAreForbidden) {
  const auto grammar = compiled(source_of(Kind::kRegex, {".*"}));
  std::vector<float> logits(static_cast<size_t>(mini_tokenizer().size()) + 100, 0.0f);
  grammar->filter()->apply(logits);
  for (size_t i = static_cast<size_t>(mini_tokenizer().size()); i < logits.size(); ++i) {
    EXPECT_FALSE(std::isfinite(logits[i])) << i;
  }
}

}  // namespace
}  // namespace onelane
