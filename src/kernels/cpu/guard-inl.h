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
  VD acc[2] = {hn::Zero(DD()), hn::Zero(DD())};  // one chain would wait for every sum
  VH scales[kOutputs];
  for (VH& scale : scales) scale = hn::Zero(DH());
  for (int k = 0; k < width; k += kWeightBlock) {
    w.Scales(DH(), k, scales);
    for (int i = k; i < k + kWeightBlock; i += 2 * L) {
      acc[0] = hn::MulAdd(LoadWide(x + i), Widen(w.Load(DH(), c, i, scales[c])), acc[0]);
      acc[1] = hn::MulAdd(LoadWide(x + i + L), Widen(w.Load(DH(), c, i + L, scales[c])), acc[1]);
    }
  }
  return static_cast<float>(Sum(hn::Add(acc[0], acc[1])));
}

// What the exact sums round to as bf16, where `sums`, off by less than `error`, settle that; elsewhere, and where there
// is a NaN, what closer(lane, sum) rounds to. A lane is settled when all of its range rounds to the same bf16. The ends
// of the range are rounded half up: whether an end itself would go to an even neighbour below does not matter.
template <class D, class Closer>
HWY_INLINE hn::Vec<D> Settle(D d, hn::Vec<D> sums, hn::Vec<D> error, const Closer& closer) {
  const hn::Rebind<uint32_t, D> du;
  const auto upper = hn::Set(du, 0xffff0000u);
  const auto half = hn::Set(du, 0x8000u);
  const auto low = hn::Sub(sums, error);
  const auto rounded = hn::Add(hn::BitCast(du, low), half);
  const auto differ = hn::Xor(rounded, hn::Add(hn::BitCast(du, hn::Add(sums, error)), half));
  const auto open = hn::Or(hn::RebindMask(d, hn::Ne(hn::And(differ, upper), hn::Zero(du))), hn::IsNaN(low));
  const auto settled = hn::BitCast(d, hn::And(rounded, upper));
  if (hn::AllFalse(d, open)) return settled;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  alignas(64) float before[kLanes];
  alignas(64) float lanes[kLanes];
  hn::Store(sums, d, before);
  hn::Store(settled, d, lanes);
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, open, bytes);
  for (uint32_t bits = bytes[0] | uint32_t{bytes[1]} << 8; bits != 0; bits &= bits - 1) {
    const int lane = std::countr_zero(bits);
    lanes[lane] = round_bf16(closer(lane, before[lane]));
  }
  return hn::Load(d, lanes);
}

// Whether everything less than `error` away from `sum` rounds to the same bf16.
HWY_INLINE bool IsSettled(float sum, float error) {
  const float low = sum - error;
  const uint32_t differ = (std::bit_cast<uint32_t>(low) + 0x8000u) ^ (std::bit_cast<uint32_t>(sum + error) + 0x8000u);
  return differ >> 16 == 0 && !std::isnan(low);
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
