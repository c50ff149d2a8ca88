// Index queries and keys as operands of f16 products (score.cu says what for).
#pragma once

#include "cuda/linear/decode.h"

namespace onelane::cuda {

inline constexpr int kIndexBlocks = 4;  // of 32 dims, a scale each

// A plain vector's scale codes: no product, sum or weighted score of such leaves the normal floats.
inline constexpr int kLeastPlain = 100, kMostPlain = 150, kMostSpread = 4;

__device__ __forceinline__ int byte_of(uint32_t codes, int i) { return static_cast<int>(codes >> (8 * i) & 255); }

// The scales of a query or a key, and what its codes are multiplied with as operands.
struct IndexScales {
  uint32_t codes;  // of the operands' blocks: all the same if plain
  bool plain;

  __device__ __forceinline__ explicit IndexScales(uint32_t of_record) : codes(of_record) {
    int least = 255, most = 0;
#pragma unroll
    for (int b = 0; b < kIndexBlocks; ++b) {
      least = min(least, byte_of(of_record, b));
      most = max(most, byte_of(of_record, b));
    }
    plain = least >= kLeastPlain && most <= kMostPlain && most - least <= kMostSpread;
    if (plain) codes = static_cast<uint32_t>(most) * 0x01010101u;
  }
  // Two f16: what makes operands of e2m1_to_f16's 2^-14 times the values.
  __device__ __forceinline__ uint32_t factor(uint32_t of_record, int block) const {
    const int down = byte_of(codes, block) - byte_of(of_record, block);  // 0 if not plain
    return static_cast<uint32_t>(15 + 14 - down) << 10 | static_cast<uint32_t>(15 + 14 - down) << 26;
  }
};

// Eight codes of a block as operands: pair i is those of nibbles i and i + 4.
__device__ __forceinline__ uint4 index_operands(uint32_t codes, uint32_t of_record, int block) {
  uint32_t pairs[4];
  e2m1_to_f16(codes, pairs);
  const uint32_t times = IndexScales(of_record).factor(of_record, block);
  return make_uint4(ptx::multiply_f16(pairs[0], times), ptx::multiply_f16(pairs[1], times),
                    ptx::multiply_f16(pairs[2], times), ptx::multiply_f16(pairs[3], times));
}

}  // namespace onelane::cuda
