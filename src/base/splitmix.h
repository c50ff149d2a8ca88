// splitmix64: a bijection of 64 bits whose outputs pass for random, and the generator that counts through it. The same
// numbers with every compiler and library.
#pragma once

#include <cstdint>

namespace onelane {

inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

// The output function. Its argument should not be small: 0 gives 0.
constexpr uint64_t splitmix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t next() { return splitmix(state_ += kSplitMixStep); }

 private:
  uint64_t state_;
};

}  // namespace onelane
