// The product of activation rows with a weight matrix in its stored form, y = x * W^T.
//
// A tile is R rows by 4 outputs in registers. Weights are expanded in registers, once per tile: e4m3 through the half
// float format, e2m1 by a byte table; the scale of a block is a power of two, so the expanded value is exact and its
// product with the activation enters one fused multiply-add. From 8 rows on, 4 weight rows are expanded into a panel
// first and all tiles read that. Either way an output is one chain of the same multiply-adds: tiles change no bits.
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

// How a product takes its activations: quantised in blocks of `block` unless that is 0, as floats or as doubles.
struct ActivationForm {
  int block = 0;
  bool floats = false;
  bool operator==(const ActivationForm&) const = default;
};
inline ActivationForm FormOf(const Matrix& w) {
  return {w.act_block, w.kind == Matrix::Kind::kFp4 && w.act_block > 0};  // see FloatTile
}

// A row of activations in its form; floats fill the first half of `out`.
inline HWY_ATTR void ActivationRow(const bf16* x, int width, ActivationForm form, double* out) {
  if (form.block == 0) return WidenRow(x, width, out);
  if (form.floats) {
    auto* values = reinterpret_cast<float*>(out);
    WidenRow(x, width, values);
    for (int i = 0; i < width; i += form.block) QuantiseBlock(values + i, std::min(form.block, padded(width) - i));
    return;
  }
  constexpr int kMostBlock = 128;
  ONELANE_CHECK(form.block % kPad == 0 && form.block <= kMostBlock, "activations are quantised in blocks of up to 128");
  alignas(64) float values[kMostBlock];
  for (int i = 0; i < width; i += form.block) {
    const int count = std::min(form.block, width - i);
    WidenRow(x + i, count, values);
    QuantiseBlock(values, padded(count));
    WidenRow(values, count, out + i);
  }
}

// -- tiles
// -------------------------------------------------------------------------------------------------------------

// sums[4 r ...] = the four dot products of x[r] with the weight rows. Rows of x are padded with zeros.
//
// Weights e2m1 and activations e4m3, in floats: the products of a block are multiples of 2^-10 of its scales and below
// 2^12, so that a float holds the sum of four. Four products a lane are summed in float, and those sums in double.
template <int R, class Rows>
HWY_INLINE void FloatTile(const Rows& w, int width, const double* const* x, double* sums) {
  const DF d;
  const DH dh;
  VD acc[R][kOutputs];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kOutputs; ++c) acc[r][c] = hn::Zero(DD());
  }
  const float* row[R];
  for (int r = 0; r < R; ++r) row[r] = reinterpret_cast<const float*>(x[r]);
  VF scales[kOutputs];
  for (int c = 0; c < kOutputs; ++c) scales[c] = hn::Zero(d);
  for (int k = 0; k < width; k += kWeightBlock) {
    w.Scales(d, k, scales);
    for (int i = k; i < k + kWeightBlock; i += 2 * N) {
      for (int c = 0; c < kOutputs; ++c) {
        const VF w0 = w.Load(d, c, i, scales[c]);
        const VF w1 = w.Load(d, c, i + N, scales[c]);
        for (int r = 0; r < R; ++r) {
          const VF two = hn::MulAdd(hn::LoadU(d, row[r] + i + N), w1, hn::Mul(hn::LoadU(d, row[r] + i), w0));
          const VH four = hn::Add(hn::LowerHalf(dh, two), hn::UpperHalf(dh, two));
          acc[r][c] = hn::Add(acc[r][c], Widen(four));
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) Sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3], sums + r * kOutputs);
}

// Anything else, in double: a product of two e4m3 has 8 bits, but spans 2^36.
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

// All rows against four outputs; store(row, the four sums).
template <bool kFloats, class Rows, class Store>
HWY_INLINE void TileRows(const Rows& w, int width, const double* const* x, int rows, const Store& store) {
  alignas(64) double sums[kTileRows * kOutputs];
  int row = 0;
  const auto run = [&](auto tile) HWY_ATTR {
    constexpr int R = decltype(tile)::value;
    if constexpr (kFloats) {
      FloatTile<R>(w, width, x + row, sums);
    } else {
      Tile<R>(w, width, x + row, sums);
    }
    for (int r = 0; r < R; ++r) store(row + r, sums + r * kOutputs);
    row += R;
  };
  while (rows - row >= kTileRows) run(std::integral_constant<int, kTileRows>());
  if constexpr (kTileRows > 4) {
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

inline size_t PanelValues(int width) { return offset(kOutputs, padded(width)); }

// Outputs [begin, end) of the product of `rows` padded rows x[r]; begin is a multiple of 4. `panel`: PanelValues(w.in)
// doubles of the calling thread's own.
template <bool kFloats, class Rows, class Store>
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
      const auto put = [&](int row, const double* sums) HWY_ATTR { store(first + row, n, valid, Narrow4(sums)); };
      if (count < kPanelRows) {
        TileRows<kFloats>(weights, w.in, x + first, count, put);
      } else {
        using T = std::conditional_t<kFloats, float, double>;
        T* values = reinterpret_cast<T*>(panel);
        ExpandPanel(weights, w.in, values, stride);
        const PlainRows<T> expanded{{values, values + stride, values + 2 * stride, values + 3 * stride}};
        TileRows<kFloats>(expanded, w.in, x + first, count, put);
      }
    }
  }
}

template <class Store>
HWY_NOINLINE void Product(const Matrix& w, int begin, int end, const double* const* x, int rows, double* panel,
                          const Store& store) {
  switch (w.kind) {
    case Matrix::Kind::kFp8:
      ONELANE_CHECK(w.block == 32 || w.block == 128, "a scale tile is 32 or 128 wide");
      return ProductOf<false, Fp8Rows>(w, begin, end, x, rows, panel, store);
    case Matrix::Kind::kFp4:
      if (FormOf(w).floats) return ProductOf<true, Fp4Rows>(w, begin, end, x, rows, panel, store);
      return ProductOf<false, Fp4Rows>(w, begin, end, x, rows, panel, store);
    case Matrix::Kind::kBf16:
      return ProductOf<false, Bf16Rows>(w, begin, end, x, rows, panel, store);
    case Matrix::Kind::kNone:
      ONELANE_CHECK(false, "a product needs a matrix");
  }
}

inline int64_t ProductWork(const Matrix& w, int rows) { return int64_t{w.out} * w.in * rows; }

// -- scratch of products
// -----------------------------------------------------------------------------------------------

// Activation rows in scratch and a pointer to each: doubles, or the floats of an ActivationForm.
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
inline HWY_ATTR Activations MakeActivations(Context& context, const bf16* x, int count, int width, ActivationForm form,
                                            size_t slot = kRowSlot) {
  const Activations made = ActivationSpace(context, count, width, slot);
  context.parallel(count, 1, int64_t{count} * width * 4, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) {
      ActivationRow(x + offset(row, width), width, form, made.data + offset(row, padded(width)));
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
