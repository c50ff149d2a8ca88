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

// Relative error bounds in units of 2^-24: the error of a sum of products is at most 2^-24 times the sum of |c x| |w|,
// c the roundings that a product goes through, that is, |c x| |w| in norms (Cauchy-Schwarz). Both norms |c x| of a row:
// kTileNorm: products one vector after the other go through as many roundings as vectors follow, and through four when
// the lanes are added. kLaneNorm: an output per lane, in chains of kLaneChain inputs; those of kLaneSpan inputs are
// added up, then these sums; one rounding is for the ends of the range.
inline constexpr int kLaneChain = 16;
inline constexpr int kLaneSpan = 64;
inline constexpr int kTileNorm = 0;  // four times, floats behind the padded row
inline constexpr int kLaneNorm = 4;
inline HWY_ATTR void ErrorNorms(const float* x, int width, float* norms) {
  const DD d;
  VD tile = hn::Zero(d);
  VD lane = hn::Zero(d);
  const int spans = (padded(width) + kLaneSpan - 1) / kLaneSpan;
  for (int i = 0; i < width; i += L) {
    const VD v = WidenFloats(x + i);
    const VD by_tile = hn::Mul(v, hn::Set(d, (padded(width) - i) / N + 4));
    const int sums = (kLaneSpan - i % kLaneSpan + kLaneChain - 1) / kLaneChain + spans - i / kLaneSpan + 1;
    const VD by_lane = hn::Mul(v, hn::Sub(hn::Set(d, kLaneChain - i % kLaneChain + sums), hn::Iota(d, 0)));
    tile = hn::MulAdd(by_tile, by_tile, tile);
    lane = hn::MulAdd(by_lane, by_lane, lane);
  }
  std::fill_n(norms + kTileNorm, 4, static_cast<float>(std::sqrt(Sum(tile))));
  norms[kLaneNorm] = static_cast<float>(std::sqrt(Sum(lane)));
}

// Instead of a block: as they are, in the form of quantised ones. Matrices are asked with this `act_block` too.
inline constexpr int kAsFloats = -1;

// A row of activations as a product takes it. Quantised in blocks of `block`, or kAsFloats: floats (half of `out`) and
// behind the padded row their ErrorNorms. Not quantised (`block` 0): doubles.
inline HWY_ATTR void ActivationRow(const bf16* x, int width, int block, double* out) {
  if (block == 0) return WidenRow(x, width, out);
  auto* values = reinterpret_cast<float*>(out);
  WidenRow(x, width, values);
  if (block > 0) {
    for (int i = 0; i < width; i += block) QuantiseBlock(values + i, std::min(block, padded(width) - i));
  }
  ErrorNorms(values, width, values + padded(width));
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

// What a value costs to quantise, in multiply-adds of work.
inline constexpr int kQuantiseWork = 12;

// Rows [count, width] of bf16 in the form that a product takes.
inline HWY_ATTR Activations MakeActivations(Context& context, const bf16* x, int count, int width, int block,
                                            size_t slot = kRowSlot) {
  const Activations made = ActivationSpace(context, count, width, slot);
  context.parallel(count, 1, int64_t{count} * width * kQuantiseWork, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) {
      ActivationRow(x + offset(row, width), width, block, made.data + offset(row, padded(width)));
    }
  });
  return made;
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
