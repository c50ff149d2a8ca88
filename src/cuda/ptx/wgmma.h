// Warpgroup matrix products of Hopper (sm_90a), one instruction a function: D[64, N] += A[64, 16] B[16, N], bf16 in,
// float out. D is spread over the 128 threads of a warpgroup as the PTX manual draws it: thread 32 w + 4 g + t holds
// rows 16 w + g (and + 8) and columns 8 j + 2 t, + 1, as d[4 j + 2 (row half) + (column)].
#pragma once

#include <cstdint>

namespace onelane::ptx {

// Before the first product, and after other instructions wrote registers that a product reads or adds to.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `kPending` of the committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A matrix in shared memory with the 128-byte swizzle, in atoms of 8 rows of 128 bytes, 1024 bytes apart; for A and B
// alike, whichever dimension is contiguous. `address` may point inside an atom's first row, to step along it.
__device__ __forceinline__ uint64_t swizzled_matrix(uint32_t address) {
  constexpr uint64_t kStride = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kOne = uint64_t{1} << 16;  // the other stride: not used, because 64 elements fill 128 bytes
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | kStride | kOne | ((address & 0x3ffff) >> 4);
}

// A [64, 16] and B [16, N] in shared memory. A's 16 columns contiguous ("k"), or its 64 rows ("m"); B with k
// contiguous. Without `add` D is overwritten.
template <int N>
struct Wgmma;

#define ONELANE_WGMMA(shape, registers, a, b, add, a_rows_contiguous)                    \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64" shape \
  "k16.f32.bf16.bf16 " registers ", " a ", " b ", p, 1, 1, " a_rows_contiguous ", 0;\n}\n"

template <>
struct Wgmma<8> {
  static __device__ __forceinline__ void k_major(float (&d)[4], uint64_t a, uint64_t b, bool add) {
    asm volatile(ONELANE_WGMMA("n8", "{%0,%1,%2,%3}", "%4", "%5", "%6", "0")
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
  static __device__ __forceinline__ void m_major(float (&d)[4], uint64_t a, uint64_t b, bool add) {
    asm volatile(ONELANE_WGMMA("n8", "{%0,%1,%2,%3}", "%4", "%5", "%6", "1")
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};

template <>
struct Wgmma<16> {
  static __device__ __forceinline__ void k_major(float (&d)[8], uint64_t a, uint64_t b, bool add) {
    asm volatile(ONELANE_WGMMA("n16", "{%0,%1,%2,%3,%4,%5,%6,%7}", "%8", "%9", "%10", "0")
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
  static __device__ __forceinline__ void m_major(float (&d)[8], uint64_t a, uint64_t b, bool add) {
    asm volatile(ONELANE_WGMMA("n16", "{%0,%1,%2,%3,%4,%5,%6,%7}", "%8", "%9", "%10", "1")
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};

template <>
struct Wgmma<32> {
  static __device__ __forceinline__ void k_major(float (&d)[16], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        ONELANE_WGMMA("n32", "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}", "%16", "%17", "%18", "0")
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
  static __device__ __forceinline__ void m_major(float (&d)[16], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        ONELANE_WGMMA("n32", "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}", "%16", "%17", "%18", "1")
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};

template <>
struct Wgmma<64> {
  static __device__ __forceinline__ void k_major(float (&d)[32], uint64_t a, uint64_t b, bool add) {
    asm volatile(ONELANE_WGMMA("n64",
                               "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                               "%24,%25,%26,%27,%28,%29,%30,%31}",
                               "%32", "%33", "%34", "0")
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
                   "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
  static __device__ __forceinline__ void m_major(float (&d)[32], uint64_t a, uint64_t b, bool add) {
    asm volatile(ONELANE_WGMMA("n64",
                               "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                               "%24,%25,%26,%27,%28,%29,%30,%31}",
                               "%32", "%33", "%34", "1")
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
                   "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
};

#undef ONELANE_WGMMA

}  // namespace onelane::ptx
