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

// The same by shift and mask: where a float has its exponent and mantissa a code is 1 / kShiftedE4m3 of its value. The
// few that are subnormal there cost more than others, but not as much as going through half floats costs all.
inline constexpr float kShiftedE4m3 = 0x1p120f;
template <class D>
HWY_INLINE hn::Vec<D> ShiftE4m3(D d, const uint8_t* codes) {
  const hn::Rebind<int8_t, D> d8;
  const hn::Rebind<int32_t, D> di;
  const hn::Rebind<uint32_t, D> du;
  const auto signs = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes)));
  return hn::BitCast(d, hn::And(hn::ShiftLeft<20>(hn::BitCast(du, signs)), hn::Set(du, 0x87f00000u)));
}
// Whether neither kShiftedE4m3 times the scale of this code nor a product with it comes near the ends of the range.
inline constexpr int kBelowShifted = 24;
inline constexpr int kAboveShifted = 130;
inline bool E4m3Shifts(uint8_t code) { return code > kBelowShifted && code < kAboveShifted; }

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
    if (E4m3Shifts(code)) {
      const VF factor = hn::Mul(scale, hn::Set(d, kShiftedE4m3));
      for (int i = begin; i < begin + block; i += N) {
        StoreDecoded(hn::Mul(ShiftE4m3(d, codes + i), factor), out + i);
      }
      continue;
    }
    for (int i = begin; i < begin + block; i += N) {
      StoreDecoded(RoundBf16(d, hn::Mul(hn::Mul(LoadE4m3(d, codes + i), hn::Set(d, 256.0f)), scale)), out + i);
    }
  }
}

// 32 e2m1 codes in two blocks.
HWY_INLINE void DecodeFp4(const uint8_t* packed, const float* scales, float* out) {
  const DF d;
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
    hn::StoreU(hn::Mul(value, hn::Set(d, scales[half])), d, out + 16 * half);
  }
#else
  for (int i = 0; i < 32; i += N) {
    const VF halved = hn::Set(d, scales[i / 16] * 0.5f);
    hn::StoreU(hn::Mul(LoadE2m1(d, packed + i / 2), halved), d, out + i);
  }
#endif
}

inline constexpr int kChannels = 64;  // of a record decoded at a time: the rope part is one such
static_assert(kHeadDim % kChannels == 0 && kRopeDim == kChannels);

// Values [at, at + kChannels) of a key-value record.
HWY_INLINE void DecodeChannels(RecordFormat format, const uint8_t* data, const uint8_t* scales, int at, float* out) {
  switch (format) {
    case RecordFormat::kV4Fp8: {
      if (at + kChannels < kHeadDim) return DecodeFp8(data + at, scales + at / 64, kChannels, 64, out);
      alignas(64) bf16 tail[kRopeDim];
      std::memcpy(tail, data + at, sizeof(tail));
      for (int i = 0; i < kRopeDim; i += N) hn::StoreU(LoadBf16(DF(), tail + i), DF(), out + i);
      return;
    }
    case RecordFormat::kV41Fp8:
      return DecodeFp8(data + at, scales + at / 32, kChannels, 32, out);
    case RecordFormat::kV41Nvfp4: {
      float factor[kChannels / 16];
      for (int i = 0; i < kChannels / 16; ++i) factor[i] = e4m3_to_float(scales[at / 16 + i]);
      for (int i = 0; i < kChannels; i += 32) DecodeFp4(data + (at + i) / 2, factor + i / 16, out + i);
      return;
    }
    case RecordFormat::kIndexMxfp4:
      ONELANE_CHECK(false, "an index key is no key-value record");
  }
}

// The 512 values of a key-value record.
inline HWY_ATTR void DecodeRecord(RecordFormat format, const uint8_t* data, const uint8_t* scales, float* out) {
  for (int at = 0; at < kHeadDim; at += kChannels) DecodeChannels(format, data, scales, at, out + at);
}

// The same in parts of kChannels, `stride` floats apart, with the scales taken together.
inline HWY_ATTR void DecodeParts(RecordFormat format, const uint8_t* data, const uint8_t* scales, size_t stride,
                                 float* out) {
  const DF d;
  const hn::Rebind<int32_t, DF> di;
  const hn::Rebind<uint8_t, DF> d8;
  alignas(64) float factor[kHeadDim / 16];
  bool together = format == RecordFormat::kV41Nvfp4 || format == RecordFormat::kV41Fp8;
  if (format == RecordFormat::kV41Nvfp4) {
    for (int i = 0; i < kHeadDim / 16; i += N) {
      const auto nan = hn::Set(d8, uint8_t{kE4m3Nan});
      together = together && hn::AllFalse(d8, hn::Eq(hn::And(hn::LoadU(d8, scales + i), nan), nan));
      hn::Store(hn::Mul(ShiftE4m3(d, scales + i), hn::Set(d, kShiftedE4m3)), d, factor + i);
    }
  } else if (format == RecordFormat::kV41Fp8) {
    for (int i = 0; i < kHeadDim / 32; i += N) {
      const auto code = hn::PromoteTo(di, hn::LoadU(d8, scales + i));
      const auto usual = hn::And(hn::Gt(code, hn::Set(di, kBelowShifted)), hn::Lt(code, hn::Set(di, kAboveShifted)));
      together = together && hn::AllTrue(di, usual);
      hn::Store(hn::Mul(hn::BitCast(d, hn::ShiftLeft<23>(code)), hn::Set(d, kShiftedE4m3)), d, factor + i);
    }
  }
  for (int at = 0; at < kHeadDim; at += kChannels, out += stride) {
    if (!together) {
      DecodeChannels(format, data, scales, at, out);
    } else if (format == RecordFormat::kV41Nvfp4) {
      for (int i = 0; i < kChannels; i += 32) DecodeFp4(data + (at + i) / 2, factor + (at + i) / 16, out + i);
    } else {
      for (int i = 0; i < kChannels; i += N) {
        hn::StoreU(hn::Mul(ShiftE4m3(d, data + at + i), hn::Set(d, factor[(at + i) / 32])), d, out + i);
      }
    }
  }
}

// -- encoding
// ------------------------------------------------------------------------------------------------------

// What numerics/quantize.h says of the same names, many values at a time: the same bytes.
inline HWY_ATTR void EncodeFp8(const float* x, int width, int block, uint8_t* codes, uint8_t* scales) {
  const DF d;
  const DU du;
  const hn::Rebind<int32_t, DF> di;
  const hn::Rebind<uint8_t, DF> d8;
  for (int begin = 0; begin < width; begin += block) {
    const uint8_t code = Fp8Scale(BlockPeak(x + begin, block));
    scales[begin / block] = code;
    if (code == kE8m0Nan) {
      std::memset(codes + begin, kE4m3Nan, static_cast<size_t>(block));
      continue;
    }
    const VF inverse = hn::Set(d, e8m0_to_float(static_cast<uint8_t>(254 - code)));
    for (int i = begin; i < begin + block; i += N) {
      const VF v = hn::Mul(hn::LoadU(d, x + i), inverse);
      const E4m3Magnitude q = RoundE4m3(hn::Min(hn::Abs(v), hn::Set(d, kE4m3Max)));
      const auto normal = hn::Sub(hn::ShiftRight<20>(q.normal), hn::Set(du, 120u << 3));
      const auto small = hn::And(hn::BitCast(du, q.shifted), hn::Set(du, 0xffu));
      const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, v)), hn::Set(du, 0x80u));
      const auto bits = hn::Or(hn::IfThenElse(hn::RebindMask(du, q.is_subnormal), small, normal), sign);
      hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, bits)), d8, codes + i);
    }
  }
}

// A block of up to 32 values over `scale`, as e2m1.
HWY_INLINE void PackE2m1(const float* x, int width, float scale, uint8_t* packed) {
  const DF d;
  const DU du;
  const hn::Rebind<int32_t, DF> di;
  const hn::Rebind<uint8_t, DF> d8;
  alignas(64) uint8_t codes[32];
  for (int i = 0; i < width; i += N) {
    const VF v = hn::Div(hn::LoadU(d, x + i), hn::Set(d, scale));
    const VF magnitude = hn::Abs(v);
    const VF one = hn::Set(d, 1.0f);
    const auto over = [&](float bound)
                          HWY_ATTR { return hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(d, bound)), one); };
    const auto from = [&](float bound)
                          HWY_ATTR { return hn::IfThenElseZero(hn::Ge(magnitude, hn::Set(d, bound)), one); };
    VF code = hn::Add(hn::Add(over(0.25f), from(0.75f)), hn::Add(over(1.25f), from(1.75f)));
    code = hn::Add(code, hn::Add(hn::Add(over(2.5f), from(3.5f)), over(5.0f)));
    const auto sign = hn::And(hn::ShiftRight<28>(hn::BitCast(du, v)), hn::Set(du, 8u));
    const auto bits = hn::Or(hn::ConvertTo(di, code), hn::BitCast(di, sign));
    hn::StoreU(hn::DemoteTo(d8, bits), d8, codes + i);
  }
  for (int i = 0; i < width / 2; ++i) packed[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
}

// encode_record() of numerics/records.h: the same bytes.
inline HWY_ATTR void EncodeRecord(RecordFormat format, const float* x, uint8_t* data, uint8_t* scales) {
  switch (format) {
    case RecordFormat::kV4Fp8: {
      constexpr int kCodes = kHeadDim - kRopeDim;
      EncodeFp8(x, kCodes, 64, data, scales);
      scales[kCodes / 64] = 0;
      for (int i = kCodes; i < kHeadDim; ++i) {
        const bf16 code = float_to_bf16(x[i]);
        std::memcpy(data + kCodes + 2 * (i - kCodes), &code, sizeof(code));
      }
      return;
    }
    case RecordFormat::kV41Fp8:
      return EncodeFp8(x, kHeadDim, 32, data, scales);
    case RecordFormat::kV41Nvfp4:
      for (int block = 0; block < kHeadDim / 16; ++block, x += 16, data += 8) {
        const float peak = BlockPeak(x, 16);
        scales[block] = std::isnan(peak) ? kE4m3Nan : float_to_e4m3(std::max(peak, kE2m1Max / 512) / kE2m1Max);
        if (std::isnan(peak)) {
          std::memset(data, 0, 8);
        } else {
          PackE2m1(x, 16, e4m3_to_float(scales[block]), data);
        }
      }
      return;
    case RecordFormat::kIndexMxfp4:
      for (int block = 0; block < kIndexDim / 32; ++block, x += 32, data += 16) {
        constexpr float kFloor = kE2m1Max * std::numeric_limits<float>::min();
        const float peak = BlockPeak(x, 32);
        scales[block] = std::isnan(peak) ? kE8m0Nan : ceil_e8m0(std::max(peak, kFloor) * (1.0f / kE2m1Max));
        if (std::isnan(peak)) {
          std::memset(data, 0, 16);
        } else {
          PackE2m1(x, 32, e8m0_to_float(scales[block]), data);
        }
      }
      return;
  }
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
