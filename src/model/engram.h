// Engram addressing (spec/model.md 7.1): which table rows a token looks up, from itself and the three tokens before it.
//
// Integers only, on the host: row numbers are known as soon as the token is, long before the layer needs them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_spec.h"

namespace onelane {

// numpy's default_rng(seed).integers(0, bound, size=count), bit for bit (SeedSequence, PCG64, Lemire's bounded draw);
// bound > 2^32.
std::vector<int64_t> numpy_integers(uint64_t seed, uint64_t bound, int count);

class EngramAddresses {
 public:
  // `token_map` takes a token id to its compressed id (computed from the tokenizer); it must have
  // spec.engram.compressed_vocab_size distinct values, or every row would be wrong.
  static Result<EngramAddresses> create(const EngramSpec& spec, std::vector<int32_t> token_map);

  int columns() const { return spec_.columns(); }
  // How many earlier tokens a row depends on: max_ngram - 1.
  int history() const { return spec_.max_ngram - 1; }
  // Multipliers of the n-th Engram layer (not layer index), [max_ngram].
  std::span<const int64_t> multipliers(int n) const { return multipliers_[static_cast<size_t>(n)]; }

  // Row numbers, offsets included, of `tokens` in the n-th Engram layer: out [tokens, columns], order 2..max_ngram
  // outer, head inner. `before` holds the tokens just before them, most recent last, as many as exist (at most
  // history()).
  void rows(int n, std::span<const int32_t> before, std::span<const int32_t> tokens, int32_t* out) const;

 private:
  EngramSpec spec_;
  std::vector<int32_t> token_map_;
  std::vector<std::vector<int64_t>> primes_;
  std::vector<std::vector<int64_t>> multipliers_;
};

}  // namespace onelane
