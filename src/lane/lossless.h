// The gate lossless: speculation must not change an answer. Greedy answers with drafts are held token by token against
// those without, and sampled first and second tokens against the model's own distribution.
#pragma once

#include "lane/gate.h"

namespace onelane {

Gate lossless_gate();

}  // namespace onelane
