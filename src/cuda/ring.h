// A ring of slots in shared memory as a thread goes through it: who fills waits for empty(), who reads for full().
#pragma once

#include <cstdint>

#include "cuda/ptx/cluster.h"

namespace onelane::cuda {

template <int kSlots>
struct Ring {
  uint32_t barriers;  // of full slots, then of empty ones
  int index = 0;
  uint32_t round = 0;  // parity
  bool begun = false;  // there is a slot before this one

  __device__ explicit Ring(uint32_t barriers) : barriers(barriers) {}
  __device__ uint32_t full() const { return barriers + index * 8; }
  __device__ uint32_t empty() const { return barriers + (kSlots + index) * 8; }
  __device__ uint32_t empty_before() const { return barriers + (kSlots + (index == 0 ? kSlots : index) - 1) * 8; }
  __device__ void next() {
    begun = true;
    if (++index < kSlots) return;
    index = 0;
    round ^= 1;
  }
};

// All lanes are done with the slot.
//
// An arrival overtakes loads from shared memory that were issued before it: where memory stalls these wait for so long
// that a copy into the slot comes first. So this stands where what was loaded has been used, behind a product that
// takes it, or that takes the registers of another that was added up with it.
template <int kSlots>
__device__ __forceinline__ void release(const Ring<kSlots>& ring, int lane) {
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(ring.empty());
}
// The same with the slot before this one.
template <int kSlots>
__device__ __forceinline__ void release_before(const Ring<kSlots>& ring, int lane) {
  __syncwarp();
  if (ring.begun && lane == 0) ptx::mbarrier_arrive(ring.empty_before());
}

}  // namespace onelane::cuda
