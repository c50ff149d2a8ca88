// Grammar: what an answer may look like, compiled against one vocabulary. Immutable; every generation that follows it
// has a filter of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "base/result.h"
#include "engine/request.h"
#include "grammar/source.h"

namespace xgrammar {
class TokenizerInfo;
}

namespace onelane {

class Grammar {
 public:
  // Compiles with XGrammar, in the calling thread; its stack grows with the nesting of the source. Errors begin with
  // the source's field: what XGrammar refuses, what it would only have ignored (a keyword of JSON Schema, a lookahead),
  // a grammar that no text fits, one that takes more than `seconds` of processor time to compile. `stop` ends it early.
  //
  // JSON: keys come in the order of the schema, properties that it does not list only where additionalProperties allows
  // them, and at most kMaxWhitespace characters of white space between two parts, because a model can go on with it for
  // ever.
  static Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source,
                                                        const xgrammar::TokenizerInfo& tokenizer, double seconds = 10,
                                                        const std::atomic<bool>* stop = nullptr);
  ~Grammar();

  static constexpr int kMaxWhitespace = 32;

  // Follows this grammar from the first token on: tokens with a meaning of their own (added tokens) never come, the end
  // token comes when the text is complete, and nothing else does once it could not go on. apply() and accept() throw
  // when a token costs more than `mask_seconds` of processor time: an ambiguous grammar would hold up every other
  // request, and so costs its own alone. A filter serves one generation.
  std::shared_ptr<TokenFilter> filter(double mask_seconds = 0.5) const;

  size_t bytes() const;  // of memory, about

 private:
  struct Compiled;
  explicit Grammar(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace onelane
