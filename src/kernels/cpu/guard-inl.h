// Sums in float that round to the bf16 that the exact sums round to: with a bound on their error, and in double where a
// rounding boundary lies within it.
#include "kernels/cpu/targets.h"
//
#include "kernels/cpu/weights-inl.h"

#if defined(ONELANE_CPU_GUARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_GUARD_INL_H_
#undef ONELANE_CPU_GUARD_INL_H_
#else
#define ONELANE_CPU_GUARD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

// The dot product of a row of activations with weight row c, in double, rounded to float.
template <class Rows, class T>
HWY_NOINLINE float ExactSum(const Rows& w, int c, int width, const T* x) {
  VD acc = hn::Zero(DD());
  VH scales[kOutputs];
  for (VH& scale : scales) scale = hn::Zero(DH());
  for (int k = 0; k < width; k += kWeightBlock) {
    w.Scales(DH(), k, scales);
    for (int i = k; i < k + kWeightBlock; i += L) {
      acc = hn::MulAdd(LoadWide(x + i), Widen(w.Load(DH(), c, i, scales[c])), acc);
    }
  }
  alignas(64) double sums[kOutputs];
  Sum4(acc, acc, acc, acc, sums);
  return static_cast<float>(sums[0]);
}

// Where everything less than `error` away from `sums` rounds to the same bf16. The ends of the range are rounded half
// up: whether an end itself would go to an even neighbour below does not matter.
HWY_INLINE auto Settled(V4 sums, V4 error) {
  const D4 d;
  const hn::Rebind<uint32_t, D4> du;
  const V4 low = hn::Sub(sums, error);
  const auto half = hn::Set(du, 0x8000u);
  const auto differ =
      hn::Xor(hn::Add(hn::BitCast(du, low), half), hn::Add(hn::BitCast(du, hn::Add(sums, error)), half));
  return hn::And(hn::RebindMask(d, hn::Eq(hn::ShiftRight<16>(differ), hn::Zero(du))), hn::Eq(low, low));
}

// `sums`, off by less than `error`, where that settles what they round to; elsewhere, and where there is a NaN,
// closer(c, sum). Everything is right once rounded to bf16.
template <class Closer>
HWY_INLINE V4 Settle(V4 sums, V4 error, const Closer& closer) {
  const D4 d;
  const auto settled = Settled(sums, error);
  if (hn::AllTrue(d, settled)) return sums;
  alignas(16) float lanes[kOutputs];
  alignas(16) float flags[kOutputs];
  hn::Store(sums, d, lanes);
  hn::Store(hn::IfThenElseZero(settled, hn::Set(d, 1.0f)), d, flags);
  for (int c = 0; c < kOutputs; ++c) {
    if (flags[c] == 0) lanes[c] = closer(c, lanes[c]);
  }
  return hn::Load(d, lanes);
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
