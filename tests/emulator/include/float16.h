// Sixteen-bit floats for the emulator's instructions, in pairs.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "numerics/formats.h"

namespace onelane::emulator {

inline float f16_to_float(uint32_t code) {
  const uint32_t exponent = code >> 10 & 31, mantissa = code & 0x3ff;
  float magnitude;
  if (exponent == 31) {
    magnitude = mantissa == 0 ? INFINITY : NAN;
  } else {
    magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-24f
                              : std::bit_cast<float>((exponent + 112) << 23 | mantissa << 13);
  }
  return (code & 0x8000) != 0 ? -magnitude : magnitude;
}
// To nearest even.
inline uint32_t float_to_f16(float x) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) >> 16 & 0x8000;
  const float m = std::fabs(x);
  if (std::isnan(x)) return 0x7fff;
  if (m >= 65520.0f) return sign | 0x7c00;
  if (m < 0x1p-14f) return sign | static_cast<uint32_t>(std::nearbyint(m * 0x1p24f));
  const uint32_t bits = std::bit_cast<uint32_t>(m);
  return sign | (((bits + 0xfff + (bits >> 13 & 1)) >> 13) - (112 << 10));
}
// As the instructions convert: every NaN is one.
inline uint32_t nearest_bf16(float x) { return std::isnan(x) ? 0x7fff : float_to_bf16(x); }

// Products convert little else.
inline const std::vector<float> kAllF16 = [] {
  std::vector<float> values(65536);
  for (uint32_t code = 0; code < values.size(); ++code) values[code] = f16_to_float(code);
  return values;
}();
inline const std::vector<uint16_t> kF16OfE4m3 = [] {
  std::vector<uint16_t> codes(256);
  for (size_t byte = 0; byte < codes.size(); ++byte) {
    codes[byte] = static_cast<uint16_t>(float_to_f16(e4m3_to_float(static_cast<uint8_t>(byte))));
  }
  return codes;
}();
inline float low_f16(uint32_t pair) { return kAllF16[pair & 0xffff]; }
inline float high_f16(uint32_t pair) { return kAllF16[pair >> 16]; }
inline float low_bf16(uint32_t pair) { return bf16_to_float(static_cast<uint16_t>(pair)); }
inline float high_bf16(uint32_t pair) { return bf16_to_float(static_cast<uint16_t>(pair >> 16)); }

}  // namespace onelane::emulator
