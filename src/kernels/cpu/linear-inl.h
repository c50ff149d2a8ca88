// The product of activation rows with a weight matrix in its stored form, y = x * W^T.
//
// A tile is R rows by 4 outputs in registers. Weights are expanded in registers, once per tile: e4m3 through the half
// float format, e2m1 by a byte table; the scale of a block is a power of two, so the expanded value is exact and its
// product with the activation enters one fused multiply-add. From 8 rows on, 4 weight rows are expanded into a panel
// first and all tiles read that.
//
// Every product is as if summed exactly and then rounded. Where the result stays a float, sums run in double. Where it
// is rounded to bf16 (quantised weights and activations), sums run in float, twice as many lanes at once, with a bound
// on their error: only when a bf16 rounding boundary lies within the bound of a sum, about one time in a hundred, is it
// taken again in double.
#include "kernels/cpu/tables.h"
#include "kernels/cpu/targets.h"
//
#include "kernels/cpu/records-inl.h"
#include "kernels/cpu/simd-inl.h"

#if defined(ONELANE_CPU_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_LINEAR_INL_H_
#undef ONELANE_CPU_LINEAR_INL_H_
#else
#define ONELANE_CPU_LINEAR_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

using VH = hn::Vec<DH>;
inline constexpr int kOutputs = 4;  // of a tile
inline constexpr int kWeightBlock = 32;
// Rows of the largest tile: R * 4 accumulators, 4 weights and an activation must fit the registers.
inline constexpr int kTileRows = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 ? 2 : 6;
inline constexpr int kPanelRows = 8;

// -- four weight rows, L values at a time
// ------------------------------------------------------------------------------

struct Fp8Rows {
  static constexpr int kStep = kWeightBlock;
  const uint8_t* row[kOutputs];
  const uint8_t* scale;  // shared: an aligned group of 4 outputs lies in one scale tile
  int block_shift;

  HWY_INLINE Fp8Rows(const Matrix& w, const int* outputs) {
    const auto* data = reinterpret_cast<const uint8_t*>(w.data);
    for (int c = 0; c < kOutputs; ++c) row[c] = data + offset(outputs[c], w.in);
    block_shift = w.block == 32 ? 5 : 7;  // a division per tile would cost as much as half of a short row
    scale = w.scale + offset(outputs[0] >> block_shift, (w.in + w.block - 1) >> block_shift);
  }
  template <class D>
  HWY_INLINE void Scales(D d, int k, hn::Vec<D>* scales) const {
    scales[0] = hn::Set(d, kFp8WeightScale[scale[k >> block_shift]]);
    for (int c = 1; c < kOutputs; ++c) scales[c] = scales[0];
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int c, int k, hn::Vec<D> scaled) const {
    return hn::Mul(LoadE4m3(d, row[c] + k), scaled);
  }
};

struct Fp4Rows {
  static constexpr int kStep = kWeightBlock;
  const uint8_t* row[kOutputs];
  const uint8_t* scale[kOutputs];

  HWY_INLINE Fp4Rows(const Matrix& w, const int* outputs) {
    const auto* data = reinterpret_cast<const uint8_t*>(w.data);
    for (int c = 0; c < kOutputs; ++c) {
      row[c] = data + offset(outputs[c], w.in / 2);
      scale[c] = w.scale + offset(outputs[c], w.in / kWeightBlock);
    }
  }
  template <class D>
  HWY_INLINE void Scales(D d, int k, hn::Vec<D>* scales) const {
    for (int c = 0; c < kOutputs; ++c) scales[c] = hn::Set(d, kFp4WeightScale[scale[c][k / kWeightBlock]]);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int c, int k, hn::Vec<D> scaled) const {
    return hn::Mul(LoadE2m1(d, row[c] + k / 2), scaled);
  }
};

struct Bf16Rows {
  static constexpr int kStep = L;
  const bf16* row[kOutputs];

  Bf16Rows() = default;
  HWY_INLINE Bf16Rows(const Matrix& w, const int* outputs) {
    const auto* data = reinterpret_cast<const bf16*>(w.data);
    for (int c = 0; c < kOutputs; ++c) row[c] = data + offset(outputs[c], w.in);
  }
  HWY_INLINE void Scales(DH, int, VH*) const {}
  HWY_INLINE VH Load(DH d, int c, int k, VH) const { return LoadBf16(d, row[c] + k); }
  HWY_INLINE VD LoadTail(int c, int k, int count) const {
    alignas(64) bf16 values[L] = {};
    for (int i = 0; i < count; ++i) values[i] = row[c][k + i];
    return WidenBf16(values);
  }
};

// Rows of floats or doubles: mixing weights and panels.
template <class T>
struct PlainRows {
  static constexpr int kStep = L;
  const T* row[kOutputs];

  template <class D>
  HWY_INLINE void Scales(D, int, hn::Vec<D>*) const {}
  template <class D>
  HWY_INLINE auto Load(D, int c, int k, hn::Vec<D>) const {
    return hn::LoadU(hn::Rebind<T, D>(), row[c] + k);
  }
  HWY_INLINE VD LoadTail(int c, int k, int count) const {
    alignas(64) T values[L] = {};
    for (int i = 0; i < count; ++i) values[i] = row[c][k + i];
    return LoadWide(values);
  }
};

HWY_INLINE VD Widen(VH v) { return hn::PromoteTo(DD(), v); }
HWY_INLINE VD Widen(VD v) { return v; }

// -- activations
// -------------------------------------------------------------------------------------------------------------

// A row of activations as a product takes it. Quantised in blocks of `block`: floats, their norm behind the padded row
// (half of `out` and one value more). Not quantised (`block` 0): doubles.
inline HWY_ATTR void ActivationRow(const bf16* x, int width, int block, double* out) {
  if (block == 0) return WidenRow(x, width, out);
  auto* values = reinterpret_cast<float*>(out);
  WidenRow(x, width, values);
  for (int i = 0; i < width; i += block) QuantiseBlock(values + i, std::min(block, padded(width) - i));
  values[padded(width)] = static_cast<float>(std::sqrt(SumSquares(values, width)));
}

// -- tiles
// -------------------------------------------------------------------------------------------------------------

// The four dot products of one row of floats with the weight rows, in double, rounded to float.
template <class Rows>
HWY_NOINLINE V4 ExactSums(const Rows& w, int width, const float* x) {
  VD acc[kOutputs];
  VH scales[kOutputs];
  for (int c = 0; c < kOutputs; ++c) {
    acc[c] = hn::Zero(DD());
    scales[c] = hn::Zero(DH());
  }
  for (int k = 0; k < width; k += kWeightBlock) {
    w.Scales(DH(), k, scales);
    for (int i = k; i < k + kWeightBlock; i += L) {
      const VD xv = WidenFloats(x + i);
      for (int c = 0; c < kOutputs; ++c) acc[c] = hn::MulAdd(xv, Widen(w.Load(DH(), c, i, scales[c])), acc[c]);
    }
  }
  alignas(64) double sums[kOutputs];
  Sum4(acc[0], acc[1], acc[2], acc[3], sums);
  return Narrow4(sums);
}

// sums[r] = the four dot products of row r with the weight rows: floats that round to the bf16 that the exact sums
// round to. Rows are floats, as ActivationRow makes them.
//
// A lane adds width / N products with one rounding each, the lanes are added in a tree; so a sum is off by at most
// (width / N + 4) 2^-24 times the sum of the products' magnitudes, and that is at most |x| |w| (Cauchy-Schwarz).
template <int R, class Rows>
HWY_INLINE void GuardedTile(const Rows& w, int width, const double* const* x, V4* sums) {
  const DF d;
  const D4 d4;
  VF acc[R][kOutputs];
  VF squares[kOutputs];
  VF scales[kOutputs];
  const float* row[R];
  for (int r = 0; r < R; ++r) row[r] = reinterpret_cast<const float*>(x[r]);
  for (int c = 0; c < kOutputs; ++c) {
    squares[c] = hn::Zero(d);
    scales[c] = hn::Zero(d);
    for (int r = 0; r < R; ++r) acc[r][c] = hn::Zero(d);
  }
  for (int k = 0; k < width; k += kWeightBlock) {
    w.Scales(d, k, scales);
    for (int i = k; i < k + kWeightBlock; i += N) {
      VF wv[kOutputs];
      for (int c = 0; c < kOutputs; ++c) {
        wv[c] = w.Load(d, c, i, scales[c]);
        squares[c] = hn::MulAdd(wv[c], wv[c], squares[c]);
      }
      for (int r = 0; r < R; ++r) {
        const VF xv = hn::LoadU(d, row[r] + i);
        for (int c = 0; c < kOutputs; ++c) acc[r][c] = hn::MulAdd(xv, wv[c], acc[r][c]);
      }
    }
  }
  // 5 % for the roundings of the bound itself.
  const float factor = 1.05f * 0x1p-24f * static_cast<float>(width / N + 4);
  const V4 norms = hn::Sqrt(Sum4(squares[0], squares[1], squares[2], squares[3]));
  for (int r = 0; r < R; ++r) {
    sums[r] = Sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
    const V4 error = hn::Mul(norms, hn::Set(d4, factor * row[r][padded(width)]));
    const auto low = hn::ShiftRight<16>(Bf16Bits(d4, hn::Sub(sums[r], error)));
    const auto high = hn::ShiftRight<16>(Bf16Bits(d4, hn::Add(sums[r], error)));
    if (!hn::AllTrue(hn::Rebind<uint32_t, D4>(), hn::Eq(low, high))) sums[r] = ExactSums(w, width, row[r]);
  }
}

// sums[4 r ...] = the four dot products of x[r] with the weight rows, in double. Rows of x are padded with zeros.
template <int R, class Rows>
HWY_INLINE void Tile(const Rows& w, int width, const double* const* x, double* sums) {
  const DD d;
  VD acc[R][kOutputs];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kOutputs; ++c) acc[r][c] = hn::Zero(d);
  }
  VH scales[kOutputs];
  for (int c = 0; c < kOutputs; ++c) scales[c] = hn::Zero(DH());
  int k = 0;
  for (; k + Rows::kStep <= width; k += Rows::kStep) {
    w.Scales(DH(), k, scales);
    HWY_UNROLL(2)
    for (int i = k; i < k + Rows::kStep; i += L) {
      VD wv[kOutputs];
      for (int c = 0; c < kOutputs; ++c) wv[c] = Widen(w.Load(DH(), c, i, scales[c]));
      for (int r = 0; r < R; ++r) {
        const VD xv = hn::LoadU(d, x[r] + i);
        for (int c = 0; c < kOutputs; ++c) acc[r][c] = hn::MulAdd(xv, wv[c], acc[r][c]);
      }
    }
  }
  if constexpr (Rows::kStep == L) {
    if (k < width) {
      for (int c = 0; c < kOutputs; ++c) {
        const VD wv = w.LoadTail(c, k, width - k);
        for (int r = 0; r < R; ++r) acc[r][c] = hn::MulAdd(hn::LoadU(d, x[r] + k), wv, acc[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) Sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3], sums + r * kOutputs);
}

// All rows against four outputs; store(row, the four sums): a V4 of floats if guarded, else four doubles.
template <bool kGuarded, class Rows, class Store>
HWY_INLINE void TileRows(const Rows& w, int width, const double* const* x, int rows, const Store& store) {
  constexpr int kMost = kGuarded ? std::min(kTileRows, 4) : kTileRows;  // norms of weights take registers too
  int row = 0;
  const auto run = [&](auto tile) HWY_ATTR {
    constexpr int R = decltype(tile)::value;
    if constexpr (kGuarded) {
      V4 sums[R];
      GuardedTile<R>(w, width, x + row, sums);
      for (int r = 0; r < R; ++r) store(row + r, sums[r]);
    } else {
      alignas(64) double sums[R * kOutputs];
      Tile<R>(w, width, x + row, sums);
      for (int r = 0; r < R; ++r) store(row + r, static_cast<const double*>(sums + r * kOutputs));
    }
    row += R;
  };
  while (rows - row >= kMost) run(std::integral_constant<int, kMost>());
  if constexpr (kMost > 4) {
    if (rows - row >= 4) run(std::integral_constant<int, 4>());
  }
  while (rows - row >= 2) run(std::integral_constant<int, 2>());
  if (row < rows) run(std::integral_constant<int, 1>());
}

// Four weight rows as floats or doubles.
template <class Rows>
HWY_INLINE void ExpandPanel(const Rows& w, int width, float* panel, int stride) {
  const DF d;
  VF scales[kOutputs];
  for (int k = 0; k < width; k += kWeightBlock) {
    w.Scales(d, k, scales);
    for (int i = k; i < k + kWeightBlock; i += N) {
      for (int c = 0; c < kOutputs; ++c) hn::StoreU(w.Load(d, c, i, scales[c]), d, panel + c * stride + i);
    }
  }
}
template <class Rows>
HWY_INLINE void ExpandPanel(const Rows& w, int width, double* panel, int stride) {
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
}

// -- matrices
// ----------------------------------------------------------------------------------------------------------

// Destinations of a product: rows of bf16 (rounded) or float.
struct ToBf16 {
  bf16* out;
  size_t stride;
  HWY_INLINE void operator()(int row, int output, int valid, V4 sums) const {
    bf16* p = out + static_cast<size_t>(row) * stride + output;
    if (valid == kOutputs) return StoreBf16(D4(), sums, p);
    alignas(16) float lanes[4];
    hn::Store(sums, D4(), lanes);
    for (int c = 0; c < valid; ++c) p[c] = float_to_bf16(lanes[c]);
  }
};
struct ToFloat {
  float* out;
  size_t stride;
  HWY_INLINE void operator()(int row, int output, int valid, V4 sums) const {
    float* p = out + static_cast<size_t>(row) * stride + output;
    if (valid == kOutputs) return hn::StoreU(sums, D4(), p);
    alignas(16) float lanes[4];
    hn::Store(sums, D4(), lanes);
    for (int c = 0; c < valid; ++c) p[c] = lanes[c];
  }
};

HWY_INLINE V4 Floats4(V4 sums) { return sums; }
HWY_INLINE V4 Floats4(const double* sums) { return Narrow4(sums); }

inline size_t PanelValues(int width) { return offset(kOutputs, padded(width)); }

// Outputs [begin, end) of the product of `rows` padded rows x[r]; begin is a multiple of 4. `panel`: PanelValues(w.in)
// doubles of the calling thread's own.
template <bool kGuarded, class Rows, class Store>
HWY_INLINE void ProductOf(const Matrix& w, int begin, int end, const double* const* x, int rows, double* panel,
                          const Store& store) {
  const int stride = padded(w.in);
  // Rows whose activations stay in the second-level cache while all outputs pass.
  const int block = rows < kPanelRows ? rows : std::max(kTileRows, 49152 / stride / kTileRows * kTileRows);
  for (int first = 0; first < rows; first += block) {
    const int count = std::min(block, rows - first);
    for (int n = begin; n < end; n += kOutputs) {
      const int valid = std::min(kOutputs, end - n);
      int outputs[kOutputs];
      for (int c = 0; c < kOutputs; ++c) outputs[c] = std::min(n + c, end - 1);
      const Rows weights(w, outputs);
      const auto put = [&](int row, auto sums) HWY_ATTR { store(first + row, n, valid, Floats4(sums)); };
      if (count < kPanelRows) {
        TileRows<kGuarded>(weights, w.in, x + first, count, put);
      } else {
        using T = std::conditional_t<kGuarded, float, double>;
        T* values = reinterpret_cast<T*>(panel);
        ExpandPanel(weights, w.in, values, stride);
        const PlainRows<T> expanded{{values, values + stride, values + 2 * stride, values + 3 * stride}};
        TileRows<kGuarded>(expanded, w.in, x + first, count, put);
      }
    }
  }
}

// Products of quantised weights and activations are right once rounded to bf16, which the store must do first.
template <class Store>
HWY_NOINLINE void Product(const Matrix& w, int begin, int end, const double* const* x, int rows, double* panel,
                          const Store& store) {
  switch (w.kind) {
    case Matrix::Kind::kFp8:
      ONELANE_CHECK(w.block == 32 || w.block == 128, "a scale tile is 32 or 128 wide");
      if (w.act_block == 0) return ProductOf<false, Fp8Rows>(w, begin, end, x, rows, panel, store);
      return ProductOf<true, Fp8Rows>(w, begin, end, x, rows, panel, store);
    case Matrix::Kind::kFp4:
      ONELANE_CHECK(w.act_block > 0, "fp4 weights take quantised activations");
      return ProductOf<true, Fp4Rows>(w, begin, end, x, rows, panel, store);
    case Matrix::Kind::kBf16:
      return ProductOf<false, Bf16Rows>(w, begin, end, x, rows, panel, store);
    case Matrix::Kind::kNone:
      ONELANE_CHECK(false, "a product needs a matrix");
  }
}

inline int64_t ProductWork(const Matrix& w, int rows) { return int64_t{w.out} * w.in * rows; }

// -- scratch of products
// -----------------------------------------------------------------------------------------------

// Activation rows in scratch and a pointer to each: doubles, or floats, see ActivationRow.
struct Activations {
  const double* const* row = nullptr;
  double* data = nullptr;
  int width = 0;
};

// Scratch slots that the products of every stage use; a stage's own slots begin at kStageSlot.
enum : size_t { kPanelSlot, kRowSlot, kRowPointerSlot, kRow2Slot, kRow2PointerSlot, kStageSlot };

inline Activations ActivationSpace(Context& context, int count, int width, size_t slot = kRowSlot) {
  double* data = context.scratch<double>(slot, offset(count, padded(width)));
  const double** pointers = context.scratch<const double*>(slot + 1, static_cast<size_t>(count));
  for (int row = 0; row < count; ++row) pointers[row] = data + offset(row, padded(width));
  return {pointers, data, width};
}

// Rows [count, width] of bf16 in the form that a product takes.
inline HWY_ATTR Activations MakeActivations(Context& context, const bf16* x, int count, int width, int block,
                                            size_t slot = kRowSlot) {
  const Activations made = ActivationSpace(context, count, width, slot);
  context.parallel(count, 1, int64_t{count} * width * 4, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) {
      ActivationRow(x + offset(row, width), width, block, made.data + offset(row, padded(width)));
    }
  });
  return made;
}

// Panels for every thread, for matrices up to `width` wide.
struct Panels {
  double* data;
  size_t stride;
  double* of(int share) const { return data + static_cast<size_t>(share) * stride; }
};
inline Panels MakePanels(Context& context, int width) {
  const size_t stride = PanelValues(width);
  return {context.scratch<double>(kPanelSlot, stride * static_cast<size_t>(context.threads())), stride};
}

// The whole product, cut over the outputs.
template <class Store>
HWY_INLINE void SharedProduct(Context& context, const Matrix& w, const Activations& x, int rows, const Store& store) {
  const Panels panels = MakePanels(context, w.in);
  context.parallel(w.out, kOutputs, ProductWork(w, rows), [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    Product(w, static_cast<int>(begin), static_cast<int>(end), x.row, rows, panels.of(share), store);
  });
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
