// Quantised products of few rows, taken one by one: where a weight is used once, what counts is the work per weight.
//
// - A vector of codes is expanded where it lies: code j of every 32-bit lane goes into a vector of its own, and the
//   activations are laid out to match, once per row.
// - e4m3: moved to where a float has its exponent and mantissa, a code is 2^-120 of its value, subnormals included
// (which
//   cost some 130 cycles each on Intel; the minis have one in 6,000 to 8,000 weights). The factor, and the scale that a
//   tile of weights shares, go into the activations, once per tile.
// - e2m1: a code is the number of an entry in a register; the scale of a block multiplies the sum of its products.
// - The bound of a sum's error needs the sum of the magnitudes of its products. No weight exceeds 480 (or 6) times its
//   scale, which bounds that without a look at the weights. Only where this is not enough the magnitudes are summed,
//   and where that is not enough either, the products are summed in double.
#include "kernels/cpu/targets.h"
//
#include <hwy/cache_control.h>

#include "kernels/cpu/guard-inl.h"

#if defined(ONELANE_CPU_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_STREAM_INL_H_
#undef ONELANE_CPU_STREAM_INL_H_
#else
#define ONELANE_CPU_STREAM_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

inline constexpr int kStreamFp8 = 4 * N;  // codes in a vector
inline constexpr int kStreamFp4 = 8 * N;
inline constexpr int kStreamRows = 3;  // with more it pays to expand a weight once for all
// An entry in a register takes vectors of 16 floats.
inline constexpr bool kStreamsFp4 = HWY_TARGET == HWY_AVX3;

// How far ahead weights are asked for, in bytes: rows lie one behind the other, and come from the third-level cache.
inline constexpr int kStreamAhead = 4096;

inline bool Streams(const Matrix& w, int rows) {
  if (rows > kStreamRows) return false;
  if (w.kind == Matrix::Kind::kFp8) return w.in % kStreamFp8 == 0;
  return kStreamsFp4 && w.kind == Matrix::Kind::kFp4 && w.in % kStreamFp4 == 0;
}

// Floats a product needs as scratch.
inline size_t StreamValues(int width) { return 3 * static_cast<size_t>(width); }

// Relative to the sum of the magnitudes: `steps` additions in every lane but the first, whose product is exact; up to
// four vectors added up in two, their lanes in four; the end of the range that is rounded in the end. 1 % stands for
// the roundings of the bound itself.
inline float StreamError(int steps) { return 1.01f * 0x1p-24f * static_cast<float>(steps + 6); }

HWY_INLINE VF LoadNarrow(const float* p) { return hn::LoadU(DF(), p); }
HWY_INLINE VF LoadNarrow(const double* p) {
  const DD d;
  const DH dh;
  return hn::Combine(DF(), hn::DemoteTo(dh, hn::LoadU(d, p + L)), hn::DemoteTo(dh, hn::LoadU(d, p)));
}

// Vector j of out holds every fourth of 4 * N values, from value j on.
template <class T>
HWY_INLINE void Interleaved(const T* x, VF* out) {
  const DF d;
  alignas(64) float values[4 * N];
  for (int j = 0; j < 4; ++j) hn::Store(LoadNarrow(x + j * N), d, values + j * N);
  hn::LoadInterleaved4(d, values, out[0], out[1], out[2], out[3]);
}

// -- e4m3
// ----------------------------------------------------------------------------------------------------------

// What the activations are multiplied by beside the scale of the weights, what is then missing in the sums, and the
// largest code in units of the two.
inline constexpr float kFp8Factor = 0x1p96f;
inline constexpr float kFp8Rest = 0x1p24f;
inline constexpr float kFp8Most = 480 * 0x1p-96f;
inline constexpr float kFp8Underflow = 0x1p-100f;

template <class T>
HWY_INLINE void OrderFp8(const T* x, int width, float* ordered) {
  for (int k = 0; k < width; k += kStreamFp8) {
    VF four[4];
    Interleaved(x + k, four);
    for (int j = 0; j < 4; ++j) hn::StoreU(four[j], DF(), ordered + k + j * N);
  }
}

// laid = ordered times the scales of row `tile` of the scale matrix; returns the sum of the magnitudes.
HWY_INLINE float LayFp8(const Matrix& w, int tile, const float* ordered, float* laid) {
  const DF d;
  const int shift = w.block == 32 ? 5 : 7;
  const uint8_t* codes = w.scale + offset(tile, (w.in + w.block - 1) >> shift);
  const auto scale = [&](int k) { return e8m0_to_float(codes[k >> shift]) * kFp8Factor; };
  VF magnitude = hn::Zero(d);
  for (int k = 0; k < w.in; k += kStreamFp8) {
    VF scales = hn::Set(d, scale(k));
    if constexpr (kStreamFp8 > kWeightBlock) {
      scales = hn::IfThenElse(hn::FirstN(d, kWeightBlock / 4), scales, hn::Set(d, scale(k + kWeightBlock)));
    }
    for (int j = 0; j < 4; ++j) {
      const VF v = hn::Mul(hn::LoadU(d, ordered + k + j * N), scales);
      magnitude = hn::Add(magnitude, hn::Abs(v));
      hn::StoreU(v, d, laid + k + j * N);
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, magnitude));
}

// sum + weight * x, or with the magnitude of x; a weight is its own magnitude already.
template <bool kMagnitudes>
HWY_INLINE VF AddProduct(VF weight, const float* x, VF sum) {
  const VF v = hn::LoadU(DF(), x);
  return hn::MulAdd(weight, kMagnitudes ? hn::Abs(v) : v, sum);
}

// The lanes of a dot product, or of the sum of its products' magnitudes.
template <bool kMagnitudes>
HWY_INLINE VF DotFp8(const uint8_t* codes, int width, const float* laid) {
  const DF d;
  const DU du;
  const hn::Repartition<int16_t, DF> d16;
  const hn::Repartition<uint8_t, DF> d8;
  // The lower four bits of the exponent, three of the mantissa, and the sign.
  const auto mask = hn::Set(du, kMagnitudes ? 0x07f00000u : 0x87f00000u);
  VF acc[4];
  for (VF& sum : acc) sum = hn::Zero(d);
  for (int k = 0; k < width; k += kStreamFp8) {
    hwy::Prefetch(codes + k + kStreamAhead);
    const auto four = hn::BitCast(d16, hn::LoadU(d8, codes + k));
    const auto odd = hn::BitCast(du, hn::ShiftRight<4>(four));
    const auto even = hn::BitCast(du, hn::ShiftRight<4>(hn::ShiftLeft<8>(four)));
    acc[0] = AddProduct<kMagnitudes>(hn::BitCast(d, hn::And(hn::ShiftLeft<16>(even), mask)), laid + k, acc[0]);
    acc[1] = AddProduct<kMagnitudes>(hn::BitCast(d, hn::And(hn::ShiftLeft<16>(odd), mask)), laid + k + N, acc[1]);
    acc[2] = AddProduct<kMagnitudes>(hn::BitCast(d, hn::And(even, mask)), laid + k + 2 * N, acc[2]);
    acc[3] = AddProduct<kMagnitudes>(hn::BitCast(d, hn::And(odd, mask)), laid + k + 3 * N, acc[3]);
  }
  return hn::Add(hn::Add(acc[0], acc[1]), hn::Add(acc[2], acc[3]));
}

// Output c of the four, whose sum in float is not settled by what the weights could be.
template <class T>
HWY_NOINLINE float CloserFp8(const Matrix& w, const int* outputs, int c, const T* x, const float* laid, float sum) {
  const auto* codes = reinterpret_cast<const uint8_t*>(w.data) + offset(outputs[c], w.in);
  const float magnitude = hn::GetLane(hn::SumOfLanes(DF(), DotFp8<true>(codes, w.in, laid))) * kFp8Rest;
  const float error = magnitude * StreamError(w.in / kStreamFp8) + kFp8Underflow;
  if (IsSettled(sum, error)) return sum;
  return ExactSum(Fp8Rows(w, outputs), c, w.in, x);
}

// Outputs [begin, end) of one row, which is floats or doubles; store(output, valid, four sums).
template <class T, class Store>
HWY_INLINE void StreamFp8(const Matrix& w, int begin, int end, const T* x, float* space, const Store& store) {
  const D4 d4;
  float* ordered = space;
  float* laid = space + w.in;
  OrderFp8(x, w.in, ordered);
  const auto* data = reinterpret_cast<const uint8_t*>(w.data);
  const float relative = StreamError(w.in / kStreamFp8) * kFp8Most;
  for (int n = begin; n < end;) {
    const int tile = n / w.block;
    const float magnitude = LayFp8(w, tile, ordered, laid);
    // Beyond it, or with a NaN, no output is settled.
    const bool usual = magnitude < 0x1p120f;
    const V4 error =
        hn::Set(d4, usual ? magnitude * relative + kFp8Underflow : std::numeric_limits<float>::quiet_NaN());
    for (const int stop = std::min(end, (tile + 1) * w.block); n < stop; n += kOutputs) {
      int outputs[kOutputs];
      VF sums[kOutputs];
      for (int c = 0; c < kOutputs; ++c) {
        outputs[c] = std::min(n + c, end - 1);
        sums[c] = DotFp8<false>(data + offset(outputs[c], w.in), w.in, laid);
      }
      const V4 sum = hn::Mul(Sum4(sums[0], sums[1], sums[2], sums[3]), hn::Set(d4, kFp8Rest));
      store(n, std::min(kOutputs, end - n), Settle(d4, sum, error, [&](int c, float before) HWY_ATTR {
              return usual ? CloserFp8(w, outputs, c, x, laid, before) : ExactSum(Fp8Rows(w, outputs), c, w.in, x);
            }));
    }
  }
}

// -- e2m1
// ----------------------------------------------------------------------------------------------------------

#if HWY_TARGET == HWY_AVX3

// Per kStreamFp4 values: eight vectors of every eighth value, halved, and the sums of magnitudes of eight by eight.
HWY_INLINE void OrderFp4(const float* x, int width, float* ordered) {
  const DF d;
  for (int k = 0; k < width; k += kStreamFp4, ordered += kStreamFp4 + N) {
    VF low[4];
    VF high[4];
    Interleaved(x + k, low);
    Interleaved(x + k + kStreamFp4 / 2, high);
    VF magnitude = hn::Zero(d);
    for (int j = 0; j < 4; ++j) {
      const VF first = hn::Mul(hn::ConcatEven(d, high[j], low[j]), hn::Set(d, 0.5f));
      const VF second = hn::Mul(hn::ConcatOdd(d, high[j], low[j]), hn::Set(d, 0.5f));
      magnitude = hn::Add(magnitude, hn::Add(hn::Abs(first), hn::Abs(second)));
      hn::StoreU(first, d, ordered + j * N);
      hn::StoreU(second, d, ordered + (j + 4) * N);
    }
    hn::StoreU(magnitude, d, ordered + 8 * N);
  }
}

inline float StreamErrorFp4(int width) { return StreamError(width / kStreamFp4 + kStreamFp4 / N / 2); }
inline constexpr float kFp4Underflow = 0x1p-100f;

// Code j of every lane. The instruction that looks up takes the lowest four bits only.
template <bool kMagnitudes, int j>
HWY_INLINE void AddFp4(VF table, hn::Vec<DU> eight, const float* ordered, VF* sums) {
  const auto code = hn::ShiftRight<4 * j>(eight);
  const VF weight = hn::TableLookupLanes(table, hn::Indices512<float>{code.raw});
  sums[j % 2] = AddProduct<kMagnitudes>(weight, ordered + j * N, sums[j % 2]);
}

// The lanes of a dot product, or of the sum of its products' magnitudes, and of the sum of scale times magnitude of the
// activations.
template <bool kMagnitudes>
HWY_INLINE void DotFp4(const uint8_t* codes, const uint8_t* scales, int width, const float* ordered, VF& dot,
                       VF& magnitude) {
  const DF d;
  const DU du;
  const hn::Repartition<uint8_t, DF> d8;
  alignas(64) static constexpr float kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};
  alignas(16) static constexpr uint8_t kSpread[16] = {0, 128, 128, 128, 0, 128, 128, 128,
                                                      0, 128, 128, 128, 0, 128, 128, 128};
  VF table = hn::Load(d, kTwice);
  if constexpr (kMagnitudes) table = hn::Abs(table);
  // Block b of the four has the lanes 4 b to 4 b + 3, that is, the vector's 16-byte block b.
  const auto spread = hn::Add(hn::LoadDup128(d8, kSpread), hn::BitCast(d8, hn::ShiftRight<2>(hn::Iota(du, 0))));
  dot = hn::Zero(d);
  magnitude = hn::Zero(d);
  for (int k = 0; k < width; k += kStreamFp4, ordered += kStreamFp4 + N) {
    hwy::Prefetch(codes + k / 2 + kStreamAhead);
    const auto eight = hn::BitCast(du, hn::LoadU(d8, codes + k / 2));
    VF sums[2] = {hn::Zero(d), hn::Zero(d)};
    AddFp4<kMagnitudes, 0>(table, eight, ordered, sums);
    AddFp4<kMagnitudes, 1>(table, eight, ordered, sums);
    AddFp4<kMagnitudes, 2>(table, eight, ordered, sums);
    AddFp4<kMagnitudes, 3>(table, eight, ordered, sums);
    AddFp4<kMagnitudes, 4>(table, eight, ordered, sums);
    AddFp4<kMagnitudes, 5>(table, eight, ordered, sums);
    AddFp4<kMagnitudes, 6>(table, eight, ordered, sums);
    AddFp4<kMagnitudes, 7>(table, eight, ordered, sums);
    uint32_t four;
    std::memcpy(&four, scales + k / kWeightBlock, sizeof(four));
    const auto exponents = hn::BitCast(du, hn::TableLookupBytes(hn::BitCast(d8, hn::Set(du, four)), spread));
    // Code 0 is 2^-127; 255 becomes infinite, and then no output is settled.
    const VF scale = hn::BitCast(d, hn::Max(hn::ShiftLeft<23>(exponents), hn::Set(du, 0x00400000u)));
    dot = hn::MulAdd(hn::Add(sums[0], sums[1]), scale, dot);
    magnitude = hn::MulAdd(hn::LoadU(d, ordered + 8 * N), scale, magnitude);
  }
}

// Output c of the four, whose sum in float is not settled by what the weights could be.
inline HWY_NOINLINE float CloserFp4(const Matrix& w, const int* outputs, int c, const float* x, const float* ordered,
                                    float sum) {
  VF magnitude;
  VF unused;
  DotFp4<true>(reinterpret_cast<const uint8_t*>(w.data) + offset(outputs[c], w.in / 2),
               w.scale + offset(outputs[c], w.in / kWeightBlock), w.in, ordered, magnitude, unused);
  const float error = hn::GetLane(hn::SumOfLanes(DF(), magnitude)) * StreamErrorFp4(w.in) + kFp4Underflow;
  if (IsSettled(sum, error)) return sum;
  return ExactSum(Fp4Rows(w, outputs), c, w.in, x);
}

template <class Store>
HWY_INLINE void StreamFp4(const Matrix& w, int begin, int end, const float* x, float* space, const Store& store) {
  const D4 d4;
  OrderFp4(x, w.in, space);
  const auto* data = reinterpret_cast<const uint8_t*>(w.data);
  const V4 relative = hn::Set(d4, StreamErrorFp4(w.in) * 12);
  for (int n = begin; n < end; n += kOutputs) {
    int outputs[kOutputs];
    VF sums[kOutputs];
    VF magnitudes[kOutputs];
    for (int c = 0; c < kOutputs; ++c) {
      outputs[c] = std::min(n + c, end - 1);
      DotFp4<false>(data + offset(outputs[c], w.in / 2), w.scale + offset(outputs[c], w.in / kWeightBlock), w.in, space,
                    sums[c], magnitudes[c]);
    }
    const V4 magnitude = Sum4(magnitudes[0], magnitudes[1], magnitudes[2], magnitudes[3]);
    const V4 error = hn::MulAdd(magnitude, relative, hn::Set(d4, kFp4Underflow));
    store(n, std::min(kOutputs, end - n),
          Settle(d4, Sum4(sums[0], sums[1], sums[2], sums[3]), error,
                 [&](int c, float sum) HWY_ATTR { return CloserFp4(w, outputs, c, x, space, sum); }));
  }
}

#endif

// One row of a matrix that Streams(); T is float where the activations are quantised, else double. The sums are rounded
// to bf16.
template <class T, class Store>
HWY_INLINE void Stream(const Matrix& w, int begin, int end, const T* x, float* space, const Store& store) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, float>) {
    if (w.kind == Matrix::Kind::kFp4) return StreamFp4(w, begin, end, x, space, store);
  }
#endif
  StreamFp8(w, begin, end, x, space, store);
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
