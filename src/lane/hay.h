// Hay: any amount of plain, seeded English in which facts can be hidden, for long prompts and needles.
//
// The same seed gives the same bytes on every machine: receipts name a prompt by its SHA-256. Sentences come from a
// small grammar of our own; each stands on a line, no line repeats often, and none contains a digit, so that a code in
// an answer can only come from a fact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/splitmix.h"

namespace onelane {

// Integers that a seed fixes everywhere (splitmix64), unlike the standard library's distributions.
class SeededIntegers {
 public:
  explicit SeededIntegers(uint64_t seed) : numbers_(seed) {}
  uint64_t next() { return numbers_.next(); }
  // Uniform in 0..count-1 but for a bias below count / 2^32; count >= 1.
  size_t below(size_t count);

 private:
  SplitMix numbers_;
};

struct HayFact {
  int at_permille = 0;  // of the hay's characters, 0..1000
  std::string text;     // a line, without its line feed
};

struct HaySpec {
  uint64_t seed = 0;
  size_t characters = 0;  // of the hay without facts; whole lines, so a little less comes out
  std::vector<HayFact> facts;
};

// Lines that end in a line feed, each fact as a line of its own before the first line that begins at or behind its
// place. Facts at the same place keep their order.
std::string make_hay(const HaySpec& spec);

}  // namespace onelane
