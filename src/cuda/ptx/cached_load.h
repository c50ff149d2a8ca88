// Loads that say how the second-level cache is to treat what they read, one instruction a function. What they read is
// read-only for the whole kernel and goes past the first-level cache; in the order they are written, so that many are
// in flight.
#pragma once

#include <cstdint>

namespace onelane::ptx {

// What is read goes first when there is need of room, or when its turn comes.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_normal() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// 4, 8 or 16 bytes.
__device__ __forceinline__ void load_stream(uint32_t (&v)[1], const void* p, uint64_t policy) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.u32 %0, [%1], %2;"
               : "=r"(v[0])
               : "l"(p), "l"(policy));
}
__device__ __forceinline__ void load_stream(uint32_t (&v)[2], const void* p, uint64_t policy) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v2.u32 {%0,%1}, [%2], %3;"
               : "=r"(v[0]), "=r"(v[1])
               : "l"(p), "l"(policy));
}
__device__ __forceinline__ void load_stream(uint32_t (&v)[4], const void* p, uint64_t policy) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(p), "l"(policy));
}

}  // namespace onelane::ptx
