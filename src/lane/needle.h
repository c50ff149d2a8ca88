// The needle gate: facts at every depth of long prompts, asked for cold and from the prefix cache.
//
// A prompt is hay with eight facts, at 1 to 99 % and in its last line; each is asked for, and the seven others are the
// decoys: their codes in an answer are as wrong as none. The first question to a prompt is cold (a line in front makes
// it new), the others find its prefix in the cache, whose last block holds the last fact. Codes are digits and the hay
// has none, so there is nothing to guess.
#pragma once

#include "lane/gate.h"

namespace onelane {

Gate needle_gate();

}  // namespace onelane
