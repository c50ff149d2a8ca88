#include "numerics/formats.h"

#include <cmath>

namespace onelane {
namespace {

constexpr float power_of_two(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23); }

constexpr std::array<float, 256> make_e4m3() {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    float magnitude = exponent == 0 ? static_cast<float>(mantissa) * power_of_two(-9)
                                    : static_cast<float>(8 + mantissa) * power_of_two(exponent - 10);
    if ((code & 0x7f) == kE4m3Nan) magnitude = std::numeric_limits<float>::quiet_NaN();
    values[static_cast<size_t>(code)] = (code & 0x80) != 0 ? -magnitude : magnitude;
  }
  return values;
}

constexpr std::array<float, 16> make_e2m1() {
  constexpr std::array<float, 8> magnitudes = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  std::array<float, 16> values{};
  for (size_t code = 0; code < 16; ++code) values[code] = code < 8 ? magnitudes[code] : -magnitudes[code - 8];
  return values;
}

}  // namespace

const std::array<float, 256> kE4m3Values = make_e4m3();
const std::array<float, 16> kE2m1Values = make_e2m1();

uint8_t float_to_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | kE4m3Nan;
  if (magnitude >= std::bit_cast<uint32_t>(464.0f)) return sign | 0x7eu;  // beyond the midpoint above 448
  if (magnitude < std::bit_cast<uint32_t>(power_of_two(-6))) {
    // Subnormal results are multiples of 2^-9: adding 2^14 puts that bit last in a float, so the add rounds it.
    const float shifted = std::bit_cast<float>(magnitude) + power_of_two(14);
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) & 0xffu);
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return sign | static_cast<uint8_t>(code > 0x7eu ? 0x7eu : code);
}

uint8_t float_to_e2m1(float value) {
  if (std::isnan(value)) return 0;
  const uint8_t sign = std::signbit(value) ? 8 : 0;
  const float magnitude = std::fabs(value);
  // Midpoints between neighbours; >= where the upper code is the even one, > where the lower is.
  const int code = (magnitude > 0.25f) + (magnitude >= 0.75f) + (magnitude > 1.25f) + (magnitude >= 1.75f) +
                   (magnitude > 2.5f) + (magnitude >= 3.5f) + (magnitude > 5.0f);
  return sign | static_cast<uint8_t>(code);
}

uint8_t ceil_e8m0(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = (bits >> 23) & 0xffu;
  const uint32_t mantissa = bits & 0x7fffffu;
  if (exponent == 0) return mantissa > 0x400000u ? 1 : 0;  // 2^-127 is code 0, half of the smallest normal
  return static_cast<uint8_t>(exponent + (mantissa != 0 && exponent != 255 ? 1u : 0u));
}

}  // namespace onelane
