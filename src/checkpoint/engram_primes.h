// The bucket counts of the Engram hash tables.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/model_spec.h"

namespace onelane {

// One inner vector per Engram layer, in column order (n-gram order 2..max_ngram, then head): consecutive primes from
// engram.vocab_size upwards, none used twice in the model (spec/model.md 7.1). A layer's table has as many rows as the
// sum of its primes, and a column's rows begin at the sum of the primes before it.
std::vector<std::vector<int64_t>> engram_primes(const EngramSpec& engram);

}  // namespace onelane
