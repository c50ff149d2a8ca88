// GrammarSource: the shape that an answer must have, as a request states it. Plain data; compiler.h makes it usable.
#pragma once

#include <string>
#include <vector>

namespace onelane {

struct GrammarSource {
  enum class Kind {
    kJsonObject,     // any JSON object; no text
    kJsonSchema,     // a JSON schema
    kRegex,          // a regular expression that the whole answer matches
    kGrammar,        // EBNF with the rule "root" (llama.cpp's GBNF), or Lark with the rule "start"
    kChoice,         // one of `texts`, word for word
    kStructuralTag,  // XGrammar's structural tag, as JSON
  };
  Kind kind = Kind::kJsonObject;
  std::vector<std::string> texts;  // one, but for kJsonObject and kChoice
  std::string field;               // the request's field, for messages; does not count for equality

  bool operator==(const GrammarSource& other) const { return kind == other.kind && texts == other.texts; }
};

}  // namespace onelane
