#include "model/engram.h"

#include <array>
#include <set>

#include "base/format.h"
#include "checkpoint/engram_primes.h"

namespace onelane {
namespace {

__extension__ using uint128 = unsigned __int128;

// numpy.random.SeedSequence with a pool of four words, as used by default_rng(seed).
std::array<uint64_t, 4> seed_sequence(uint64_t seed) {
  constexpr uint32_t kInitA = 0x43b0d7e5, kMultA = 0x931e8875, kInitB = 0x8b51f9dd, kMultB = 0x58f38ded;
  constexpr uint32_t kMixL = 0xca01f9dd, kMixR = 0x4973f715;
  uint32_t hash_constant = kInitA;
  const auto hash = [&](uint32_t value) {
    value ^= hash_constant;
    hash_constant *= kMultA;
    value *= hash_constant;
    return value ^ (value >> 16);
  };
  const auto mix = [](uint32_t x, uint32_t y) {
    const uint32_t result = kMixL * x - kMixR * y;
    return result ^ (result >> 16);
  };
  const std::array<uint32_t, 4> entropy = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
  std::array<uint32_t, 4> pool;
  for (size_t i = 0; i < 4; ++i) pool[i] = hash(entropy[i]);
  for (size_t from = 0; from < 4; ++from) {
    for (size_t to = 0; to < 4; ++to) {
      if (from != to) pool[to] = mix(pool[to], hash(pool[from]));
    }
  }
  uint32_t out_constant = kInitB;
  std::array<uint64_t, 4> state{};
  for (size_t i = 0; i < 8; ++i) {
    uint32_t value = pool[i % 4] ^ out_constant;
    out_constant *= kMultB;
    value *= out_constant;
    value ^= value >> 16;
    state[i / 2] |= static_cast<uint64_t>(value) << (32 * (i % 2));
  }
  return state;
}

class Pcg64 {
 public:
  explicit Pcg64(uint64_t seed) {
    const auto words = seed_sequence(seed);
    increment_ = (((static_cast<uint128>(words[2]) << 64) | words[3]) << 1) | 1;
    step();
    state_ += (static_cast<uint128>(words[0]) << 64) | words[1];
    step();
  }
  uint64_t next() {
    step();
    const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const auto turn = static_cast<unsigned>(state_ >> 122);
    return (folded >> turn) | (folded << ((64 - turn) & 63));
  }

 private:
  void step() {
    constexpr uint128 kMultiplier = (static_cast<uint128>(2549297995355413924ULL) << 64) | 4865540595714422341ULL;
    state_ = state_ * kMultiplier + increment_;
  }
  uint128 state_ = 0;
  uint128 increment_ = 0;
};

}  // namespace

std::vector<int64_t> numpy_integers(uint64_t seed, uint64_t bound, int count) {
  ONELANE_CHECK(bound > (uint64_t{1} << 32), "smaller bounds draw from 32-bit halves, which is another sequence");
  Pcg64 generator(seed);
  std::vector<int64_t> values;
  const uint64_t threshold = (0 - bound) % bound;
  while (static_cast<int>(values.size()) < count) {
    const uint128 product = static_cast<uint128>(generator.next()) * bound;
    if (static_cast<uint64_t>(product) >= threshold) values.push_back(static_cast<int64_t>(product >> 64));
  }
  return values;
}

Result<EngramAddresses> EngramAddresses::create(const EngramSpec& spec, std::vector<int32_t> token_map) {
  const std::set<int32_t> distinct(token_map.begin(), token_map.end());
  if (static_cast<int>(distinct.size()) != spec.compressed_vocab_size) {
    return Error{
        ErrorCode::kCorrupt,
        format("engram_compressed_vocab_size is {} but the tokenizer's compressed map has {} ids: the tokenizer "
               "does not belong to this checkpoint",
               spec.compressed_vocab_size, distinct.size())};
  }
  if (spec.pad_token_id < 0 || static_cast<size_t>(spec.pad_token_id) >= token_map.size()) {
    return Error{ErrorCode::kCorrupt, format("engram_pad_token_id {} is not in the tokenizer", spec.pad_token_id)};
  }
  EngramAddresses addresses;
  addresses.spec_ = spec;
  addresses.token_map_ = std::move(token_map);
  addresses.primes_ = engram_primes(spec);
  const auto largest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const uint64_t bound = largest / static_cast<uint64_t>(spec.compressed_vocab_size) / 2;
  for (const int layer : spec.layers) {
    auto multipliers = numpy_integers(10007ULL * static_cast<uint64_t>(layer), bound, spec.max_ngram);
    for (int64_t& multiplier : multipliers) multiplier = multiplier * 2 + 1;
    addresses.multipliers_.push_back(std::move(multipliers));
  }
  return addresses;
}

AddressArgs EngramAddresses::args(int n) const {
  return {.token_map = token_map_.data(),
          .map_size = static_cast<int>(token_map_.size()),
          .pad = spec_.pad_token_id,
          .multipliers = multipliers(n).data(),
          .primes = primes(n).data(),
          .max_ngram = spec_.max_ngram,
          .heads = spec_.heads};
}

}  // namespace onelane
