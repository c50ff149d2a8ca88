// The number formats of the checkpoints and caches, bit for bit: bf16, e4m3, e2m1, e8m0 (spec/model.md appendix A).
//
// Every conversion here is exact or rounds once, to nearest with ties to the even code, and says what NaN and infinity
// become. Codes are plain unsigned integers, so that a cache or weight is bytes and nothing more.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace onelane {

// -- bf16: the upper half of a float ---------------------------------------------------------------------------------

inline float bf16_to_float(uint16_t code) { return std::bit_cast<float>(static_cast<uint32_t>(code) << 16); }

// Nearest, ties to even; overflow goes to infinity as IEEE 754 says; a NaN stays a (quiet) NaN of the same sign.
inline uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// One rounding to bf16, value kept as float: the spec's bf16(.).
inline float round_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

// -- e4m3 (OCP "fn": no infinity, one NaN per sign) ------------------------------------------------------------------

inline constexpr float kE4m3Max = 448.0f;
inline constexpr uint8_t kE4m3Nan = 0x7f;

// All 256 values; codes 0x7f and 0xff are NaN.
extern const std::array<float, 256> kE4m3Values;

inline float e4m3_to_float(uint8_t code) { return kE4m3Values[code]; }

// Nearest, ties to even; magnitudes beyond 448 (infinity too) saturate to 448; NaN becomes NaN of the same sign.
uint8_t float_to_e4m3(float value);

// -- e2m1: sign, two exponent bits, one mantissa bit; 0 .5 1 1.5 2 3 4 6 ----------------------------------------------

inline constexpr float kE2m1Max = 6.0f;

extern const std::array<float, 16> kE2m1Values;

// `code` is a nibble; bits above the fourth are ignored.
inline float e2m1_to_float(uint8_t code) { return kE2m1Values[code & 15u]; }

// Nearest, ties to the even code (0.25 -> 0, 0.75 -> 1, 1.25 -> 1, 1.75 -> 2, 2.5 -> 2, 3.5 -> 4, 5 -> 4); saturates
// at 6. e2m1 has no NaN: a NaN becomes 0, and its block must say so in the scale (quantize.h).
uint8_t float_to_e2m1(float value);

// -- e8m0: a power of two, 2^(code - 127); code 255 is NaN
// -------------------------------------------------------------

inline constexpr uint8_t kE8m0Nan = 255;

inline float e8m0_to_float(uint8_t code) {
  if (code == kE8m0Nan) return std::numeric_limits<float>::quiet_NaN();
  return code == 0 ? std::bit_cast<float>(0x00400000u) : std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// The code of the smallest power of two that is at least `value` (exact, by bits: exponent, plus one when the mantissa
// is not zero). `value` must be positive; beyond 2^127, infinite or NaN gives kE8m0Nan. Source: appendix A.1.
uint8_t ceil_e8m0(float value);

}  // namespace onelane
