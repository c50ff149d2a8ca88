// Four weight rows of a stored matrix, expanded in registers: e4m3 through the half float format, e2m1 by a byte table.
// The scale of a block is a power of two, so the expanded value is exact.
#include "kernels/cpu/targets.h"
//
#include <hwy/cache_control.h>

#include "kernels/cpu/records-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/tables.h"

#if defined(ONELANE_CPU_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_WEIGHTS_INL_H_
#undef ONELANE_CPU_WEIGHTS_INL_H_
#else
#define ONELANE_CPU_WEIGHTS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

using VH = hn::Vec<DH>;
inline constexpr int kOutputs = 4;  // of a tile
inline constexpr int kWeightBlock = 32;

struct Fp8Rows {
  static constexpr int kStep = kWeightBlock;
  static constexpr int kBits = 8;  // of a stored weight
  const uint8_t* row[kOutputs];
  const uint8_t* scale;  // shared: an aligned group of 4 outputs lies in one scale tile
  int block_shift;

  HWY_INLINE Fp8Rows(const Matrix& w, const int* outputs) {
    const auto* data = reinterpret_cast<const uint8_t*>(w.data);
    for (int c = 0; c < kOutputs; ++c) row[c] = data + offset(outputs[c], w.in);
    block_shift = w.block == 32 ? 5 : 7;  // a division per tile would cost as much as half of a short row
    scale = w.scale + offset(outputs[0] >> block_shift, (w.in + w.block - 1) >> block_shift);
  }
  template <class D>
  HWY_INLINE void Scales(D d, int k, hn::Vec<D>* scales) const {
    scales[0] = hn::Set(d, kFp8WeightScale[scale[k >> block_shift]]);
    for (int c = 1; c < kOutputs; ++c) scales[c] = scales[0];
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int c, int k, hn::Vec<D> scaled) const {
    return hn::Mul(LoadE4m3(d, row[c] + k), scaled);
  }
  // The same by shift and mask, where ShiftedScale() is not 0: it is cheaper, but not for codes that are subnormal.
  HWY_INLINE float ShiftedScale(int k) const {
    const uint8_t code = scale[k >> block_shift];
    return E4m3Shifts(code) ? kFp8WeightScale[code] * (kShiftedE4m3 / 256) : 0;
  }
  HWY_INLINE VF LoadShifted(int c, int k, VF scaled) const { return hn::Mul(ShiftE4m3(DF(), row[c] + k), scaled); }
};

struct Fp4Rows {
  static constexpr int kStep = kWeightBlock;
  static constexpr int kBits = 4;
  const uint8_t* row[kOutputs];
  const uint8_t* scale[kOutputs];

  HWY_INLINE Fp4Rows(const Matrix& w, const int* outputs) {
    const auto* data = reinterpret_cast<const uint8_t*>(w.data);
    for (int c = 0; c < kOutputs; ++c) {
      row[c] = data + offset(outputs[c], w.in / 2);
      scale[c] = w.scale + offset(outputs[c], w.in / kWeightBlock);
    }
  }
  template <class D>
  HWY_INLINE void Scales(D d, int k, hn::Vec<D>* scales) const {
    for (int c = 0; c < kOutputs; ++c) scales[c] = hn::Set(d, kFp4WeightScale[scale[c][k / kWeightBlock]]);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int c, int k, hn::Vec<D> scaled) const {
    return hn::Mul(LoadE2m1(d, row[c] + k / 2), scaled);
  }
#if HWY_TARGET == HWY_AVX3
  HWY_INLINE VF Load(DF d, int c, int k, VF scaled) const {
    const DU du;
    alignas(64) static constexpr float kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    uint32_t eight[2];
    std::memcpy(eight, row[c] + k / 2, sizeof(eight));
    const auto shift = hn::ShiftLeft<2>(hn::And(hn::Iota(du, 0), hn::Set(du, 7u)));
    const auto codes = hn::Shr(hn::ConcatUpperLower(du, hn::Set(du, eight[1]), hn::Set(du, eight[0])), shift);
    // The instruction that looks up takes the lowest four bits only.
    return hn::Mul(hn::TableLookupLanes(hn::Load(d, kTwice), hn::Indices512<float>{codes.raw}), scaled);
  }
#endif
};

struct Bf16Rows {
  static constexpr int kStep = L;
  static constexpr int kBits = 16;
  const bf16* row[kOutputs];

  Bf16Rows() = default;
  HWY_INLINE Bf16Rows(const Matrix& w, const int* outputs) {
    const auto* data = reinterpret_cast<const bf16*>(w.data);
    for (int c = 0; c < kOutputs; ++c) row[c] = data + offset(outputs[c], w.in);
  }
  template <class D>
  HWY_INLINE void Scales(D, int, hn::Vec<D>*) const {}
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int c, int k, hn::Vec<D>) const {
    return LoadBf16(d, row[c] + k);
  }
  HWY_INLINE VD LoadTail(int c, int k, int count) const {
    alignas(64) bf16 values[L] = {};
    for (int i = 0; i < count; ++i) values[i] = row[c][k + i];
    return WidenBf16(values);
  }
};

// Rows of floats or doubles: mixing weights and panels.
template <class T>
struct PlainRows {
  static constexpr int kStep = L;
  const T* row[kOutputs];

  template <class D>
  HWY_INLINE void Scales(D, int, hn::Vec<D>*) const {}
  template <class D>
  HWY_INLINE auto Load(D, int c, int k, hn::Vec<D>) const {
    return hn::LoadU(hn::Rebind<T, D>(), row[c] + k);
  }
  HWY_INLINE VD LoadTail(int c, int k, int count) const {
    alignas(64) T values[L] = {};
    for (int i = 0; i < count; ++i) values[i] = row[c][k + i];
    return LoadWide(values);
  }
};

// Asks for the four rows behind these: weights come from the third-level cache, and while many rows of activations pass
// nothing else reads ahead.
template <class Rows>
HWY_INLINE void PrefetchNext(const Rows& w, int width) {
  const int bytes = width * Rows::kBits / 8;
  const auto* next = reinterpret_cast<const uint8_t*>(w.row[kOutputs - 1]) + bytes;
  for (int i = 0; i < kOutputs * bytes; i += 64) hwy::Prefetch(next + i);
}

HWY_INLINE VD Widen(VH v) { return hn::PromoteTo(DD(), v); }
HWY_INLINE VD Widen(VD v) { return v; }

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
