// The product of linear-inl.h, compiled once per target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cc"
#include "kernels/cpu/targets.h"
//
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

// Four weight rows as floats, with their norms, or as doubles.
template <class Rows>
HWY_INLINE V4 ExpandPanel(const Rows& w, int width, float* panel, int stride) {
  const DF d;
  VF scales[kOutputs];
  VF squares[kOutputs];
  for (VF& sum : squares) sum = hn::Zero(d);
  const auto put = [&](int c, int i, VF v) HWY_ATTR {
    squares[c] = hn::MulAdd(v, v, squares[c]);
    hn::StoreU(v, d, panel + c * stride + i);
  };
  for (int k = 0; k < width; k += kWeightBlock) {
    if constexpr (std::is_same_v<Rows, Fp8Rows>) {
      if (const float shifted = w.ShiftedScale(k); shifted != 0) {
        const VF scale = hn::Set(d, shifted);
        for (int i = k; i < k + kWeightBlock; i += N) {
          for (int c = 0; c < kOutputs; ++c) put(c, i, w.LoadShifted(c, i, scale));
        }
        continue;
      }
    }
    w.Scales(d, k, scales);
    for (int i = k; i < k + kWeightBlock; i += N) {
      for (int c = 0; c < kOutputs; ++c) put(c, i, w.Load(d, c, i, scales[c]));
    }
  }
  return WeightNorms(squares, width);
}
template <class Rows>
HWY_INLINE V4 ExpandPanel(const Rows& w, int width, double* panel, int stride) {
  const DD d;
  VH scales[kOutputs];
  for (int c = 0; c < kOutputs; ++c) scales[c] = hn::Zero(DH());
  int k = 0;
  for (; k + Rows::kStep <= width; k += Rows::kStep) {
    w.Scales(DH(), k, scales);
    for (int i = k; i < k + Rows::kStep; i += L) {
      for (int c = 0; c < kOutputs; ++c) {
        hn::StoreU(Widen(w.Load(DH(), c, i, scales[c])), d, panel + c * stride + i);
      }
    }
  }
  if constexpr (Rows::kStep == L) {
    if (k < width) {
      for (int c = 0; c < kOutputs; ++c) hn::StoreU(w.LoadTail(c, k, width - k), d, panel + c * stride + k);
    }
  }
  return hn::Zero(D4());
}

// What a product hands on: sums of quantised weights are rounded to bf16.
template <class Rows>
HWY_INLINE V4 Handed(V4 sums) {
  return sums;
}
template <class Rows>
HWY_INLINE V4 Handed(const double* sums) {
  const V4 floats = Narrow4(sums);
  return std::is_same_v<Rows, Bf16Rows> ? floats : RoundBf16(D4(), floats);
}

// As Product, of one form of weights.
template <bool kGuarded, class Rows>
HWY_INLINE void ProductOf(const Matrix& w, int begin, int end, const double* const* x, int rows, double* panel,
                          const Sums& store) {
  const int stride = padded(w.in);
  // Rows whose activations stay in the second-level cache while all outputs pass.
  const int block = rows < kPanelRows ? rows : std::max(kTileRows, 49152 / stride / kTileRows * kTileRows);
  for (int first = 0; first < rows; first += block) {
    const int count = std::min(block, rows - first);
    if (!std::is_same_v<Rows, Bf16Rows> && Streams(w, count)) {
      using T = std::conditional_t<kGuarded, float, double>;
      for (int row = first; row < first + count; ++row) {
        Stream(w, begin, end, reinterpret_cast<const T*>(x[row]), reinterpret_cast<float*>(panel),
               [&](int n, int valid, V4 sums) HWY_ATTR { store(row, n, valid, sums); });
      }
      continue;
    }
    // Whole vectors of outputs, which then lie in one scale tile.
    const int lanes_begin = (begin + N - 1) / N * N;
    int lanes_end = lanes_begin;
#if HWY_TARGET == HWY_AVX3
    if constexpr (kGuarded) {
      using Weights = LaneWeights<Rows>;
      if (count >= Weights::kLeastRows && Weights::takes(w)) {
        lanes_end = std::max(lanes_begin, end / N * N);
        LaneProduct<Weights>(w, lanes_begin, lanes_end, x + first, count, reinterpret_cast<float*>(panel),
                             [&](int row, int output, VF sums) HWY_ATTR { store(first + row, output, N, sums); });
      }
    }
#endif
    for (int n = begin; n < end; n += kOutputs) {
      if (n == lanes_begin) n = lanes_end;
      if (n >= end) break;
      const int valid = std::min(kOutputs, end - n);
      int outputs[kOutputs];
      for (int c = 0; c < kOutputs; ++c) outputs[c] = std::min(n + c, end - 1);
      const Rows weights(w, outputs);
      if (count > kStreamRows) PrefetchNext(weights, w.in);
      const auto put = [&](int row, auto sums) HWY_ATTR { store(first + row, n, valid, Handed<Rows>(sums)); };
      if (count < (std::is_same_v<Rows, Fp4Rows> ? kPanelRowsFp4 : kPanelRows)) {
        TileRows<kGuarded>(weights, w.in, x + first, count, hn::Zero(D4()), put);
      } else {
        using T = std::conditional_t<kGuarded, float, double>;
        T* values = reinterpret_cast<T*>(panel);
        const V4 norms = ExpandPanel(weights, w.in, values, stride);
        const PlainRows<T> expanded{{values, values + stride, values + 2 * stride, values + 3 * stride}};
        TileRows<kGuarded>(expanded, w.in, x + first, count, norms, put);
      }
    }
  }
}

}  // namespace

void Product(const Matrix& w, int begin, int end, const double* const* x, int rows, double* panel, const Sums& store) {
  switch (w.kind) {
    case Matrix::Kind::kFp8:
      ONELANE_CHECK(w.block == 32 || w.block == 128, "a scale tile is 32 or 128 wide");
      if (w.act_block == 0) return ProductOf<false, Fp8Rows>(w, begin, end, x, rows, panel, store);
      return ProductOf<true, Fp8Rows>(w, begin, end, x, rows, panel, store);
    case Matrix::Kind::kFp4:
      ONELANE_CHECK(w.act_block > 0, "fp4 weights take quantised activations");
      return ProductOf<true, Fp4Rows>(w, begin, end, x, rows, panel, store);
    case Matrix::Kind::kBf16:
      if (w.act_block == kAsFloats) return ProductOf<true, Bf16Rows>(w, begin, end, x, rows, panel, store);
      return ProductOf<false, Bf16Rows>(w, begin, end, x, rows, panel, store);
    case Matrix::Kind::kNone:
      ONELANE_CHECK(false, "a product needs a matrix");
  }
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
