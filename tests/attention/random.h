// A small seeded generator for test data: fast, and the same numbers with every compiler and library.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "base/splitmix.h"

namespace onelane::attention_test {

class Random {
 public:
  // Streams of one seed are independent, so that threads can fill parts of a tensor in any order.
  explicit Random(uint64_t seed, uint64_t stream = 0)
      : numbers_(splitmix(seed) ^ splitmix(stream + 0x632be59bd9b4e019ull)) {}

  uint64_t next() { return numbers_.next(); }
  // In [0, bound); bound at least 1.
  int below(int bound) {
    return static_cast<int>(((next() >> 32) * static_cast<uint64_t>(static_cast<uint32_t>(bound))) >> 32);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  bool chance(double share) { return uniform() < share; }

  // Standard normal from a table of 4096 quantiles: |value| stays below 3.7, which is all that tests want.
  float normal() {
    static const std::array<float, 4096> quantiles = make_quantiles();
    if (left_ == 0) {
      bits_ = next();
      left_ = 5;
    }
    const auto place = static_cast<size_t>(bits_ & 4095u);
    bits_ >>= 12;
    --left_;
    return quantiles[place];
  }

 private:
  // Quantile i by bisection of the normal's distribution function.
  static std::array<float, 4096> make_quantiles() {
    std::array<float, 4096> table{};
    for (size_t i = 0; i < table.size(); ++i) {
      const double target = (static_cast<double>(i) + 0.5) / 4096;
      double low = -5, high = 5;
      for (int step = 0; step < 40; ++step) {
        const double middle = (low + high) / 2;
        (std::erfc(-middle / std::sqrt(2.0)) / 2 < target ? low : high) = middle;
      }
      table[i] = static_cast<float>(low);
    }
    return table;
  }

  SplitMix numbers_;
  uint64_t bits_ = 0;
  int left_ = 0;
};

}  // namespace onelane::attention_test
