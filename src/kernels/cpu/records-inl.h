// Cached records to bf16 or float, in registers (formats in numerics/records.h). Exact: a code times its scale fits a
// bf16.
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

// N decoded values, as bf16 or as the floats that those are.
HWY_INLINE void StoreDecoded(VF v, bf16* out) { StoreBf16(DF(), v, out); }
HWY_INLINE void StoreDecoded(VF v, float* out) { hn::StoreU(v, DF(), out); }

// `width` e4m3 codes with one e8m0 scale per `block`.
template <class T>
inline HWY_ATTR void DecodeFp8(const uint8_t* codes, const uint8_t* scales, int width, int block, T* out) {
  const DF d;
  for (int begin = 0; begin < width; begin += block) {
    const uint8_t code = scales[begin / block];
    const VF scale = hn::Set(d, e8m0_to_float(code));
    if (code > 24 && code < 240) {  // neither a factor nor a product comes near the ends of the range
      const VF factor = hn::Mul(scale, hn::Set(d, 256.0f));
      for (int i = begin; i < begin + block; i += N) StoreDecoded(hn::Mul(LoadE4m3(d, codes + i), factor), out + i);
      continue;
    }
    for (int i = begin; i < begin + block; i += N) {
      StoreDecoded(RoundBf16(d, hn::Mul(hn::Mul(LoadE4m3(d, codes + i), hn::Set(d, 256.0f)), scale)), out + i);
    }
  }
}

// 32 e2m1 codes in two blocks with e4m3 scales.
template <class T>
HWY_INLINE void DecodeFp4(const uint8_t* packed, const uint8_t* scales, T* out) {
  const DF d;
  const VF scale[2] = {hn::Set(d, e4m3_to_float(scales[0])), hn::Set(d, e4m3_to_float(scales[1]))};
#if HWY_TARGET == HWY_AVX3
  const DU du;
  const hn::Repartition<uint8_t, DF> d8;
  alignas(64) static constexpr float kValue[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                                   -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const VF table = hn::Load(d, kValue);
  // Byte i / 2 into lane i; the instruction that looks up takes the lowest four bits only.
  const auto lane = hn::Iota(du, 0);
  const auto byte = hn::Or(hn::ShiftRight<1>(lane), hn::Set(du, 0x80808000u));
  const auto shift = hn::ShiftLeft<2>(hn::And(lane, hn::Set(du, 1u)));
  const auto bytes = hn::LoadDup128(d8, packed);
  for (uint32_t half = 0; half < 2; ++half) {
    const auto at = hn::BitCast(d8, hn::Add(byte, hn::Set(du, 8 * half)));
    const auto codes = hn::Shr(hn::BitCast(du, hn::TableLookupBytesOr0(bytes, at)), shift);
    const VF value = hn::TableLookupLanes(table, hn::Indices512<float>{codes.raw});
    StoreDecoded(hn::Mul(value, scale[half]), out + 16 * half);
  }
#else
  for (int i = 0; i < 32; i += N) {
    const VF halved = hn::Mul(scale[i / 16], hn::Set(d, 0.5f));
    StoreDecoded(hn::Mul(LoadE2m1(d, packed + i / 2), halved), out + i);
  }
#endif
}

inline constexpr int kChannels = 64;  // of a record decoded at a time: the rope part is one such
static_assert(kHeadDim % kChannels == 0 && kRopeDim == kChannels);

// Values [at, at + kChannels) of a key-value record, as bf16 or as floats.
template <class T>
HWY_INLINE void DecodeChannels(RecordFormat format, const uint8_t* data, const uint8_t* scales, int at, T* out) {
  switch (format) {
    case RecordFormat::kV4Fp8: {
      if (at + kChannels < kHeadDim) return DecodeFp8(data + at, scales + at / 64, kChannels, 64, out);
      alignas(64) bf16 tail[kRopeDim];
      std::memcpy(tail, data + at, sizeof(tail));
      for (int i = 0; i < kRopeDim; i += N) StoreDecoded(LoadBf16(DF(), tail + i), out + i);
      return;
    }
    case RecordFormat::kV41Fp8:
      return DecodeFp8(data + at, scales + at / 32, kChannels, 32, out);
    case RecordFormat::kV41Nvfp4:
      DecodeFp4(data + at / 2, scales + at / 16, out);
      return DecodeFp4(data + at / 2 + 16, scales + at / 16 + 2, out + 32);
    case RecordFormat::kIndexMxfp4:
      ONELANE_CHECK(false, "an index key is no key-value record");
  }
}

// The 512 values of a key-value record.
template <class T>
inline HWY_ATTR void DecodeRecord(RecordFormat format, const uint8_t* data, const uint8_t* scales, T* out) {
  for (int at = 0; at < kHeadDim; at += kChannels) DecodeChannels(format, data, scales, at, out + at);
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
