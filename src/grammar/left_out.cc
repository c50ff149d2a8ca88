// What there is of compiler.h in a build without XGrammar: a reason for everyone.
#include "grammar/compiler.h"

namespace onelane {

struct Grammar::Compiled {};
Grammar::~Grammar() = default;

struct GrammarCompiler::State {};
GrammarCompiler::GrammarCompiler(const Tokenizer&, int, int32_t, const GrammarLimits&) {}
GrammarCompiler::~GrammarCompiler() = default;

void GrammarCompiler::compile(GrammarSource source, Done done) {
  done(Error{ErrorCode::kUnsupported,
             source.field +
                 ": this build has no structured output, because XGrammar was not there when it was made; run "
                 "tools/setup.sh with a network and build again"});
}

// Nobody has a Grammar to ask.
std::shared_ptr<TokenFilter> Grammar::filter(double) const { return nullptr; }
size_t Grammar::bytes() const { return 0; }

}  // namespace onelane
