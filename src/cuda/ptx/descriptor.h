// Where wgmma finds a matrix. Plain arithmetic, no instruction of its own: the emulator takes it as it is.
#pragma once

#include <cstdint>

namespace onelane::ptx {

// A matrix in shared memory with the 128-byte swizzle, in atoms of 8 rows of 128 bytes, 1024 bytes apart; for A and B
// alike, whichever dimension is contiguous. `address` may point inside an atom's first row, to step along it.
__device__ __forceinline__ uint64_t swizzled_matrix(uint32_t address) {
  constexpr uint64_t kStride = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kOne = uint64_t{1} << 16;  // the other stride: not used, because 64 elements fill 128 bytes
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | kStride | kOne | ((address & 0x3ffff) >> 4);
}
// The one `bytes` further on, a multiple of 16: an instruction, where swizzled_matrix() takes a few.
__device__ __forceinline__ uint64_t matrix_after(uint64_t matrix, uint32_t bytes) {
  return (matrix & 0xffffffff00000000u) | (static_cast<uint32_t>(matrix) + bytes / 16);
}

// The same, with the next 64 of the contiguous dimension `apart` bytes further on.
__device__ __forceinline__ uint64_t swizzled_matrices(uint32_t address, uint32_t apart) {
  return swizzled_matrix(address) - (uint64_t{1} << 16) + (uint64_t{apart >> 4} << 16);
}

}  // namespace onelane::ptx
