// The bytes of synthetic models: normally distributed values in the formats of checkpoints, from a seed.
//
// A pool holds values of one type and distribution. Tensors of that kind are windows into it that begin at random
// places, so a few gigabytes make any number of tensors.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/splitmix.h"
#include "checkpoint/tensor.h"
#include "device/buffer.h"

namespace onelane {

// Numbers that the seed fixes everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : numbers_(seed) {}
  uint64_t next() { return numbers_.next(); }
  // Below `bound`, as good as uniformly for bounds far below 2^64.
  uint64_t below(uint64_t bound) { return next() % bound; }
  // In (0, 1).
  double unit() { return (static_cast<double>(next() >> 12) + 0.5) * 0x1p-52; }

 private:
  SplitMix numbers_;
};

// z with P(Z < z) = p for a standard normal Z; p in (0, 1).
double normal_quantile(double p);

// What a tensor holds. Values are mean + deviation * z with |z| < 4.4, rounded to the type; of kI8 pairs of e2m1; of
// kF8E8M0 their base-2 logarithms are, rounded to integers. Nothing becomes NaN or infinite.
struct Content {
  DType dtype = DType::kF32;  // kF32, kBF16, kF8E4M3, kF8E8M0 or kI8
  double mean = 0;
  double deviation = 0;
  auto operator<=>(const Content&) const = default;
};

class BytePools {
 public:
  // Once for every tensor before the first view(): there will be a view of so many bytes.
  void plan(const Content& content, size_t bytes);
  // Makes the pools, in `memory`.
  void fill(Random& random, Memory& memory);
  // `bytes` of `content`, beginning at a random multiple of 64 in its pool.
  std::span<const std::byte> view(const Content& content, size_t bytes, Random& random) const;
  // Bytes that are not from a pool; they stay where they are.
  std::span<const std::byte> keep(std::vector<std::byte> bytes);

 private:
  struct Pool {
    size_t largest = 0;  // view
    Buffer bytes;
  };
  std::map<Content, Pool> pools_;
  std::vector<std::vector<std::byte>> kept_;
};

}  // namespace onelane
