// Loads that may not be wanted, one instruction a function: what is used once, past the first-level cache (memory.h
// says why not as read-only). Zeros, and nothing read, unless `wanted`; predicated, so that many of them are in flight.
#pragma once

#include <cstdint>

namespace onelane::ptx {

__device__ __forceinline__ uint4 load_once_or_zero(const uint4* p, bool wanted) {
  uint4 v = make_uint4(0, 0, 0, 0);
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p ld.global.cg.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];\n}\n"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(p), "r"(static_cast<int>(wanted)));
  return v;
}
__device__ __forceinline__ uint2 load_once_or_zero(const uint2* p, bool wanted) {
  uint2 v = make_uint2(0, 0);
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n"
      "@p ld.global.cg.L2::128B.v2.u32 {%0,%1}, [%2];\n}\n"
      : "+r"(v.x), "+r"(v.y)
      : "l"(p), "r"(static_cast<int>(wanted)));
  return v;
}

}  // namespace onelane::ptx
