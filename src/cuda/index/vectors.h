// Index queries and keys on their way to fp4, and where a sequence's compressed entries lie: what the compressor and
// the indexer share. A warp holds the 128 values of a query or key, lane l those from 4 l on. To the bit what
// kernels/rope.h and kernels.h (IndexArgs) say.
#pragma once

#include <cstdint>

#include "cuda/numerics.h"
#include "kernels/kernels.h"

namespace onelane::cuda {

// One adjacent pair turned by its angle, rounded.
__device__ __forceinline__ void rotate_pair(float& even, float& odd, float cosine, float sine) {
  const float x = even, y = odd;
  even = round_bf16(__fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine)));
  odd = round_bf16(__fadd_rn(__fmul_rn(x, sine), __fmul_rn(y, cosine)));
}

// Turns the last 64 values; `angles`: 32 cosines, then 32 sines.
__device__ __forceinline__ void rope_index_vector(float (&v)[4], int lane, const float* angles) {
  if (lane < 16) return;
  const float* cosines = angles + (lane - 16) * 2;
  rotate_pair(v[0], v[1], cosines[0], cosines[kRopeDim / 2]);
  rotate_pair(v[2], v[3], cosines[1], cosines[kRopeDim / 2 + 1]);
}

// Walsh-Hadamard in natural order, scaled and rounded; all lanes of a warp.
__device__ __forceinline__ void hadamard(float (&v)[4], int lane) {
  const auto butterfly = [](float& a, float& b) {
    const float low = a, high = b;
    a = low + high;
    b = low - high;
  };
  butterfly(v[0], v[1]);
  butterfly(v[2], v[3]);
  butterfly(v[0], v[2]);
  butterfly(v[1], v[3]);
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
    for (float& value : v) {
      const float other = __shfl_xor_sync(0xffffffff, value, distance);
      value = (lane & distance) != 0 ? other - value : value + other;
    }
  }
  constexpr float kScale = 0.08838834764831845f;  // 128^-0.5
#pragma unroll
  for (float& value : v) value = round_bf16(__fmul_rn(value, kScale));
}

// Where an entry (or index key) of a sequence lies; `pages` is the sequence's row of the page table.
struct EntryPlace {
  uint8_t* data;
  uint8_t* scales;
};
__device__ __forceinline__ EntryPlace entry_place(const PagedCache& cache, const int32_t* pages, int entry,
                                                  int data_bytes, int scale_bytes) {
  const int place = entry % cache.per_page;
  uint8_t* block =
      reinterpret_cast<uint8_t*>(cache.base) + cache.page_bytes * pages[entry / cache.per_page] + cache.offset;
  return {block + place * data_bytes, block + cache.per_page * data_bytes + place * scale_bytes};
}

}  // namespace onelane::cuda
