// Quantised products of many rows with an output per lane: 16 weight rows at a time, transposed as they are expanded,
// times up to 16 rows of activations in registers. No sum crosses lanes, and an expanded weight is used where it is.
//
// A sum is guarded as everywhere (guard-inl.h). It runs in chains of kLaneChain products, which are added up, those of
// kLaneSpan inputs first: one chain over all would be rounded so often that its bound leaves too much open.
#include "kernels/cpu/targets.h"
//
#include <hwy/cache_control.h>

#include "kernels/cpu/activations-inl.h"
#include "kernels/cpu/guard-inl.h"

#if defined(ONELANE_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_LANES_INL_H_
#undef ONELANE_CPU_LANES_INL_H_
#else
#define ONELANE_CPU_LANES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

inline constexpr int kLaneRows = 16;  // of a tile
// Rows of a tile lie kLaneStride floats apart, kLaneBlock inputs at a time, so that one address reaches all of them. An
// odd number of cache lines keeps them out of each other's way.
inline constexpr int kLaneBlock = 256;
inline constexpr int kLaneStride = kLaneBlock + 16;

inline size_t PackedValues(int width) {
  return offset((width + kLaneBlock - 1) / kLaneBlock, int64_t{kLaneRows} * kLaneStride);
}
// Floats that LaneProduct() needs as scratch.
inline size_t LaneValues(int width) { return PackedValues(width) + offset(2 * kLaneRows, padded(width)); }

#if HWY_TARGET == HWY_AVX3

// `rows` rows as tiles read them; `padded_rows`, a multiple of four, are filled up with the last.
inline HWY_ATTR void PackRows(const double* const* x, int rows, int padded_rows, int width, float* packed) {
  const DF d;
  for (int k = 0; k < width; k += kLaneBlock, packed += kLaneRows * kLaneStride) {
    const int count = std::min(kLaneBlock, width - k);
    for (int r = 0; r < padded_rows; ++r) {
      const float* row = reinterpret_cast<const float*>(x[std::min(r, rows - 1)]) + k;
      for (int i = 0; i < count; i += N) hn::StoreU(hn::LoadU(d, row + i), d, packed + r * kLaneStride + i);
    }
  }
}

// Calls f(0), ... f(count - 1) with constants.
template <int count, class F>
HWY_INLINE void Each(const F& f) {
  const auto all = [&]<int... i>(std::integer_sequence<int, i...>)
                       HWY_ATTR { (f(std::integral_constant<int, i>()), ...); };
  all(std::make_integer_sequence<int, count>());
}

// word[j]: of every row its 32-bit word j, row r in lane r. Rows are `stride` bytes apart.
HWY_INLINE void TransposedWords(const uint8_t* rows, size_t stride, hn::Vec<DU>* word) {
  const DU d;
  const hn::Half<DU> dh;
  const hn::Half<decltype(dh)> dq;
  const auto load = [&](size_t row)
                        HWY_ATTR { return hn::LoadU(dq, reinterpret_cast<const uint32_t*>(rows + row * stride)); };
  hn::Vec<DU> every4[4];
  for (size_t i = 0; i < 4; ++i) {
    every4[i] = hn::Combine(d, hn::Combine(dh, load(i + 12), load(i + 8)), hn::Combine(dh, load(i + 4), load(i)));
  }
  TransposeBlocks(every4, word);
}

// Weights of N outputs, taken `kLoaded` inputs at a time in chains of kLaneChain: Load(k, words), then Expand<i>(words)
// is the vector of input k + i. Finish() adds the sum of a chain to the others', FinishSquares() that of its squares.
struct LaneFp8 {
  using Rows = Fp8Rows;
  static constexpr int kLoaded = 16;
  static constexpr int kWords = 4;
  static constexpr int kLeastRows = 8;
  static bool takes(const Matrix&) { return true; }
  const uint8_t* codes;
  const uint8_t* scales;
  size_t stride;
  int block_shift;
  VF scale;

  LaneFp8(const Matrix& w, int output)
      : codes(reinterpret_cast<const uint8_t*>(w.data) + offset(output, w.in)),
        stride(static_cast<size_t>(w.in)),
        block_shift(w.block == 32 ? 5 : 7),
        scale(hn::Zero(DF())) {
    scales = w.scale + offset(output >> block_shift, (w.in + w.block - 1) >> block_shift);
  }
  // Whether all weights may be expanded by shift and mask. Where not, every sum is taken in double.
  bool Expands(int width) const {
    for (int k = 0; k < width; k += 1 << block_shift) {
      if (!E4m3Shifts(scales[k >> block_shift])) return false;
    }
    return true;
  }
  const uint8_t* next(int k) const { return codes + N * (stride + static_cast<size_t>(k)); }
  HWY_INLINE void Load(int k, hn::Vec<DU>* words) {
    // The factor goes into the weights, not into the sums: a code that is subnormal as a float would cost every row.
    scale = hn::Set(DF(), kFp8WeightScale[scales[k >> block_shift]] * (kShiftedE4m3 / 256));
    TransposedWords(codes + k, stride, words);
  }
  template <int i>
  HWY_INLINE VF Expand(const hn::Vec<DU>* words) const {
    const DU du;
    const hn::Repartition<int16_t, DF> d16;
    auto code = hn::BitCast(d16, words[i / 4]);
    if constexpr (i % 2 == 0) code = hn::ShiftLeft<8>(code);
    auto bits = hn::BitCast(du, hn::ShiftRight<4>(code));
    if constexpr (i % 4 < 2) bits = hn::ShiftLeft<16>(bits);
    return hn::Mul(hn::BitCast(DF(), hn::And(bits, hn::Set(du, 0x87f00000u))), scale);
  }
  HWY_INLINE VF Finish(VF chain, VF sum) const { return hn::Add(chain, sum); }
  HWY_INLINE VF FinishSquares(VF chain, VF sum) const { return hn::Add(chain, sum); }

  // ExactSum() of a row as doubles: the same chains. Of weights that Expands().
  static HWY_NOINLINE float Exact(const Matrix& w, int output, const double* x) {
    const DD d;
    const hn::Repartition<uint64_t, DD> du;
    const LaneFp8 weights(w, output);
    const auto load = [&](int k) HWY_ATTR {
      const auto signs = hn::Vec<decltype(du)>{
          _mm512_cvtepi8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(weights.codes + k)))};
      return hn::BitCast(d, hn::And(hn::ShiftLeft<49>(signs), hn::Set(du, 0x80fe000000000000u)));
    };
    VD acc[2] = {hn::Zero(d), hn::Zero(d)};
    for (int k = 0; k < w.in; k += kWeightBlock) {
      // As a double a code is 2^-1016 of its value.
      const VD scale = hn::Set(d, e8m0_to_float(weights.scales[k >> weights.block_shift]) * 0x1p1016);
      for (int i = k; i < k + kWeightBlock; i += 2 * L) {
        acc[0] = hn::MulAdd(hn::LoadU(d, x + i), hn::Mul(load(i), scale), acc[0]);
        acc[1] = hn::MulAdd(hn::LoadU(d, x + i + L), hn::Mul(load(i + L), scale), acc[1]);
      }
    }
    return static_cast<float>(Sum(hn::Add(acc[0], acc[1])));
  }
};

template <class Rows>  // the same of any weights
HWY_NOINLINE float ExactWide(const Matrix& w, int output, const double* x) {
  const DF d;
  const DH dh;
  const DD dd;
  const int first = output / kOutputs * kOutputs;
  const int outputs[kOutputs] = {first, first + 1, first + 2, first + 3};
  const int c = output - first;
  const Rows weights(w, outputs);
  VF scales[kOutputs];
  for (VF& scale : scales) scale = hn::Zero(d);
  VD acc[2] = {hn::Zero(dd), hn::Zero(dd)};
  for (int k = 0; k < w.in; k += kWeightBlock) {
    weights.Scales(d, k, scales);
    for (int i = k; i < k + kWeightBlock; i += N) {
      const VF v = weights.Load(d, c, i, scales[c]);
      acc[0] = hn::MulAdd(hn::LoadU(dd, x + i), hn::PromoteTo(dd, hn::LowerHalf(dh, v)), acc[0]);
      acc[1] = hn::MulAdd(hn::LoadU(dd, x + i + L), hn::PromoteTo(dd, hn::UpperHalf(dh, v)), acc[1]);
    }
  }
  return static_cast<float>(Sum(hn::Add(acc[0], acc[1])));
}

struct LaneFp4 {
  using Rows = Fp4Rows;
  static constexpr int kLoaded = 32;
  static constexpr int kWords = 4;
  static constexpr int kLeastRows = 4;
  static bool takes(const Matrix& w) { return w.in % (4 * kWeightBlock) == 0; }  // scales are loaded by fours
  const uint8_t* codes;
  const uint8_t* scales;
  size_t stride;
  hn::Vec<DU> four_scales;
  VF scale;

  LaneFp4(const Matrix& w, int output)
      : codes(reinterpret_cast<const uint8_t*>(w.data) + offset(output, w.in / 2)),
        scales(w.scale + offset(output, w.in / kWeightBlock)),
        stride(static_cast<size_t>(w.in / 2)),
        four_scales(hn::Zero(DU())),
        scale(hn::Zero(DF())) {}
  bool Expands(int) const { return true; }
  const uint8_t* next(int k) const { return codes + N * (stride + static_cast<size_t>(k) / 2); }
  HWY_INLINE void Load(int k, hn::Vec<DU>* words) {
    const DU du;
    const hn::Rebind<int32_t, DF> di;
    if (k % (4 * kWeightBlock) == 0) {
      const auto rows = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(stride / 16)));
      four_scales = hn::GatherOffset(du, reinterpret_cast<const uint32_t*>(scales + k / kWeightBlock), rows);
    } else {
      four_scales = hn::ShiftRight<8>(four_scales);
    }
    // Code 0 is 2^-127; 255 becomes infinite, and then no sum is settled.
    const auto exponent = hn::ShiftLeft<23>(hn::And(four_scales, hn::Set(du, 0xffu)));
    scale = hn::BitCast(DF(), hn::Max(exponent, hn::Set(du, 0x00400000u)));
    TransposedWords(codes + k / 2, stride, words);
  }
  template <int i>
  HWY_INLINE VF Expand(const hn::Vec<DU>* words) const {
    alignas(64) static constexpr float kValue[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                                     -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    // The instruction that looks up takes the lowest four bits only.
    const auto code = hn::ShiftRight<4 * (i % 8)>(words[i / 8]);
    return hn::TableLookupLanes(hn::Load(DF(), kValue), hn::Indices512<float>{code.raw});
  }
  HWY_INLINE VF Finish(VF chain, VF sum) const { return hn::MulAdd(chain, scale, sum); }
  HWY_INLINE VF FinishSquares(VF chain, VF sum) const { return hn::MulAdd(hn::Mul(chain, scale), scale, sum); }
  static float Exact(const Matrix& w, int output, const double* x) { return ExactWide<Fp4Rows>(w, output, x); }
};

struct LaneBf16 {
  using Rows = Bf16Rows;
  static constexpr int kLoaded = 16;
  static constexpr int kWords = 8;
  static constexpr int kLeastRows = 8;
  static bool takes(const Matrix&) { return true; }
  const uint8_t* values;
  size_t stride;

  LaneBf16(const Matrix& w, int output)
      : values(reinterpret_cast<const uint8_t*>(w.data) + offset(output, 2 * w.in)),
        stride(static_cast<size_t>(2 * w.in)) {}
  bool Expands(int) const { return true; }
  const uint8_t* next(int k) const { return values + N * (stride + 2 * static_cast<size_t>(k)); }
  HWY_INLINE void Load(int k, hn::Vec<DU>* words) {
    TransposedWords(values + 2 * k, stride, words);
    TransposedWords(values + 2 * k + 16, stride, words + 4);
  }
  template <int i>
  HWY_INLINE VF Expand(const hn::Vec<DU>* words) const {
    const auto pair = words[i / 2];
    return hn::BitCast(DF(), i % 2 == 0 ? hn::ShiftLeft<16>(pair) : hn::And(pair, hn::Set(DU(), 0xffff0000u)));
  }
  HWY_INLINE VF Finish(VF chain, VF sum) const { return hn::Add(chain, sum); }
  HWY_INLINE VF FinishSquares(VF chain, VF sum) const { return hn::Add(chain, sum); }
  static float Exact(const Matrix& w, int output, const double* x) { return ExactWide<Bf16Rows>(w, output, x); }
};

template <class Rows>
using LaneWeights = std::conditional_t<std::is_same_v<Rows, Fp8Rows>, LaneFp8,
                                       std::conditional_t<std::is_same_v<Rows, Fp4Rows>, LaneFp4, LaneBf16>>;

// sums [R, N]: R packed rows times the weights of N outputs. Returns the norms of the weights in the unit of
// ActivationRow's.
template <class Weights, int R>
HWY_NOINLINE VF LaneTile(const Matrix& w, int output, const float* packed, float* sums) {
  const DF d;
  Weights weights(w, output);
  if (!weights.Expands(w.in)) return hn::Set(d, std::numeric_limits<float>::quiet_NaN());  // settles nothing
  VF squares = hn::Zero(d);
  alignas(64) float span[R * N] = {};
  for (int r = 0; r < R; ++r) hn::Store(hn::Zero(d), d, sums + r * N);
  for (int first = 0; first < w.in; first += kLaneBlock, packed += kLaneRows * kLaneStride) {
    const int last = std::min(first + kLaneBlock, w.in);
    for (int k = first; k < last; k += Weights::kLoaded) {
      // Rows come from the third-level cache, sixteen at a time, which nothing reads ahead.
      const uint8_t* next = weights.next(k);
      for (int line = 0; line < 4; ++line) hwy::Prefetch(next + 64 * line);
      hn::Vec<DU> words[Weights::kWords];
      weights.Load(k, words);
      const float* x = packed + k - first;
      const auto chain = [&](auto number) HWY_ATTR {
        constexpr int kFirst = decltype(number)::value * kLaneChain;
        VF acc[R];
        VF chain_squares = hn::Zero(d);
        const auto step = [&](auto input) HWY_ATTR {
          constexpr int i = kFirst + decltype(input)::value;
          const VF weight = weights.template Expand<i>(words);
          if constexpr (i == kFirst) {
            chain_squares = hn::Mul(weight, weight);
            for (int r = 0; r < R; ++r) acc[r] = hn::Mul(weight, hn::Set(d, x[r * kLaneStride + i]));
          } else {
            chain_squares = hn::MulAdd(weight, weight, chain_squares);
            for (int r = 0; r < R; ++r) acc[r] = hn::MulAdd(weight, hn::Set(d, x[r * kLaneStride + i]), acc[r]);
          }
        };
        Each<kLaneChain>(step);
        squares = weights.FinishSquares(chain_squares, squares);
        for (int r = 0; r < R; ++r) {
          float* sum = span + r * N;
          hn::Store(weights.Finish(acc[r], hn::Load(d, sum)), d, sum);
        }
      };
      Each<Weights::kLoaded / kLaneChain>(chain);
      if (const int end = k + Weights::kLoaded; end % kLaneSpan == 0 || end == w.in) {
        for (int r = 0; r < R; ++r) {
          hn::Store(hn::Add(hn::Load(d, sums + r * N), hn::Load(d, span + r * N)), d, sums + r * N);
          hn::Store(hn::Zero(d), d, span + r * N);
        }
      }
    }
  }
  // Stands for squares that underflow. One part in a thousand is for the roundings of the bound itself.
  const VF least = hn::Set(d, static_cast<float>(w.in) * 0x1p-120f);
  return hn::Mul(hn::Sqrt(hn::Add(squares, least)), hn::Set(d, 1.001f * 0x1p-24f));
}

// Outputs [begin, end), whole vectors, of the product of `rows` padded rows x[r]; store(row, output, the sums of N
// outputs from there on). `space`: LaneValues(w.in) floats.
template <class Weights, class Store>
HWY_INLINE void LaneProduct(const Matrix& w, int begin, int end, const double* const* x, int rows, float* space,
                            const Store& store) {
  const DF d;
  alignas(64) float sums[kLaneRows * N];
  // Rows as doubles, once a sum needs them.
  auto* wide = reinterpret_cast<double*>(space + PackedValues(w.in));
  for (int first = 0; first < rows; first += kLaneRows) {
    const int count = std::min(kLaneRows, rows - first);
    const int fours = (count + 3) / 4;
    PackRows(x + first, count, 4 * fours, w.in, space);
    uint32_t widened = 0;
    for (int n = begin; n < end; n += N) {
      const bool expands = Weights(w, n).Expands(w.in);
      const VF norms = fours == 1   ? LaneTile<Weights, 4>(w, n, space, sums)
                       : fours == 2 ? LaneTile<Weights, 8>(w, n, space, sums)
                       : fours == 3 ? LaneTile<Weights, 12>(w, n, space, sums)
                                    : LaneTile<Weights, 16>(w, n, space, sums);
      for (int r = 0; r < count; ++r) {
        const auto* row = reinterpret_cast<const float*>(x[first + r]);
        const VF error = hn::Mul(norms, hn::Set(d, row[padded(w.in) + kLaneNorm]));
        const auto exact = [&](int lane, float) HWY_ATTR {
          double* wide_row = wide + offset(r, padded(w.in));
          if ((widened >> r & 1u) == 0) WidenRow(row, w.in, wide_row);
          widened |= 1u << r;
          return expands ? Weights::Exact(w, n + lane, wide_row)
                         : ExactWide<typename Weights::Rows>(w, n + lane, wide_row);
        };
        store(first + r, n, Settle(d, hn::Load(d, sums + r * N), error, exact));
      }
    }
  }
}

#endif

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
