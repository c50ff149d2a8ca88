// The best of many scores: ties to the lower number, ascending, independent of how the scores were found.
#include "kernels/cpu/targets.h"
//
#include "kernels/cpu/simd-inl.h"

#if defined(ONELANE_CPU_SELECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_SELECT_INL_H_
#undef ONELANE_CPU_SELECT_INL_H_
#else
#define ONELANE_CPU_SELECT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

using DI = hn::Rebind<int32_t, DF>;

// How many of `count` keys are at least `least`; keys are padded with INT32_MIN.
inline HWY_ATTR int CountAtLeast(const int32_t* keys, int count, int32_t least) {
  const DI d;
  const auto bound = hn::Set(d, least - 1);  // least is never the smallest integer
  auto total = hn::Zero(d);
  for (int i = 0; i < count; i += N) {
    total = hn::Add(total, hn::VecFromMask(d, hn::Gt(hn::Load(d, keys + i), bound)));
  }
  return -hn::GetLane(hn::SumOfLanes(d, total));  // a true lane is -1
}

// Calls visit(number) for the min(best, count) best scores in ascending order of number. `scores` holds no NaN;
// `keys`: padded(count) integers of scratch, aligned to 64 bytes. Finds the key of the last one taken bit by bit.
template <class Visit>
HWY_INLINE void SelectBest(const float* scores, int count, int best, int32_t* keys, const Visit& visit) {
  if (best >= count) {
    for (int i = 0; i < count; ++i) visit(i);
    return;
  }
  if (best <= 0) return;
  // Signed integers in the order of the floats; adding 0 makes -0 equal to 0.
  for (int i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<int32_t>(scores[i] + 0.0f);
    keys[i] = bits >= 0 ? bits : bits ^ std::numeric_limits<int32_t>::max();
  }
  // Padding is below every score, -inf included.
  for (int i = count; i < padded(count); ++i) keys[i] = std::numeric_limits<int32_t>::min();

  uint32_t found = 0;  // biased by 2^31
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t tried = found | (1u << bit);
    const int above = CountAtLeast(keys, count, static_cast<int32_t>(tried ^ 0x80000000u));
    if (above >= best) found = tried;
    if (above == best) break;
  }
  const auto last = static_cast<int32_t>(found ^ 0x80000000u);
  const int better = last == std::numeric_limits<int32_t>::max() ? 0 : CountAtLeast(keys, count, last + 1);
  int ties = best - better;
  const DI d;
  const auto bound = hn::Set(d, last - 1);
  for (int i = 0; i < count; i += N) {
    if (hn::AllFalse(d, hn::Gt(hn::Load(d, keys + i), bound))) continue;
    for (int j = i; j < std::min(i + N, count); ++j) {
      if (keys[j] > last || (keys[j] == last && ties-- > 0)) visit(j);
    }
  }
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
