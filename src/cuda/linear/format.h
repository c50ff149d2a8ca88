// The operands of a product as the tensor cores take them: how a lane reads its part of staged weights and activations,
// and in which order it multiplies.
//
// Both lie in shared memory in lines of 128 bytes, a row each, in chunks of 16 bytes whose order within a line depends
// on the row, so that a warp's reads meet no bank twice. Of a block of 32 values lane 4 g + t of a warp takes values [8
// t, 8 t + 8) of row g: two products of 16 values, whose order of k is the same for weights and activations.
#pragma once

#include "cuda/linear/decode.h"
#include "cuda/linear/piece.h"
#include "cuda/ptx/mma.h"

namespace onelane::cuda {

inline constexpr int kLine = 128;  // bytes

// A lane's part of a block, by its bytes: 4 of e2m1, 8 of e4m3, 16 of bf16.
template <int kBytes>
struct Part;
template <>
struct Part<4> {
  using Type = uint32_t;
};
template <>
struct Part<8> {
  using Type = uint2;
};
template <>
struct Part<16> {
  using Type = uint4;
};

// The place of chunk `chunk` of a row's line.
template <int kBytes>
__device__ __forceinline__ int chunk_place(int row, int chunk) {
  if constexpr (kBytes == 4) return chunk ^ (row & 7);
  if constexpr (kBytes == 8) return chunk ^ (row & 3) << 1;
  return chunk ^ (row & 1) << 2;
}

// Lane part `t` of block `block` of a row's line.
template <int kBytes>
__device__ __forceinline__ typename Part<kBytes>::Type load_part(const uint8_t* line, int row, int block, int t) {
  const int at = block * 4 * kBytes + t * kBytes;
  return *reinterpret_cast<const typename Part<kBytes>::Type*>(line + chunk_place<kBytes>(row, at / 16) * 16 + at % 16);
}

template <Matrix::Kind kKind, bool kQuantisedActivations, int kUnitValues>
struct Format {
  static constexpr bool kQuantised = kQuantisedActivations;
  static constexpr bool kScaled = kKind != Matrix::Kind::kBf16;
  static constexpr bool kFp4 = kKind == Matrix::Kind::kFp4;
  static constexpr int kUnit = kUnitValues;
  static constexpr int kWeightBytes = kFp4 ? 4 : kScaled ? 8 : 16;  // a lane's of a block
  static constexpr int kActBytes = kQuantised ? 8 : 16;
  static constexpr int kBlocks = kLine / (4 * kWeightBytes);  // in a line of weights
  static constexpr int kUnits = kBlocks * kBlock / kUnit;
  static constexpr int kActLines = kBlocks * 4 * kActBytes / kLine;  // that go with a line of weights
  static_assert(kUnits >= 1);
  using Weights = typename Part<kWeightBytes>::Type;
  using Activations = typename Part<kActBytes>::Type;

  __device__ static int64_t row_bytes(int in) { return static_cast<int64_t>(in / kBlock) * (4 * kWeightBytes); }

  // Rows g and g + 8 of a block, for the two products.
  __device__ static void weights(const Weights& low, const Weights& high, uint32_t (&a)[2][4]) {
    uint32_t p[2][4];
    decode(low, p[0]);
    decode(high, p[1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) a[i][j] = p[j % 2][2 * i + j / 2];
    }
  }

  __device__ static void activations(const Activations& x, uint32_t (&b)[4]) {
    if constexpr (kQuantised) {
      uint32_t low = x.x, high = x.y;
      if constexpr (kFp4) {
        low = ptx::permute(x.x, x.y, 0x5140);
        high = ptx::permute(x.x, x.y, 0x7362);
      }
      uint32_t two[2];
      e4m3_to_f16(low, two);
      b[0] = two[0], b[1] = two[1];
      e4m3_to_f16(high, two);
      b[2] = two[0], b[3] = two[1];
    } else if constexpr (kFp4) {
      b[0] = ptx::permute(x.x, x.z, 0x5410);
      b[1] = ptx::permute(x.x, x.z, 0x7632);
      b[2] = ptx::permute(x.y, x.w, 0x5410);
      b[3] = ptx::permute(x.y, x.w, 0x7632);
    } else {
      b[0] = x.x, b[1] = x.y, b[2] = x.z, b[3] = x.w;
    }
  }

  // d += the block's products.
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[2][4], const uint32_t (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kQuantised) {
        ptx::mma_f16(d, a[i], b[2 * i], b[2 * i + 1]);
      } else {
        ptx::mma_bf16(d, a[i], b[2 * i], b[2 * i + 1]);
      }
    }
  }

  // A weight scale as a factor of a unit's sum.
  __device__ static float factor(uint32_t code) {
    return e8m0_to_float(code) * (kFp4 && kQuantised ? kE2m1Unit : 1.0f);
  }

  // sum += d times the scales of rows g, g + 8 and columns 2 t, 2 t + 1.
  __device__ static void promote(float (&sum)[4], const float (&d)[4], float low, float high, const float2& act) {
    if constexpr (!kScaled) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += d[i];
    } else if constexpr (!kQuantised) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = fmaf(d[i], i < 2 ? low : high, sum[i]);
    } else {
      cuda::promote(sum, d, low, high, act);
    }
  }

 private:
  __device__ static void decode(const Weights& w, uint32_t (&p)[4]) {
    if constexpr (kFp4) {
      if constexpr (kQuantised) {
        e2m1_to_f16(w, p);
      } else {
        e2m1_to_bf16(w, p);
      }
    } else if constexpr (kScaled) {
      uint32_t two[2];
      const uint32_t words[2] = {w.x, w.y};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (kQuantised) {
          e4m3_to_f16(words[i], two);
        } else {
          e4m3_to_bf16(words[i], two);
        }
        p[2 * i] = two[0], p[2 * i + 1] = two[1];
      }
    } else {
      p[0] = w.x, p[1] = w.y, p[2] = w.z, p[3] = w.w;
    }
  }
};

template <class Launcher>
void with_format(const PieceKind& kind, const Launcher& launcher) {
  if (kind.kind == Matrix::Kind::kFp8) {
    if (kind.unit == 128) {
      kind.quantised ? launcher(Format<Matrix::Kind::kFp8, true, 128>{})
                     : launcher(Format<Matrix::Kind::kFp8, false, 128>{});
    } else {
      kind.quantised ? launcher(Format<Matrix::Kind::kFp8, true, 32>{})
                     : launcher(Format<Matrix::Kind::kFp8, false, 32>{});
    }
  } else if (kind.kind == Matrix::Kind::kFp4) {
    kind.quantised ? launcher(Format<Matrix::Kind::kFp4, true, 32>{})
                   : launcher(Format<Matrix::Kind::kFp4, false, 32>{});
  } else {
    launcher(Format<Matrix::Kind::kBf16, false, 32>{});
  }
}

}  // namespace onelane::cuda
