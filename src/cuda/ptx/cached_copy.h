// Copies that say how the second-level cache is to treat what they read, one instruction a function.
#pragma once

#include <cstdint>

namespace onelane::ptx {

// copy_async() of 16 bytes with a policy of the cache.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
               : "memory");
}
// What is read goes first when there is need of room.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

}  // namespace onelane::ptx
