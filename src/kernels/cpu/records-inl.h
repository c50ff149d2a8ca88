// Cached records to bf16, in registers (formats in numerics/records.h). Exact: a code times its scale fits a bf16.
#include "kernels/cpu/targets.h"
//
#include "kernels/cpu/simd-inl.h"

#if defined(ONELANE_CPU_RECORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_RECORDS_INL_H_
#undef ONELANE_CPU_RECORDS_INL_H_
#else
#define ONELANE_CPU_RECORDS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

// e4m3 codes, one a lane, as half floats give 2^-8 of their value. The encoder writes the NaN code only under a NaN
// scale.
template <class D>
HWY_INLINE hn::Vec<D> LoadE4m3(D d, const uint8_t* codes) {
  const hn::Rebind<int8_t, D> d8;
  const hn::Rebind<int16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> dh;
  const auto code = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes)));
  const auto half = hn::And(hn::ShiftLeft<7>(code), hn::Set(d16, static_cast<int16_t>(0xbf80)));
  return hn::PromoteTo(d, hn::BitCast(dh, half));
}

// e2m1 codes, one a lane, two in a byte with the even one low, doubled.
template <class D>
HWY_INLINE hn::Vec<D> LoadE2m1(D d, const uint8_t* packed) {
  const hn::CappedTag<uint8_t, hn::MaxLanes(D()) / 2> d8h;
  const hn::Rebind<uint16_t, decltype(d8h)> d16;
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  const hn::Rebind<int8_t, D> di8;
  const hn::Rebind<int32_t, D> di32;
  alignas(16) static constexpr uint8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, 255, 254, 253, 252, 250, 248, 244};
  const auto table = hn::Load(hn::FixedTag<uint8_t, 16>(), kTwice);
  const auto pairs = hn::PromoteTo(d16, hn::LoadU(d8h, packed));
  const auto nibbles = hn::And(hn::Or(pairs, hn::ShiftLeft<4>(pairs)), hn::Set(d16, uint16_t{0x0f0f}));
  const auto twice = hn::BitCast(di8, hn::TableLookupBytes(table, hn::BitCast(d8, nibbles)));
  return hn::ConvertTo(d, hn::PromoteTo(di32, twice));
}

// `width` e4m3 codes with one e8m0 scale per `block`.
inline HWY_ATTR void DecodeFp8(const uint8_t* codes, const uint8_t* scales, int width, int block, bf16* out) {
  const DF d;
  for (int begin = 0; begin < width; begin += block) {
    const VF scale = hn::Set(d, e8m0_to_float(scales[begin / block]));
    for (int i = begin; i < begin + block; i += N) {
      // Not one factor 256 * scale: that overflows where the product with the code does not.
      StoreBf16(d, hn::Mul(hn::Mul(LoadE4m3(d, codes + i), hn::Set(d, 256.0f)), scale), out + i);
    }
  }
}

// The 512 values of a key-value record.
inline HWY_ATTR void DecodeRecord(RecordFormat format, const uint8_t* data, const uint8_t* scales, bf16* out) {
  const DF d;
  switch (format) {
    case RecordFormat::kV4Fp8:
      DecodeFp8(data, scales, kHeadDim - kRopeDim, 64, out);
      std::memcpy(out + kHeadDim - kRopeDim, data + kHeadDim - kRopeDim, kRopeDim * sizeof(bf16));
      return;
    case RecordFormat::kV41Fp8:
      return DecodeFp8(data, scales, kHeadDim, 32, out);
    case RecordFormat::kV41Nvfp4:
      for (int block = 0; block < kHeadDim / 16; ++block) {
        const VF scale = hn::Set(d, e4m3_to_float(scales[block]) * 0.5f);
        for (int i = 16 * block; i < 16 * (block + 1); i += N) {
          StoreBf16(d, hn::Mul(LoadE2m1(d, data + i / 2), scale), out + i);
        }
      }
      return;
    case RecordFormat::kIndexMxfp4:
      ONELANE_CHECK(false, "an index key is no key-value record");
  }
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
