// Structured output: from the grammar that a request names to filters in its generations.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "api/generation.h"
#include "api/router.h"
#include "api/services.h"

namespace onelane {

// Calls `start` with `requests` on the I/O thread, at once when the first of them names no grammar; otherwise when that
// grammar, which all of them share, is compiled and a filter is in each: behind the reasoning, and with or_text as the
// other way to begin. A grammar that does not compile is answered with a refusal that names its field; a client that
// has gone away in the meantime with nothing.
void with_grammar(Services& services, const std::shared_ptr<ApiExchange>& exchange,
                  std::vector<GenerationRequest> requests,
                  std::function<void(std::vector<GenerationRequest> requests)> start);

}  // namespace onelane
