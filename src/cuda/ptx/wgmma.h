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

// The same, with the next 64 of the contiguous dimension `apart` bytes further on.
__device__ __forceinline__ uint64_t swizzled_matrices(uint32_t address, uint32_t apart) {
  return swizzled_matrix(address) - (uint64_t{1} << 16) + (uint64_t{apart >> 4} << 16);
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

// D[64, 256] += A[64, 16] B[16, 256], A in registers (thread 4 g + t of a warp: rows g, g + 8 of columns 2 t, + 1, then
// those of columns 2 t + 8, + 9), B with its 256 columns contiguous in 4 swizzled matrices that lie `b` says how far
// apart.
__device__ __forceinline__ void wgmma_256(float (&d)[128], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%"
      "58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%"
      "86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%"
      "111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, {%128,%129,%130,%131}, "
      "%132, p, 1, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]),
        "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]),
        "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]),
        "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]),
        "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]),
        "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]),
        "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]),
        "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]),
        "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

}  // namespace onelane::ptx
