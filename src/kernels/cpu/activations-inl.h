// Rows of activations in the form that products take.
#include "kernels/cpu/targets.h"
//
#include "kernels/cpu/simd-inl.h"

#if defined(ONELANE_CPU_ACTIVATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_ACTIVATIONS_INL_H_
#undef ONELANE_CPU_ACTIVATIONS_INL_H_
#else
#define ONELANE_CPU_ACTIVATIONS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

// Relative error bounds in units of 2^-24: products of a row, one vector after the other, go through as many roundings
// as vectors follow, and through four when the lanes are added. So the error of a product with w is at most 2^-24 times
// the sum of |c x| |w|, that is, |c x| |w| in norms (Cauchy-Schwarz). Returns |c x|.
inline HWY_ATTR float ErrorNorm(const float* x, int width) {
  const DD d;
  VD sum = hn::Zero(d);
  for (int i = 0; i < width; i += L) {
    const VD v = hn::Mul(WidenFloats(x + i), hn::Set(d, (padded(width) - i) / N + 4));
    sum = hn::MulAdd(v, v, sum);
  }
  return static_cast<float>(std::sqrt(Sum(sum)));
}

// Instead of a block: as they are, in the form of quantised ones. Matrices are asked with this `act_block` too.
inline constexpr int kAsFloats = -1;

// A row of activations as a product takes it. Quantised in blocks of `block`, or kAsFloats: floats (half of `out`) and
// behind the padded row four times their ErrorNorm. Not quantised (`block` 0): doubles.
inline HWY_ATTR void ActivationRow(const bf16* x, int width, int block, double* out) {
  if (block == 0) return WidenRow(x, width, out);
  auto* values = reinterpret_cast<float*>(out);
  WidenRow(x, width, values);
  if (block > 0) {
    for (int i = 0; i < width; i += block) QuantiseBlock(values + i, std::min(block, padded(width) - i));
  }
  std::fill_n(values + padded(width), 4, ErrorNorm(values, width));
}

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

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
