// Vector operations shared by the stages, compiled once per target (Highway's foreach_target).
//
// Between two roundings everything is double, so that results are as if exact. Order: every sum over a row runs in `L`
// lanes of one accumulator per output, lane i taking the elements i, i + L, ... and the lanes are added in a fixed
// tree. So the bits depend on the row and the target, never on a tile.
#include "kernels/cpu/targets.h"
//
#include <cmath>
#include <limits>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "kernels/cpu/context.h"
#include "numerics/formats.h"

#if defined(ONELANE_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_SIMD_INL_H_
#undef ONELANE_CPU_SIMD_INL_H_
#else
#define ONELANE_CPU_SIMD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kPad>;
using DU = hn::Rebind<uint32_t, DF>;
using DB = hn::Rebind<uint16_t, DF>;
using VF = hn::Vec<DF>;
using D4 = hn::FixedTag<float, 4>;
using V4 = hn::Vec<D4>;
inline constexpr int N = static_cast<int>(hn::MaxLanes(DF()));

// Doubles of the same width, and as many floats: what widens to them in one instruction.
using DD = hn::Repartition<double, DF>;
using DH = hn::Rebind<float, DD>;
using VD = hn::Vec<DD>;
inline constexpr int L = N / 2;

// Inside every 128-bit block: word[j] are the 32-bit words j of row[0], .. row[3].
HWY_INLINE void TransposeBlocks(const hn::Vec<DU> (&row)[4], hn::Vec<DU>* word) {
  const DU d;
  const hn::Repartition<uint64_t, DU> d64;
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, row[0], row[1]));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, row[2], row[3]));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, row[0], row[1]));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, row[2], row[3]));
  word[0] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
  word[1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
  word[2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
  word[3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
}

// -- bf16
// --------------------------------------------------------------------------------------------------------------

template <class D>
HWY_INLINE hn::Vec<D> LoadBf16(D d, const bf16* p) {
  const hn::Rebind<uint32_t, D> du;
  const hn::Rebind<uint16_t, D> db;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(db, p))));
}

// Bits of float_to_bf16(v), still in the upper half.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint32_t, D>> Bf16Bits([[maybe_unused]] D d, hn::Vec<D> v) {
  const hn::Rebind<uint32_t, D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
}

template <class D>
HWY_INLINE hn::Vec<D> RoundBf16(D d, hn::Vec<D> v) {
  const hn::Rebind<uint32_t, D> du;
  return hn::BitCast(d, hn::And(Bf16Bits(d, v), hn::Set(du, 0xffff0000u)));
}

template <class D>
HWY_INLINE void StoreBf16(D d, hn::Vec<D> v, bf16* p) {
  const hn::Rebind<int32_t, D> di;
  const hn::Rebind<uint16_t, D> db;
  hn::StoreU(hn::DemoteTo(db, hn::BitCast(di, hn::ShiftRight<16>(Bf16Bits(d, v)))), db, p);
}

HWY_INLINE VD WidenBf16(const bf16* p) { return hn::PromoteTo(DD(), LoadBf16(DH(), p)); }
HWY_INLINE VD WidenFloats(const float* p) { return hn::PromoteTo(DD(), hn::LoadU(DH(), p)); }

// `width` bf16 to floats; the rest of the padded row becomes 0.
inline HWY_ATTR void WidenRow(const bf16* x, int width, float* out) {
  const DF d;
  int i = 0;
  for (; i + N <= width; i += N) hn::StoreU(LoadBf16(d, x + i), d, out + i);
  for (; i < width; ++i) out[i] = bf16_to_float(x[i]);
  for (; i < padded(width); ++i) out[i] = 0;
}

// The same, to doubles.
inline HWY_ATTR void WidenRow(const bf16* x, int width, double* out) {
  int i = 0;
  for (; i + L <= width; i += L) hn::StoreU(WidenBf16(x + i), DD(), out + i);
  for (; i < width; ++i) out[i] = bf16_to_float(x[i]);
  for (; i < padded(width); ++i) out[i] = 0;
}

// A padded row of floats to doubles, padding included.
inline HWY_ATTR void WidenRow(const float* x, int width, double* out) {
  for (int i = 0; i < padded(width); i += L) hn::StoreU(WidenFloats(x + i), DD(), out + i);
}

inline HWY_ATTR void NarrowRow(const float* x, int width, bf16* out) {
  const DF d;
  int i = 0;
  for (; i + N <= width; i += N) StoreBf16(d, hn::LoadU(d, x + i), out + i);
  for (; i < width; ++i) out[i] = float_to_bf16(x[i]);
}

// -- sums
// --------------------------------------------------------------------------------------------------------------

using D2 = hn::FixedTag<double, 2>;

template <class D>
HWY_INLINE hn::Vec<D2> AddBlocks([[maybe_unused]] D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 2) {
    return v;
  } else {
    const hn::Half<D> half;
    return AddBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// sums[0..4): over the lanes of a, b, c and e, in this order.
HWY_INLINE void Sum4(VD a, VD b, VD c, VD e, double* sums) {
  const DD d;
  hn::StoreU(AddBlocks(d, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b))), D2(), sums);
  hn::StoreU(AddBlocks(d, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e))), D2(), sums + 2);
}

// The same in float.
template <class D>
HWY_INLINE V4 AddFloatBlocks([[maybe_unused]] D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return AddFloatBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
// Four vectors in one: every 16-byte block holds a part of the sums of a, b, c and e.
HWY_INLINE VF SumPairs(VF a, VF b, VF c, VF e) {
  const DF d;
  const hn::Repartition<uint64_t, DF> d64;
  const auto ab = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce)));
}
HWY_INLINE V4 Sum4(VF a, VF b, VF c, VF e) { return AddFloatBlocks(DF(), SumPairs(a, b, c, e)); }

// Four sums, rounded to float.
HWY_INLINE V4 Narrow4(const double* sums) {
  const hn::Rebind<float, D2> half;
  const auto low = hn::DemoteTo(half, hn::LoadU(D2(), sums));
  return hn::Combine(D4(), hn::DemoteTo(half, hn::LoadU(D2(), sums + 2)), low);
}

HWY_INLINE double Sum(VD v) {
  const DD d;
  return hn::GetLane(hn::SumOfLanes(d, v));
}

HWY_INLINE VD LoadWide(const float* p) { return WidenFloats(p); }
HWY_INLINE VD LoadWide(const double* p) { return hn::LoadU(DD(), p); }

// Sum of squares of a padded row of floats or doubles.
template <class T>
HWY_ATTR double SumSquares(const T* x, int width) {
  const DD d;
  VD a = hn::Zero(d);
  VD b = hn::Zero(d);
  int i = 0;
  for (; i + 2 * L <= padded(width); i += 2 * L) {
    const VD u = LoadWide(x + i);
    const VD v = LoadWide(x + i + L);
    a = hn::MulAdd(u, u, a);
    b = hn::MulAdd(v, v, b);
  }
  return Sum(hn::Add(a, b));
}

// -- functions
// ---------------------------------------------------------------------------------------------------------

// e^x for x <= 0 or NaN, which stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> Exps(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}
HWY_INLINE VD Exp(VD x) { return Exps(DD(), x); }

// A.6 in place on a padded row of floats: x[i] = round(weight[i] * (x[i] * rsqrt(mean(x^2) + eps))); weight null: none.
inline HWY_ATTR void RmsNormRow(float* x, const bf16* weight, int width, float eps) {
  const DF d;
  const auto scale = static_cast<float>(1.0 / std::sqrt(SumSquares(x, width) / width + eps));
  const VF vs = hn::Set(d, scale);
  int i = 0;
  for (; i + N <= width; i += N) {
    VF v = hn::Mul(hn::LoadU(d, x + i), vs);
    if (weight != nullptr) v = hn::Mul(v, LoadBf16(d, weight + i));
    hn::StoreU(RoundBf16(d, v), d, x + i);
  }
  for (; i < width; ++i) {
    const float v = x[i] * scale;
    x[i] = round_bf16(weight != nullptr ? v * bf16_to_float(weight[i]) : v);
  }
}

// Rotates the last 64 of `width` floats and rounds them.
inline HWY_ATTR void RopeRow(float* x, int width, const RopeAngles& angles, bool inverse = false) {
  float* tail = x + width - kRopeDim;
  rotate(tail, angles, inverse);
  const DF d;
  for (int i = 0; i < kRopeDim; i += N) hn::StoreU(RoundBf16(d, hn::LoadU(d, tail + i)), d, tail + i);
}

// The largest magnitude of `width` values, or NaN where one is not finite.
HWY_INLINE float BlockPeak(const float* x, int width) {
  const DF d;
  VF peak = hn::Zero(d);
  auto bad = hn::Lt(peak, peak);  // nothing so far
  const VF largest = hn::Set(d, std::numeric_limits<float>::max());
  for (int i = 0; i < width; i += N) {
    const VF magnitude = hn::Abs(hn::LoadU(d, x + i));
    bad = hn::Or(bad, hn::Not(hn::Le(magnitude, largest)));
    peak = hn::Max(peak, magnitude);
  }
  if (!hn::AllFalse(d, bad)) return std::numeric_limits<float>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(d, peak));
}

// The scale of a block of A.1 by its peak.
inline uint8_t Fp8Scale(float peak) {
  return std::isnan(peak) ? kE8m0Nan : ceil_e8m0(std::max(peak, 1e-4f) * (1.0f / kE4m3Max));
}

// Magnitudes up to 448 to e4m3: a value as a float whose last bits are 0 (normal), or times 2^9 in the last bits
// (subnormal).
struct E4m3Magnitude {
  hn::Vec<DU> normal;
  VF shifted;
  hn::Mask<DF> is_subnormal;
};
inline constexpr float kE4m3Shift = 0x1p14f;  // its last bit is 2^-9, the step of e4m3's subnormals
HWY_INLINE E4m3Magnitude RoundE4m3(VF magnitude) {
  const DF d;
  const DU du;
  const auto bits = hn::BitCast(du, magnitude);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1u));
  const auto up = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7ffffu)));
  return {hn::And(up, hn::Set(du, 0xfff00000u)), hn::Add(magnitude, hn::Set(d, kE4m3Shift)),
          hn::Lt(magnitude, hn::Set(d, 0x1p-6f))};
}

// One block of A.1 in place: the values become code * scale. The largest magnitude decides the scale; a NaN or an
// infinity makes the whole block NaN.
inline HWY_ATTR void QuantiseBlock(float* x, int width) {
  const DF d;
  const uint8_t code = Fp8Scale(BlockPeak(x, width));
  if (code == kE8m0Nan) {
    for (int i = 0; i < width; i += N) {
      hn::StoreU(hn::Set(d, std::numeric_limits<float>::quiet_NaN()), d, x + i);
    }
    return;
  }
  const VF scale = hn::Set(d, e8m0_to_float(code));
  const VF inverse = hn::Set(d, e8m0_to_float(static_cast<uint8_t>(254 - code)));
  for (int i = 0; i < width; i += N) {
    const VF v = hn::Mul(hn::LoadU(d, x + i), inverse);
    const E4m3Magnitude q = RoundE4m3(hn::Min(hn::Abs(v), hn::Set(d, kE4m3Max)));
    const VF small = hn::Sub(q.shifted, hn::Set(d, kE4m3Shift));
    const VF rounded = hn::IfThenElse(q.is_subnormal, small, hn::BitCast(d, q.normal));
    hn::StoreU(hn::CopySign(hn::Mul(rounded, scale), v), d, x + i);
  }
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
