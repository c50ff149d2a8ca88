// See src/cuda/ptx/wgmma.h. Operands are read when the emulator makes the product, not before.
#pragma once

#include <array>
#include <cstring>

#include "cuda/ptx/descriptor.h"
#include "cuda/ptx/mma.h"

namespace onelane::emulator {

// An operand in shared memory, [rows, 16] with k contiguous or (kContiguous false) with its rows contiguous.
struct Matrix {
  uint64_t descriptor;

  template <bool kContiguous>
  uint16_t at(int row, int k) const {
    const auto start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
    const auto leading = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
    const auto stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != 1) fail("a matrix without the 128-byte swizzle");
    const auto r = static_cast<uint32_t>(row), c = static_cast<uint32_t>(k);
    const uint32_t plain = kContiguous ? start + r / 8 * stride + r % 8 * 128 + c * 2
                                       : start + r / 64 * leading + c / 8 * stride + c % 8 * 128 + r % 64 * 2;
    return shared<uint16_t>(plain ^ (plain >> 7 & 7) << 4);
  }
};

struct WarpgroupProduct {
  float* d;           // [N / 8][4]
  const uint32_t* a;  // of registers, else null
  Matrix a_matrix, b;
  bool add;
};

// D[64, N] of A [64, 16] and B [N, 16].
template <Pair kLow, Pair kHigh, int N, bool kAContiguous, bool kBContiguous>
void multiply(float* d, const uint32_t* a, Matrix a_matrix, Matrix b, bool add) {
  WarpgroupProduct mine = {d, a, a_matrix, b, add};
  meet_warpgroup(mine, [](WarpgroupProduct* const* threads) {
    std::array<WarpgroupProduct, 128> of;
    for (size_t i = 0; i < of.size(); ++i) {
      of[i] = *threads[i];
      if (of[i].b.descriptor != of[0].b.descriptor || of[i].add != of[0].add) fail("threads of a warpgroup disagree");
    }
    product_later([of] {
      static float a_of[64][16], b_of[16][N];
      static double sums[64][N];
      for (int thread = 0; thread < 128 && of[0].a != nullptr; ++thread) {
        unpack<kLow, kHigh>(of[static_cast<size_t>(thread)].a, thread % 32, a_of + thread / 32 * 16);
      }
      for (int k = 0; k < 16; ++k) {
        for (int row = 0; row < 64 && of[0].a == nullptr; ++row) {
          a_of[row][k] = kLow(of[0].a_matrix.at<kAContiguous>(row, k));
        }
        for (int column = 0; column < N; ++column) b_of[k][column] = kLow(of[0].b.at<kBContiguous>(column, k));
      }
      sum_products(sums, a_of, b_of);
      for (int thread = 0; thread < 128; ++thread) {
        const int g = thread % 32 / 4, t = thread % 4;
        for (int j = 0; j < N / 8; ++j) {
          for (int i = 0; i < 4; ++i) {
            float& sum = of[static_cast<size_t>(thread)].d[4 * j + i];
            sum = rounded(of[0].add ? sum : 0.0f, sums[thread / 32 * 16 + g + 8 * (i / 2)][8 * j + 2 * t + i % 2]);
          }
        }
      }
    });
  });
}

}  // namespace onelane::emulator

namespace onelane::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit() { emulator::commit_products(); }
template <int kPending>
void wgmma_wait() {
  emulator::wait_for_products(kPending);
}
template <int kTiles>
void hold(float (&)[kTiles][4]) {}

template <int N>
struct Wgmma {
  template <bool kRowsContiguous>
  static void product(float (&d)[N / 2], uint64_t a, uint64_t b, bool add) {
    emulator::multiply<emulator::low_bf16, emulator::high_bf16, N, !kRowsContiguous, true>(d, nullptr, {a}, {b}, add);
  }
};

template <int kFirst, int kAll>
void wgmma_128(float (&d)[kAll], const uint32_t (&a)[4], uint64_t b, bool add) {
  static_assert(kFirst + 64 <= kAll);
  emulator::multiply<emulator::low_bf16, emulator::high_bf16, 128, true, false>(d + kFirst, a, {}, {b}, add);
}
template <bool kF16>
void wgmma_128(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  constexpr emulator::Pair kLow = kF16 ? emulator::low_f16 : emulator::low_bf16;
  constexpr emulator::Pair kHigh = kF16 ? emulator::high_f16 : emulator::high_bf16;
  emulator::multiply<kLow, kHigh, 128, true, true>(d[0], a, {}, {b}, add);
}
template <int kTiles>
void wgmma_f16(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  emulator::multiply<emulator::low_f16, emulator::high_f16, 8 * kTiles, true, true>(d[0], a, {}, {b}, add);
}

}  // namespace onelane::ptx
