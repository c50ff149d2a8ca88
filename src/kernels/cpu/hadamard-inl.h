// The Walsh-Hadamard transform of index queries and keys of V4 (spec/model.md 3.4).
#include "kernels/cpu/targets.h"
//
#include "kernels/cpu/simd-inl.h"

#if defined(ONELANE_CPU_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_HADAMARD_INL_H_
#undef ONELANE_CPU_HADAMARD_INL_H_
#else
#define ONELANE_CPU_HADAMARD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

// In place on 128 values: butterflies of stride 1, 2, ... 64 in float, then times 128^-0.5, rounded. EXACT, so the
// order of the strides stays as written even where another would suit the lanes better.
inline HWY_ATTR void Hadamard(float* x) {
  const DF d;
  for (int stride = 1; stride < N; stride *= 2) {
    for (int i = 0; i < kIndexDim; i += 2 * stride) {
      for (int j = i; j < i + stride; ++j) {
        const float a = x[j];
        const float b = x[j + stride];
        x[j] = a + b;
        x[j + stride] = a - b;
      }
    }
  }
  for (int stride = N; stride < kIndexDim; stride *= 2) {
    for (int i = 0; i < kIndexDim; i += 2 * stride) {
      for (int j = i; j < i + stride; j += N) {
        const VF a = hn::LoadU(d, x + j);
        const VF b = hn::LoadU(d, x + j + stride);
        hn::StoreU(hn::Add(a, b), d, x + j);
        hn::StoreU(hn::Sub(a, b), d, x + j + stride);
      }
    }
  }
  const VF scale = hn::Set(d, static_cast<float>(1.0 / std::sqrt(static_cast<double>(kIndexDim))));
  for (int i = 0; i < kIndexDim; i += N) hn::StoreU(RoundBf16(d, hn::Mul(hn::LoadU(d, x + i), scale)), d, x + i);
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
