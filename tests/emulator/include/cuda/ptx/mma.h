// See src/cuda/ptx/mma.h. Sums are taken as those of wgmma.h are.
#pragma once

#include <cuda_runtime.h>

#include "float16.h"

namespace onelane::emulator {

using Pair = float (*)(uint32_t);

// Sums of 16 products for kRows rows of a and kColumns of b (k by k), as doubles; with a float they are added and
// rounded once. Rows of sums, so that the compiler makes several at a time.
template <int kRows, int kColumns>
void sum_products(double (&sums)[kRows][kColumns], const float (&a)[kRows][16], const float (&b)[16][kColumns]) {
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) sums[row][column] = 0;
    for (int k = 0; k < 16; ++k) {
      const double times = a[row][k];
      for (int column = 0; column < kColumns; ++column) sums[row][column] += times * b[k][column];
    }
  }
}
inline float rounded(float d, double sum) { return static_cast<float>(d + sum); }

struct Loaded {
  uint32_t address;
  uint32_t v[4];
};
template <bool kTransposed>
void load_matrices(uint32_t (&v)[4], uint32_t address) {
  Loaded mine = {address, {}};
  meet_warp(kAll, mine, [](Loaded* const* lanes) {
    for (int i = 0; i < 4; ++i) {
      const uint16_t* rows[8];
      for (int r = 0; r < 8; ++r) rows[r] = reinterpret_cast<const uint16_t*>(shared(lanes[8 * i + r]->address, 16));
      for (int g = 0; g < 8; ++g) {
        for (int t = 0; t < 4; ++t) {
          const uint32_t low = kTransposed ? rows[2 * t][g] : rows[g][2 * t];
          const uint32_t high = kTransposed ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
          lanes[4 * g + t]->v[i] = low | high << 16;
        }
      }
    }
  });
  for (int i = 0; i < 4; ++i) v[i] = mine.v[i];
}

// A lane's registers of a matrix A, of the 16 rows that begin at `rows`.
template <Pair kLow, Pair kHigh>
void unpack(const uint32_t* a, int lane, float (*rows)[16]) {
  const int g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) {
    float* to = rows[g + 8 * (i % 2)] + 2 * t + 8 * (i / 2);
    to[0] = kLow(a[i]), to[1] = kHigh(a[i]);
  }
}

struct Mma {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};
template <Pair kLow, Pair kHigh>
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Mma mine = {d, a, {b0, b1}};
  meet_warp(kAll, mine, [](Mma* const* lanes) {
    float a_of[16][16], b_of[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      unpack<kLow, kHigh>(lanes[lane]->a, lane, a_of);
      for (int i = 0; i < 2; ++i) {
        b_of[2 * t + 8 * i][g] = kLow(lanes[lane]->b[i]), b_of[2 * t + 8 * i + 1][g] = kHigh(lanes[lane]->b[i]);
      }
    }
    double sums[16][8];
    sum_products(sums, a_of, b_of);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i) {
        float& sum = lanes[lane]->d[i];
        sum = rounded(sum, sums[g + 8 * (i / 2)][2 * t + i % 2]);
      }
    }
  });
}

}  // namespace onelane::emulator

namespace onelane::ptx {

inline void load_matrices(uint32_t (&v)[4], uint32_t address) { emulator::load_matrices<false>(v, address); }
inline void load_matrices_transposed(uint32_t (&v)[4], uint32_t address) { emulator::load_matrices<true>(v, address); }

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::mma<emulator::low_bf16, emulator::high_bf16>(d, a, b0, b1);
}
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::mma<emulator::low_f16, emulator::high_f16>(d, a, b0, b1);
}
inline uint32_t multiply_f16(uint32_t a, uint32_t b) {
  return emulator::float_to_f16(emulator::low_f16(a) * emulator::low_f16(b)) |
         emulator::float_to_f16(emulator::high_f16(a) * emulator::high_f16(b)) << 16;
}
inline uint32_t multiply_f16_by_half(uint32_t a, uint32_t b, bool high) {
  return multiply_f16(a, (high ? b >> 16 : b & 0xffffu) * 0x10001u);
}
// Rounded to a float on the way, where the instruction rounds once.
inline uint32_t fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
  using namespace emulator;
  return nearest_bf16(std::fma(low_bf16(a), low_bf16(b), low_bf16(c))) |
         nearest_bf16(std::fma(high_bf16(a), high_bf16(b), high_bf16(c))) << 16;
}

}  // namespace onelane::ptx
