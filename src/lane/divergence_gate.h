// The gate divergence: the same documents forced through every path of a server, held class by class against a
// reference capture, or, without one, against the server's own prefill.
#pragma once

#include "lane/gate.h"

namespace onelane {

Gate divergence_gate();

}  // namespace onelane
