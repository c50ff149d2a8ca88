// The product of activation rows with a weight matrix in its stored form, y = x * W^T.
//
// Every product is as if summed exactly and then rounded. Where the result stays a float (bf16 weights), sums run in
// double. Where it is rounded to bf16 (quantised weights), sums run in float with a bound on their error: only when a
// bf16 rounding boundary lies within the bound of a sum, some times in a hundred, is it taken again in double.
//
// Few rows of quantised weights take the way of stream-inl.h, row by row. Otherwise a tile is R rows by 4 outputs in
// registers. Weights are expanded in registers, once per tile (weights-inl.h); from 8 rows on, 4 weight rows are
// expanded into a panel first and all tiles read that. With AVX-512 sums in float of so many rows have an output per
// lane instead (lanes-inl.h).
#include "kernels/cpu/targets.h"
//
#include "kernels/cpu/activations-inl.h"
#include "kernels/cpu/lanes-inl.h"
#include "kernels/cpu/stream-inl.h"

#if defined(ONELANE_CPU_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_LINEAR_INL_H_
#undef ONELANE_CPU_LINEAR_INL_H_
#else
#define ONELANE_CPU_LINEAR_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

// Rows of the largest tile: R * 4 accumulators, 4 weights and an activation must fit the registers.
inline constexpr int kTileRows = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 ? 2 : 6;
inline constexpr int kPanelRows = 8;
inline constexpr int kPanelRowsFp4 = 5;  // more than a tile of four

// -- tiles
// -------------------------------------------------------------------------------------------------------------

// The halves of a, added, then those of b.
HWY_INLINE VF SumHalves(VF a, VF b) {
  const DF d;
  return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
}
// The four sums of each of N / 4 rows, row after row.
HWY_INLINE VF SumRows(const VF (&acc)[N / 4][kOutputs]) {
  VF rows[N / 4];
  for (int r = 0; r < N / 4; ++r) rows[r] = SumPairs(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
  if constexpr (N == 4) {
    return rows[0];
  } else if constexpr (N == 8) {
    return SumHalves(rows[0], rows[1]);
  } else {
    const VF even = SumHalves(rows[0], rows[2]);
    const VF odd = SumHalves(rows[1], rows[3]);
    return hn::Add(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(odd), even),
                   hn::OddEvenBlocks(odd, hn::SwapAdjacentBlocks(even)));
  }
}

// `d`: as many lanes as there are values at p[0], p[1] ...: four from each.
template <class D>
HWY_INLINE hn::Vec<D> LoadFours([[maybe_unused]] D d, const float* const* p) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, p[0]);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadFours(half, p + hn::MaxLanes(half) / 4), LoadFours(half, p));
  }
}

template <class D>
HWY_INLINE hn::Vec<D> RepeatFour([[maybe_unused]] D d, V4 v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, RepeatFour(half, v), RepeatFour(half, v));
  }
}

// Norms of four weight rows by the lanes of their squares, times the unit of a row's ErrorNorms().
HWY_INLINE V4 WeightNorms(const VF* squares, int width) {
  const D4 d;
  // Stands for squares that underflow. One part in a thousand is for the roundings of the bound itself.
  const V4 least = hn::Set(d, static_cast<float>(width) * 0x1p-120f);
  const V4 norms = hn::Sqrt(hn::Add(Sum4(squares[0], squares[1], squares[2], squares[3]), least));
  return hn::Mul(norms, hn::Set(d, 1.001f * 0x1p-24f));
}

// sums[r] = the four dot products of row r with the weight rows, rounded to bf16 as the exact sums are. Rows are
// floats, as ActivationRow makes them. The error of a sum in float is at most the product of the row's kTileNorm and
// that of the weights, `norms`; without a look at those (kNormed false) they are made here.
template <int R, bool kNormed, class Rows>
HWY_INLINE void GuardedTile(const Rows& w, int width, const double* const* x, V4 norms, V4* sums) {
  const DF d;
  VF acc[R][kOutputs];
  VF squares[kOutputs];
  VF scales[kOutputs];
  const float* row[R];
  const float* row_norms[R];
  for (int r = 0; r < R; ++r) {
    row[r] = reinterpret_cast<const float*>(x[r]);
    row_norms[r] = row[r] + padded(width) + kTileNorm;
  }
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
        if constexpr (!kNormed) squares[c] = hn::MulAdd(wv[c], wv[c], squares[c]);
      }
      for (int r = 0; r < R; ++r) {
        const VF xv = hn::LoadU(d, row[r] + i);
        for (int c = 0; c < kOutputs; ++c) acc[r][c] = hn::MulAdd(xv, wv[c], acc[r][c]);
      }
    }
  }
  if constexpr (!kNormed) norms = WeightNorms(squares, width);
  const auto exact = [&](int lane, float) HWY_ATTR { return ExactSum(w, lane % 4, width, row[lane / 4]); };
  constexpr int kTogether = N / 4;
  if constexpr (R == kTogether) {
    const VF error = hn::Mul(RepeatFour(d, norms), LoadFours(d, row_norms));
    alignas(64) float rounded[N];
    hn::Store(Settle(d, SumRows(acc), error, exact), d, rounded);
    for (int r = 0; r < R; ++r) sums[r] = hn::Load(D4(), rounded + r * kOutputs);
  } else {
    for (int r = 0; r < R; ++r) {
      const V4 error = hn::Mul(norms, hn::LoadU(D4(), row_norms[r]));
      sums[r] = Settle(D4(), Sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]), error,
                       [&](int c, float sum) HWY_ATTR { return exact(4 * r + c, sum); });
    }
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
    if constexpr (R == 1 && std::is_same_v<Rows, Bf16Rows>) {
      if (k % 32 == 0) {  // a line of each row
        for (int c = 0; c < kOutputs; ++c) hwy::Prefetch(w.row[c] + k + kStreamAhead / 2);
      }
    }
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
// `norms`: of the rows of a panel.
template <bool kGuarded, class Rows, class Store>
HWY_INLINE void TileRows(const Rows& w, int width, const double* const* x, int rows, V4 norms, const Store& store) {
  constexpr bool kNormed = std::is_same_v<Rows, PlainRows<float>>;
  constexpr int kMost = kGuarded ? std::min(kTileRows, 4) : kTileRows;  // four rows' sums fill a vector
  int row = 0;
  const auto run = [&](auto tile) HWY_ATTR {
    constexpr int R = decltype(tile)::value;
    if constexpr (kGuarded) {
      V4 sums[R];
      GuardedTile<R, kNormed>(w, width, x + row, norms, sums);
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

// -- matrices
// ----------------------------------------------------------------------------------------------------------

// Destinations of a product: rows of bf16 (rounded) or float.
struct ToBf16 {
  bf16* out;
  size_t stride;
  template <class V>
  HWY_INLINE void operator()(int row, int output, int valid, V sums) const {
    const hn::DFromV<V> d;
    bf16* p = out + static_cast<size_t>(row) * stride + output;
    if (valid == hn::MaxLanes(d)) return StoreBf16(d, sums, p);
    alignas(64) float lanes[hn::MaxLanes(d)];
    hn::Store(sums, d, lanes);
    for (int c = 0; c < valid; ++c) p[c] = float_to_bf16(lanes[c]);
  }
};
struct ToFloat {
  float* out;
  size_t stride;
  template <class V>
  HWY_INLINE void operator()(int row, int output, int valid, V sums) const {
    const hn::DFromV<V> d;
    float* p = out + static_cast<size_t>(row) * stride + output;
    if (valid == hn::MaxLanes(d)) return hn::StoreU(sums, d, p);
    alignas(64) float lanes[hn::MaxLanes(d)];
    hn::Store(sums, d, lanes);
    for (int c = 0; c < valid; ++c) p[c] = lanes[c];
  }
};

inline size_t PanelValues(int width) { return std::max(offset(kOutputs, padded(width)), LaneValues(width) / 2); }

// Where a product hands its sums: the caller's store(row, first output, how many are valid, the sums: V4 or VF). The
// product does not know the store's type: it is far too much code to be compiled for each.
class Sums {
 public:
  template <class Store>
  explicit Sums(const Store& store) : store_(&store), four_(Call<Store, V4>), lanes_(Call<Store, VF>) {}
  void operator()(int row, int output, int valid, V4 sums) const { four_(store_, row, output, valid, sums); }
  template <class V>
  void operator()(int row, int output, int valid, V sums) const {
    lanes_(store_, row, output, valid, sums);
  }

 private:
  template <class V>
  using To = void (*)(const void* store, int row, int output, int valid, V sums);
  template <class Store, class V>
  static void Call(const void* store, int row, int output, int valid, V sums) {
    (*static_cast<const Store*>(store))(row, output, valid, sums);
  }
  const void* store_;
  To<V4> four_;
  To<VF> lanes_;
};

// Outputs [begin, end) of the product of `rows` padded rows x[r]; begin is a multiple of 4. `panel`: PanelValues(w.in)
// doubles of the calling thread's own. Sums of quantised weights, and of activations kAsFloats, are handed to the store
// as floats that hold bf16, others as they are. In linear.cc.
void Product(const Matrix& w, int begin, int end, const double* const* x, int rows, double* panel, const Sums& store);
template <class Store>
HWY_INLINE void Product(const Matrix& w, int begin, int end, const double* const* x, int rows, double* panel,
                        const Store& store) {
  Product(w, begin, end, x, rows, panel, Sums(store));
}

// All sums rounded to bf16.
template <class Store>
HWY_INLINE void ProductBf16(const Matrix& w, int begin, int end, const double* const* x, int rows, double* panel,
                            const Store& store) {
  if (w.kind != Matrix::Kind::kBf16) return Product(w, begin, end, x, rows, panel, store);
  Product(w, begin, end, x, rows, panel, [&](int row, int output, int valid, auto sums) HWY_ATTR {
    store(row, output, valid, RoundBf16(hn::DFromV<decltype(sums)>(), sums));
  });
}

inline int64_t ProductWork(const Matrix& w, int rows) { return int64_t{w.out} * w.in * rows; }

// -- scratch of products
// -----------------------------------------------------------------------------------------------

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
