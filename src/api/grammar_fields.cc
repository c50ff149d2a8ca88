#include "api/grammar_fields.h"

#include <utility>

#include "base/format.h"

namespace onelane {
namespace {

using Kind = GrammarSource::Kind;
using Json = JsonValue::Kind;

constexpr size_t kMostChoices = 10'000;

class Reader {
 public:
  explicit Reader(JsonFields& body) : body_(body) {}

  std::optional<GrammarSource> read() {
    response_format();
    json(body_, "guided_json", Kind::kJsonSchema);
    text(body_, "guided_regex", Kind::kRegex);
    choice(body_, "guided_choice");
    text(body_, "guided_grammar", Kind::kGrammar);
    body_.refuse("guided_whitespace_pattern", "is not supported");
    structured_outputs();
    if (found_ && whole_number(body_.raw("min_tokens")).value_or(0) > 0) {
      body_.fail("min_tokens", format("cannot hold beside {}: an answer ends where its shape does", found_->field));
    }
    return std::move(found_);
  }

 private:
  void response_format() {
    auto rule = body_.object("response_format");
    if (!rule) return;
    const auto type = rule->one_of("type", {"text", "json_object", "json_schema"});
    if (!type) return rule->fail("type", "must be text, json_object or json_schema");
    if (*type == "json_object") found(body_, "response_format", Kind::kJsonObject, {});
    if (*type != "json_schema") return;
    auto schema = rule->object("json_schema");
    if (!schema) return rule->fail("json_schema", "is missing");
    schema->boolean("strict");
    if (!schema->has("schema")) return schema->fail("schema", "is missing");
    json(*schema, "schema", Kind::kJsonSchema);
  }

  void structured_outputs() {
    auto rule = body_.object("structured_outputs");
    if (!rule) return;
    json(*rule, "json", Kind::kJsonSchema);
    text(*rule, "regex", Kind::kRegex);
    choice(*rule, "choice");
    text(*rule, "grammar", Kind::kGrammar);
    json(*rule, "structural_tag", Kind::kStructuralTag);
    if (rule->boolean("json_object").value_or(false)) found(*rule, "json_object", Kind::kJsonObject, {});
    for (const JsonMember& member : rule->self().members) {
      const bool known = member.name == "json" || member.name == "regex" || member.name == "choice" ||
                         member.name == "grammar" || member.name == "structural_tag" || member.name == "json_object";
      if (!known && member.value.truthy()) rule->refuse(member.name, "is not supported");
    }
  }

  // JSON, or a string that holds some.
  void json(JsonFields& fields, std::string_view key, Kind kind) {
    if (!fields.has(key)) return;
    const JsonValue& value = fields.raw(key);
    if (value.is(Json::kString)) {
      if (const auto parsed = parse_json(value.text); !parsed) return fields.fail(key, parsed.error().message);
      return found(fields, key, kind, {value.text});
    }
    if (!value.is(Json::kObject) && !value.is(Json::kBool))
      return fields.fail(key, "must be an object, or one as text");
    found(fields, key, kind, {dump_json(value)});
  }

  void text(JsonFields& fields, std::string_view key, Kind kind) {
    if (auto text = fields.text(key)) found(fields, key, kind, {*std::move(text)});
  }

  void choice(JsonFields& fields, std::string_view key) {
    auto texts = fields.texts(key, kMostChoices);
    if (!texts) return;
    if (texts->empty()) return fields.fail(key, "must hold at least one text");
    found(fields, key, Kind::kChoice, *std::move(texts));
  }

  void found(JsonFields& fields, std::string_view key, Kind kind, std::vector<std::string> texts) {
    if (found_) return fields.fail(key, format("cannot hold beside {}: an answer has one shape", found_->field));
    found_ = {.kind = kind, .texts = std::move(texts), .field = fields.path_of(key)};
  }

  JsonFields& body_;
  std::optional<GrammarSource> found_;
};

}  // namespace

std::optional<GrammarSource> read_grammar(JsonFields& fields) { return Reader(fields).read(); }

}  // namespace onelane
