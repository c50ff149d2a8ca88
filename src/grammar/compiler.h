// GrammarCompiler: compiles grammars for one vocabulary on a thread of its own, and remembers them.
//
// Compiling takes from a millisecond to seconds, so neither the engine's thread nor the one that reads requests does
// it. What a request can cost is bounded: the size of a source, the time to compile it, how many wait, what is
// remembered.
#pragma once

#include <functional>
#include <memory>

#include "grammar/grammar.h"
#include "text/tokenizer.h"

namespace onelane {

struct GrammarLimits {
  size_t schema_bytes = 256 << 10;  // of a JSON schema, or of all choices
  size_t grammar_bytes = 16 << 10;  // of anything else: memory grows with the square of what may be left out in a row
  double compile_seconds = 10;      // of processor time
  size_t waiting = 64;              // sources not compiled yet
  size_t cache_bytes = 256 << 20;   // of compiled grammars; the one used longest ago goes first
};

class GrammarCompiler {
 public:
  // Errors: see Grammar::compile(); a source that is too large; kResourceExhausted when too many wait.
  using Done = std::function<void(Result<std::shared_ptr<const Grammar>> grammar)>;

  // `vocab`: logits of the model; tokens of the tokenizer beyond them do not count. `end`: the token that ends an
  // answer; -1: there is none, and every source is refused. The tokenizer is not needed once this returns.
  GrammarCompiler(const Tokenizer& tokenizer, int vocab, int32_t end, const GrammarLimits& limits = {});
  // Ends what is being compiled; what still waits is forgotten, without a call.
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Calls `done` once: before this returns when the answer is known, otherwise on the compiler's thread. Safe to call
  // from several threads.
  void compile(GrammarSource source, Done done);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onelane
