#include "checkpoint/engram_primes.h"

namespace onelane {
namespace {

bool is_prime(int64_t n) {
  if (n < 2) return false;
  if (n % 2 == 0) return n == 2;
  for (int64_t d = 3; d * d <= n; d += 2) {
    if (n % d == 0) return false;
  }
  return true;
}

}  // namespace

std::vector<std::vector<int64_t>> engram_primes(const EngramSpec& engram) {
  // The definition restarts the scan for every (layer, order) and skips primes already taken. What is taken is always
  // an unbroken run of primes, so the restarts change nothing and one pass is enough.
  std::vector<std::vector<int64_t>> layers(engram.layers.size());
  int64_t candidate = engram.vocab_size - 1;
  for (auto& primes : layers) {
    for (int column = 0; column < engram.columns(); ++column) {
      do ++candidate;
      while (!is_prime(candidate));
      primes.push_back(candidate);
    }
  }
  return layers;
}

}  // namespace onelane
