// Filters that shape a chat answer from the outside: what must come first, what must not come, what waits for the end
// of the reasoning. Each serves one generation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/tokenizer.h"

namespace onelane {

// One of `texts` comes first, word for word; behind it everything may. `tokenizer` must outlive the filter.
std::shared_ptr<TokenFilter> forced_text(const Tokenizer& tokenizer, std::vector<std::string> texts);

// `token` never comes.
std::shared_ptr<TokenFilter> forbidden_token(int32_t token);

// `filter` rules what comes behind `token`; until then everything may come but `end`.
std::shared_ptr<TokenFilter> after_token(int32_t token, int32_t end, std::shared_ptr<TokenFilter> filter);

// `filter` itself, or behind the reasoning where the answer begins with some (`thinking`). `end`: as above.
std::shared_ptr<TokenFilter> behind_reasoning(const Tokenizer& tokenizer, bool thinking, int32_t end,
                                              std::shared_ptr<TokenFilter> filter);

// Either what `filter` rules, or `text` and then whatever the model likes. The first token decides; one that both allow
// is the filter's.
std::shared_ptr<TokenFilter> either_text(const Tokenizer& tokenizer, std::string text,
                                         std::shared_ptr<TokenFilter> filter);

}  // namespace onelane
