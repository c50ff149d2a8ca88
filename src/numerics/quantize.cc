#include "numerics/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "numerics/formats.h"

namespace onelane {
namespace {

constexpr size_t kMaxBlock = 128;

// Largest magnitude, or NaN when any value is not finite.
float block_amax(std::span<const float> x) {
  float amax = 0.0f;
  bool finite = true;
  for (const float value : x) {
    const float magnitude = std::fabs(value);
    finite = finite && magnitude <= std::numeric_limits<float>::max();
    amax = std::max(amax, magnitude);
  }
  return finite ? amax : std::numeric_limits<float>::quiet_NaN();
}

void pack_e2m1(std::span<const float> x, float scale, uint8_t* packed) {
  ONELANE_CHECK(x.size() % 2 == 0, "two e2m1 codes share a byte");
  for (size_t i = 0; i < x.size(); i += 2) {
    const auto code = [&](float value) { return float_to_e2m1(std::clamp(value / scale, -kE2m1Max, kE2m1Max)); };
    packed[i / 2] = static_cast<uint8_t>(code(x[i]) | (code(x[i + 1]) << 4));
  }
}

template <class Quantize, class Dequantize>
void requantize(std::span<float> x, int block, Quantize quantize, Dequantize dequantize) {
  const auto width = static_cast<size_t>(block);
  ONELANE_CHECK(block > 0 && width <= kMaxBlock && x.size() % width == 0, "a row must be whole blocks");
  std::array<uint8_t, kMaxBlock> codes;
  for (size_t begin = 0; begin < x.size(); begin += width) {
    const std::span<float> part = x.subspan(begin, width);
    const float scale = quantize(part, codes.data());
    for (size_t i = 0; i < width; ++i) part[i] = round_bf16(dequantize(codes.data(), i) * scale);
  }
}

float unpack_e2m1(const uint8_t* packed, size_t i) {
  return e2m1_to_float(static_cast<uint8_t>(packed[i / 2] >> (4 * (i % 2))));
}

}  // namespace

uint8_t quantize_fp8_block(std::span<const float> x, uint8_t* codes) {
  const float amax = block_amax(x);
  if (std::isnan(amax)) {
    std::fill_n(codes, x.size(), kE4m3Nan);
    return kE8m0Nan;
  }
  const uint8_t scale_code = ceil_e8m0(std::max(amax, 1e-4f) * (1.0f / 448.0f));
  const float scale = e8m0_to_float(scale_code);
  for (size_t i = 0; i < x.size(); ++i) codes[i] = float_to_e4m3(std::clamp(x[i] / scale, -kE4m3Max, kE4m3Max));
  return scale_code;
}

uint8_t quantize_fp4_block(std::span<const float> x, uint8_t* packed) {
  constexpr float kFloor = 6.0f * std::numeric_limits<float>::min();
  const float amax = block_amax(x);
  if (std::isnan(amax)) {
    std::fill_n(packed, x.size() / 2, uint8_t{0});
    return kE8m0Nan;
  }
  const uint8_t scale_code = ceil_e8m0(std::max(amax, kFloor) * (1.0f / 6.0f));
  pack_e2m1(x, e8m0_to_float(scale_code), packed);
  return scale_code;
}

uint8_t quantize_nvfp4_block(std::span<const float> x, uint8_t* packed) {
  constexpr float kFloor = 6.0f / 512.0f;
  const float amax = block_amax(x);
  if (std::isnan(amax)) {
    std::fill_n(packed, x.size() / 2, uint8_t{0});
    return kE4m3Nan;
  }
  const uint8_t scale_code = float_to_e4m3(std::max(amax, kFloor) / 6.0f);
  pack_e2m1(x, e4m3_to_float(scale_code), packed);
  return scale_code;
}

void requantize_fp8(std::span<float> x, int block) {
  requantize(
      x, block, [](auto part, uint8_t* codes) { return e8m0_to_float(quantize_fp8_block(part, codes)); },
      [](const uint8_t* codes, size_t i) { return e4m3_to_float(codes[i]); });
}

void requantize_fp4(std::span<float> x, int block) {
  requantize(
      x, block, [](auto part, uint8_t* codes) { return e8m0_to_float(quantize_fp4_block(part, codes)); }, unpack_e2m1);
}

void requantize_nvfp4(std::span<float> x, int block) {
  requantize(
      x, block, [](auto part, uint8_t* codes) { return e4m3_to_float(quantize_nvfp4_block(part, codes)); },
      unpack_e2m1);
}

}  // namespace onelane
