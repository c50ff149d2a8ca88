// Warpgroup matrix products of Hopper (sm_90a), one instruction a function: D[64, N] += A[64, 16] B[16, N], bf16 in,
// float out. D is spread over the 128 threads of a warpgroup as the PTX manual draws it: thread 32 w + 4 g + t holds
// rows 16 w + g (and + 8) and columns 8 j + 2 t, + 1, as d[4 j + 2 (row half) + (column)].
#pragma once

#include <cstdint>

#include "cuda/ptx/descriptor.h"

namespace onelane::ptx {

// Before the first product, and after other instructions wrote registers that a product reads or adds to.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `kPending` of the committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Makes what the compiler knows of these registers as old as this place: a product that runs beside the thread writes
// them.
template <int kTiles>
__device__ __forceinline__ void hold(float (&d)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[j][i])::"memory");
  }
}

// A [64, 16] and B [16, N] in shared memory, B with k contiguous. A's 16 columns are contiguous, or its 64 rows.
// Without `add` D is overwritten.
template <int N>
struct Wgmma;

#define ONELANE_WGMMA(shape, registers, a, b, add, rows_contiguous)                      \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64" shape \
  "k16.f32.bf16.bf16 " registers ", " a ", " b ", p, 1, 1, " rows_contiguous ", 0;\n}\n"

template <>
struct Wgmma<8> {
  template <bool kRowsContiguous>
  static __device__ __forceinline__ void product(float (&d)[4], uint64_t a, uint64_t b, bool add) {
    asm volatile(ONELANE_WGMMA("n8", "{%0,%1,%2,%3}", "%4", "%5", "%6", "%7")
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kRowsContiguous));
  }
};

template <>
struct Wgmma<16> {
  template <bool kRowsContiguous>
  static __device__ __forceinline__ void product(float (&d)[8], uint64_t a, uint64_t b, bool add) {
    asm volatile(ONELANE_WGMMA("n16", "{%0,%1,%2,%3,%4,%5,%6,%7}", "%8", "%9", "%10", "%11")
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kRowsContiguous));
  }
};

template <>
struct Wgmma<32> {
  template <bool kRowsContiguous>
  static __device__ __forceinline__ void product(float (&d)[16], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        ONELANE_WGMMA("n32", "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}", "%16", "%17", "%18", "%19")
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kRowsContiguous));
  }
};

template <>
struct Wgmma<64> {
  template <bool kRowsContiguous>
  static __device__ __forceinline__ void product(float (&d)[32], uint64_t a, uint64_t b, bool add) {
    asm volatile(ONELANE_WGMMA("n64",
                               "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                               "%24,%25,%26,%27,%28,%29,%30,%31}",
                               "%32", "%33", "%34", "%35")
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
                   "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kRowsContiguous));
  }
};

#undef ONELANE_WGMMA

// D[64, 128] += A[64, 16] B[16, 128], D d[kFirst], ... and A in registers (thread 4 g + t of a warp: rows g, g + 8 of
// columns 2 t, + 1, then those of columns 2 t + 8, + 9), B with its 128 columns contiguous in 2 swizzled matrices that
// lie `b` says how far apart. (One of 256 columns does not compile where a kernel begins with 128 registers.)
template <int kFirst, int kAll>
__device__ __forceinline__ void wgmma_128(float (&d)[kAll], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%"
      "58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, "
      "%68, p, 1, 1, 1;\n}\n"
      : "+f"(d[kFirst + 0]), "+f"(d[kFirst + 1]), "+f"(d[kFirst + 2]), "+f"(d[kFirst + 3]), "+f"(d[kFirst + 4]),
        "+f"(d[kFirst + 5]), "+f"(d[kFirst + 6]), "+f"(d[kFirst + 7]), "+f"(d[kFirst + 8]), "+f"(d[kFirst + 9]),
        "+f"(d[kFirst + 10]), "+f"(d[kFirst + 11]), "+f"(d[kFirst + 12]), "+f"(d[kFirst + 13]), "+f"(d[kFirst + 14]),
        "+f"(d[kFirst + 15]), "+f"(d[kFirst + 16]), "+f"(d[kFirst + 17]), "+f"(d[kFirst + 18]), "+f"(d[kFirst + 19]),
        "+f"(d[kFirst + 20]), "+f"(d[kFirst + 21]), "+f"(d[kFirst + 22]), "+f"(d[kFirst + 23]), "+f"(d[kFirst + 24]),
        "+f"(d[kFirst + 25]), "+f"(d[kFirst + 26]), "+f"(d[kFirst + 27]), "+f"(d[kFirst + 28]), "+f"(d[kFirst + 29]),
        "+f"(d[kFirst + 30]), "+f"(d[kFirst + 31]), "+f"(d[kFirst + 32]), "+f"(d[kFirst + 33]), "+f"(d[kFirst + 34]),
        "+f"(d[kFirst + 35]), "+f"(d[kFirst + 36]), "+f"(d[kFirst + 37]), "+f"(d[kFirst + 38]), "+f"(d[kFirst + 39]),
        "+f"(d[kFirst + 40]), "+f"(d[kFirst + 41]), "+f"(d[kFirst + 42]), "+f"(d[kFirst + 43]), "+f"(d[kFirst + 44]),
        "+f"(d[kFirst + 45]), "+f"(d[kFirst + 46]), "+f"(d[kFirst + 47]), "+f"(d[kFirst + 48]), "+f"(d[kFirst + 49]),
        "+f"(d[kFirst + 50]), "+f"(d[kFirst + 51]), "+f"(d[kFirst + 52]), "+f"(d[kFirst + 53]), "+f"(d[kFirst + 54]),
        "+f"(d[kFirst + 55]), "+f"(d[kFirst + 56]), "+f"(d[kFirst + 57]), "+f"(d[kFirst + 58]), "+f"(d[kFirst + 59]),
        "+f"(d[kFirst + 60]), "+f"(d[kFirst + 61]), "+f"(d[kFirst + 62]), "+f"(d[kFirst + 63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

// The same with B's k contiguous (swizzled_matrix), of f16 or bf16; d[j] are columns 8 j to 8 j + 7.
template <bool kF16>
__device__ __forceinline__ void wgmma_128(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, bool add) {
#define ONELANE_WGMMA(type)                                                                                            \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type  \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%" \
               "27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%"  \
               "52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}\n"             \
               : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),             \
                 "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),             \
                 "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),             \
                 "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),             \
                 "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),             \
                 "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),             \
                 "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),           \
                 "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),       \
                 "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),       \
                 "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),       \
                 "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))
  if constexpr (kF16) {
    ONELANE_WGMMA("f16");
  } else {
    ONELANE_WGMMA("bf16");
  }
#undef ONELANE_WGMMA
}

// D[64, N] += A[64, 16] B[16, N] of f16, A in registers and B's k contiguous, as above; d[j] are columns 8 j to 8 j
// + 7.
#define ONELANE_D(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define ONELANE_WGMMA(shape, registers, a, b, add)                                                                    \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64" shape "k16.f32.f16.f16 " registers \
  ", " a ", " b ", p, 1, 1, 0;\n}\n"
#define ONELANE_OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add))

__device__ __forceinline__ void wgmma_f16(float (&d)[4][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      ONELANE_WGMMA("n32", "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}", "{%16,%17,%18,%19}", "%20", "%21")
      : ONELANE_D(0), ONELANE_D(1), ONELANE_D(2), ONELANE_D(3)
      : ONELANE_OPERANDS);
}
__device__ __forceinline__ void wgmma_f16(float (&d)[6][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      ONELANE_WGMMA("n48", "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}",
                    "{%24,%25,%26,%27}", "%28", "%29")
      : ONELANE_D(0), ONELANE_D(1), ONELANE_D(2), ONELANE_D(3), ONELANE_D(4), ONELANE_D(5)
      : ONELANE_OPERANDS);
}
__device__ __forceinline__ void wgmma_f16(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(ONELANE_WGMMA("n64",
                             "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%"
                             "24,%25,%26,%27,%28,%29,%30,%31}",
                             "{%32,%33,%34,%35}", "%36", "%37")
               : ONELANE_D(0), ONELANE_D(1), ONELANE_D(2), ONELANE_D(3), ONELANE_D(4), ONELANE_D(5), ONELANE_D(6),
                 ONELANE_D(7)
               : ONELANE_OPERANDS);
}
__device__ __forceinline__ void wgmma_f16(float (&d)[10][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(ONELANE_WGMMA("n80",
                             "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%"
                             "24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39}",
                             "{%40,%41,%42,%43}", "%44", "%45")
               : ONELANE_D(0), ONELANE_D(1), ONELANE_D(2), ONELANE_D(3), ONELANE_D(4), ONELANE_D(5), ONELANE_D(6),
                 ONELANE_D(7), ONELANE_D(8), ONELANE_D(9)
               : ONELANE_OPERANDS);
}
__device__ __forceinline__ void wgmma_f16(float (&d)[12][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      ONELANE_WGMMA("n96",
                    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%"
                    "26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}",
                    "{%48,%49,%50,%51}", "%52", "%53")
      : ONELANE_D(0), ONELANE_D(1), ONELANE_D(2), ONELANE_D(3), ONELANE_D(4), ONELANE_D(5), ONELANE_D(6), ONELANE_D(7),
        ONELANE_D(8), ONELANE_D(9), ONELANE_D(10), ONELANE_D(11)
      : ONELANE_OPERANDS);
}
__device__ __forceinline__ void wgmma_f16(float (&d)[14][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      ONELANE_WGMMA(
          "n112",
          "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%"
          "29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55}",
          "{%56,%57,%58,%59}", "%60", "%61")
      : ONELANE_D(0), ONELANE_D(1), ONELANE_D(2), ONELANE_D(3), ONELANE_D(4), ONELANE_D(5), ONELANE_D(6), ONELANE_D(7),
        ONELANE_D(8), ONELANE_D(9), ONELANE_D(10), ONELANE_D(11), ONELANE_D(12), ONELANE_D(13)
      : ONELANE_OPERANDS);
}
#undef ONELANE_OPERANDS
#undef ONELANE_WGMMA
#undef ONELANE_D

}  // namespace onelane::ptx
