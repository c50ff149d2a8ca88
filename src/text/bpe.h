// Bpe: byte-pair encoding of one pre-token.
//
// A pre-token starts as one symbol per byte; the adjacent pair whose merge has the lowest rank (the leftmost of equals)
// is replaced until no pair has a merge. Short pieces scan for the best pair; long ones keep candidates in a heap, so
// that a run of n bytes costs O(n log n).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace onelane {

class Bpe {
 public:
  // byte_ids[b] is the token of the single byte b, or -1 where the vocabulary has none. Merges are added in rank order.
  explicit Bpe(const std::array<int32_t, 256>& byte_ids) : byte_ids_(byte_ids) {}
  void reserve(size_t merges);
  // A pair that is added twice keeps its last rank, as in Hugging Face tokenizers.
  void add_merge(int32_t left, int32_t right, int32_t result);

  // Appends the tokens of `piece` (fewer than 2^31 bytes, every byte in the vocabulary).
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint64_t pair = kEmpty;
    int32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static constexpr size_t kShortPiece = 48;  // bytes; beyond this the heap wins

  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot(uint64_t pair) const;
  const Merge* find(int32_t left, int32_t right) const;
  void grow(size_t slots);
  void encode_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Merge> table_;  // open addressing, a power of two long, at most half full
  size_t used_ = 0;
  int32_t next_rank_ = 0;
};

}  // namespace onelane
