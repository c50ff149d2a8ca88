#include "api/structured_output.h"

#include <utility>

#include "api/answer_filters.h"
#include "grammar/compiler.h"

namespace onelane {
namespace {

struct Waiting {
  Services& services;
  std::shared_ptr<ApiExchange> exchange;
  std::vector<GenerationRequest> requests;
  std::function<void(std::vector<GenerationRequest>)> start;

  std::shared_ptr<TokenFilter> filter(const Grammar& grammar, const GenerationRequest& request) const {
    const Tokenizer& tokenizer = services.tokenizer;
    std::shared_ptr<TokenFilter> filter = grammar.filter();
    if (!request.or_text.empty()) filter = either_text(tokenizer, request.or_text, std::move(filter));
    return behind_reasoning(tokenizer, request.thinking, services.spec.tokens.eos, std::move(filter));
  }

  void go_on(const Result<std::shared_ptr<const Grammar>>& grammar) {
    if (exchange->gone()) return;
    if (!grammar) return exchange->fail(to_api_error(grammar.error(), requests.front().grammar->field));
    for (GenerationRequest& request : requests) request.request.filter = filter(**grammar, request);
    start(std::move(requests));
  }
};

}  // namespace

void with_grammar(Services& services, const std::shared_ptr<ApiExchange>& exchange,
                  std::vector<GenerationRequest> requests,
                  std::function<void(std::vector<GenerationRequest> requests)> start) {
  if (requests.empty() || !requests.front().grammar) return start(std::move(requests));
  GrammarSource source = *requests.front().grammar;
  auto waiting = std::make_shared<Waiting>(services, exchange, std::move(requests), std::move(start));
  // Whoever calls back hands everything over: an exchange is let go of on the I/O thread alone.
  services.grammars.compile(std::move(source), [waiting = std::move(waiting)](auto grammar) mutable {
    Services& to = waiting->services;
    to.post([waiting = std::move(waiting), grammar = std::move(grammar)] { waiting->go_on(grammar); });
  });
}

}  // namespace onelane
