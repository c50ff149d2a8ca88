// The soak: rounds of mixed traffic with cancelled, dropped and invalid requests, and after each round an idle server
// whose memory, files, threads and pages are read.
//
// A leak is a slope whose 95 % interval lies above zero and that adds up to too much: over thirty days where the soak
// is long, over the run where it is short. A canary, the same prompt at temperature 0, must say what it said at first.
// Zero failures in T hours prove a mean time between failures of T/3 hours (95 %), no more.
#pragma once

#include "lane/gate.h"

namespace onelane {

Gate soak_gate();

}  // namespace onelane
