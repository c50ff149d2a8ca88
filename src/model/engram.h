// Engram addressing (spec/model.md 7.1): which table rows a token looks up, from itself and the three tokens before it.
//
// Integers only: row numbers are known as soon as the token is, long before the layer needs them. Here are the
// constants; the rows of a step are the stage Kernels::address.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_spec.h"
#include "kernels/kernels.h"

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
  // Multipliers of the n-th Engram layer (not layer index), [max_ngram].
  std::span<const int64_t> multipliers(int n) const { return multipliers_[static_cast<size_t>(n)]; }
  std::span<const int32_t> token_map() const { return token_map_; }
  // Primes of the n-th Engram layer, [max_ngram - 1, heads].
  std::span<const int64_t> primes(int n) const { return primes_[static_cast<size_t>(n)]; }
  // What Kernels::address needs for the n-th Engram layer, on the host; `table_rows` is the caller's.
  AddressArgs args(int n) const;

 private:
  EngramSpec spec_;
  std::vector<int32_t> token_map_;
  std::vector<std::vector<int64_t>> primes_;
  std::vector<std::vector<int64_t>> multipliers_;
};

}  // namespace onelane
