// The thinking gate: every thinking mode, alone and in company, undisturbed and disturbed.
//
// Cells are mode x streams x condition: undisturbed; a long prompt that arrives; a quarter of the requests cancelled;
// turns with tool results on a cached prefix. Streams ask in a closed loop for a window of seconds. Each answer is held
// against what the same prompt got alone: on Onelane it must be the same text, on other servers it must be as good.
#pragma once

#include "lane/gate.h"

namespace onelane {

Gate thinking_gate();

}  // namespace onelane
