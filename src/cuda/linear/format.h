// The operands of a product as the tensor cores take them: how a lane reads its part of weights and activations, and in
// which order it multiplies.
//
// Four lanes take a *step* of a row together: lane 4 g + t of a warp the t-th quarter of its values, of row g, in whole
// words as they lie in memory. The quarter's values are the lane's operands of two or four products of 16 values, whose
// order of k is therefore the same for weights and activations, and is no one else's. In shared memory rows lie in
// lines of 128 bytes, in chunks of 16 bytes whose order within a line depends on the row, so that a warp's reads meet
// no bank twice.
#pragma once

#include "cuda/linear/decode.h"
#include "cuda/linear/piece.h"
#include "cuda/ptx/mma.h"

namespace onelane::cuda {

inline constexpr int kLine = 128;  // bytes

// A lane's part of a step.
template <int kBytes>
struct alignas(kBytes < 16 ? kBytes : 16) Part {
  uint32_t word[kBytes / 4];
};

// The place of chunk `chunk` of a row's line, for parts of kBytes.
template <int kBytes>
__device__ __forceinline__ int chunk_place(int row, int chunk) {
  if constexpr (kBytes == 4) return chunk ^ (row & 7);
  if constexpr (kBytes == 8) return chunk ^ (row & 3) << 1;
  if constexpr (kBytes == 16) return chunk ^ (row & 1) << 2;
  return chunk ^ (row & 1);
}

// Lane part `t` of step `step` of a row's line.
template <int kBytes>
__device__ __forceinline__ Part<kBytes> load_part(const uint8_t* line, int row, int step, int t) {
  const int at = step * 4 * kBytes + t * kBytes;
  constexpr int kChunks = (kBytes + 15) / 16, kWords = kBytes / 4 / kChunks;
  Part<kBytes> part;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const uint8_t* chunk = line + chunk_place<kBytes>(row, at / 16 + i) * 16 + at % 16;
    const Part<4 * kWords> words = *reinterpret_cast<const Part<4 * kWords>*>(chunk);
#pragma unroll
    for (int j = 0; j < kWords; ++j) part.word[i * kWords + j] = words.word[j];
  }
  return part;
}

template <Matrix::Kind kKind, bool kQuantisedActivations, int kUnitValues>
struct Format {
  static constexpr bool kQuantised = kQuantisedActivations;
  static constexpr bool kScaled = kKind != Matrix::Kind::kBf16;
  static constexpr bool kFp4 = kKind == Matrix::Kind::kFp4;
  static constexpr int kUnit = kUnitValues;
  static constexpr int kBlockBytes = kFp4 ? 16 : kScaled ? 32 : 64;  // of a row's weights
  static constexpr int kActBlockBytes = kQuantised ? 32 : 64;
  static constexpr int kBlocks = kLine / kBlockBytes;  // in a line of weights
  static constexpr int kUnits = kBlocks * kBlock / kUnit;
  static constexpr int kActLines = kBlocks * kActBlockBytes / kLine;  // that go with a line of weights
  // A step: 64 values, which are 16 bytes of e4m3 a lane, where no scale ends inside.
  static constexpr int kStepBlocks = kScaled && kUnit == 128 ? 2 : 1;
  static constexpr int kSteps = kBlocks / kStepBlocks;  // in a line of weights
  static constexpr int kUnitSteps = kUnit / (kStepBlocks * kBlock);
  static constexpr int kWeightBytes = kStepBlocks * kBlockBytes / 4;  // a lane's
  static constexpr int kActBytes = kStepBlocks * kActBlockBytes / 4;
  static constexpr int kProducts = 2 * kStepBlocks;
  static_assert(kUnits >= 1);
  using Weights = Part<kWeightBytes>;
  using Activations = Part<kActBytes>;

  __device__ static int64_t row_bytes(int in) { return static_cast<int64_t>(in / kBlock) * kBlockBytes; }

  // Rows g and g + 8 of a step, for its products.
  __device__ static void weights(const Weights& low, const Weights& high, uint32_t (&a)[kProducts][4]) {
    uint32_t p[2][2 * kProducts];
    decode(low, p[0]);
    decode(high, p[1]);
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) a[i][j] = p[j % 2][2 * i + j / 2];
    }
  }

  __device__ static void activations(const Activations& x, uint32_t (&b)[2 * kProducts]) {
    if constexpr (kQuantised) {
#pragma unroll
      for (int i = 0; i < kProducts; ++i) {
        uint32_t four = x.word[i];
        if constexpr (kFp4) four = ptx::permute(x.word[0], x.word[1], i == 0 ? 0x5140 : 0x7362);
        uint32_t two[2];
        e4m3_to_f16(four, two);
        b[2 * i] = two[0], b[2 * i + 1] = two[1];
      }
    } else if constexpr (kFp4) {
      b[0] = ptx::permute(x.word[0], x.word[2], 0x5410);
      b[1] = ptx::permute(x.word[0], x.word[2], 0x7632);
      b[2] = ptx::permute(x.word[1], x.word[3], 0x5410);
      b[3] = ptx::permute(x.word[1], x.word[3], 0x7632);
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kProducts; ++i) b[i] = x.word[i];
    }
  }

  // d += the step's products.
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[kProducts][4],
                                  const uint32_t (&b)[2 * kProducts]) {
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
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
  // In pairs of 16-bit floats.
  __device__ static void decode(const Weights& w, uint32_t (&p)[2 * kProducts]) {
    if constexpr (kFp4) {
      if constexpr (kQuantised) {
        e2m1_to_f16(w.word[0], p);
      } else {
        e2m1_to_bf16(w.word[0], p);
      }
    } else if constexpr (kScaled) {
#pragma unroll
      for (int i = 0; i < kProducts; ++i) {
        uint32_t two[2];
        if constexpr (kQuantised) {
          e4m3_to_f16(w.word[i], two);
        } else {
          e4m3_to_bf16(w.word[i], two);
        }
        p[2 * i] = two[0], p[2 * i + 1] = two[1];
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kProducts; ++i) p[i] = w.word[i];
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
