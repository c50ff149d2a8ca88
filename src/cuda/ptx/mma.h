// Matrix products of a warp (compute capability 8.0 and up), one instruction a function: D[16, 8] += A[16, 16] B[16,
// 8], bf16 or f16 in, float out. Lane 4 g + t holds
//   A  rows g and g + 8, columns 2 t, + 1 and + 8, + 9:  a[(row half) + 2 (column half)], pairs along the row
//   B  column g, rows 2 t, + 1 and + 8, + 9:             b[(row half)], pairs along the column
//   D  rows g and g + 8, columns 2 t, + 1:               d[2 (row half) + (column)]
#pragma once

#include <cstdint>

namespace onelane::ptx {

// Four matrices of 8 rows of 16 bytes in shared memory; lane 8 i + r gives the address of row r of matrix i. Of each
// matrix of 16-bit values lane 4 g + t receives row g, columns 2 t and + 1.
__device__ __forceinline__ void load_matrices(uint32_t (&v)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}
// The same, transposed: column g, rows 2 t and + 1.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&v)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of f16.
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two f16 each.
__device__ __forceinline__ uint32_t multiply_f16(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

// Both halves of `a` times one of `b`.
__device__ __forceinline__ uint32_t multiply_f16_by_half(uint32_t a, uint32_t b, bool high) {
  uint32_t out;
  if (high) {
    asm("{\n.reg .b16 l, h;\n.reg .b32 both;\nmov.b32 {l, h}, %2;\nmov.b32 both, {h, h};\n"
        "mul.rn.f16x2 %0, %1, both;\n}\n"
        : "=r"(out)
        : "r"(a), "r"(b));
  } else {
    asm("{\n.reg .b16 l, h;\n.reg .b32 both;\nmov.b32 {l, h}, %2;\nmov.b32 both, {l, l};\n"
        "mul.rn.f16x2 %0, %1, both;\n}\n"
        : "=r"(out)
        : "r"(a), "r"(b));
  }
  return out;
}

// Two bf16 each, a * b + c.
__device__ __forceinline__ uint32_t fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}

}  // namespace onelane::ptx
