#include "numerics/quantize.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "numerics/formats.h"

namespace onelane {
namespace {

// Values spread over many binades, as activations are; the generator's own doubles would nearly all be huge.
rc::Gen<std::vector<float>> blocks(size_t width) {
  return rc::gen::container<std::vector<float>>(
      width,
      rc::gen::map(rc::gen::pair(rc::gen::inRange(-8388608, 8388608), rc::gen::inRange(-40, 12)),
                   [](std::pair<int, int> p) { return std::ldexp(static_cast<float>(p.first), p.second - 23); }));
}

float amax(const std::vector<float>& x) {
  float result = 0;
  for (const float value : x) result = std::max(result, std::fabs(value));
  return result;
}

RC_GTEST_PROP(QuantizeFp8, ScaleIsTheSmallestPowerOfTwoThatFits, ()) {
  const auto x = *blocks(32);
  std::vector<uint8_t> codes(32);
  const float scale = e8m0_to_float(quantize_fp8_block(x, codes.data()));
  const float target = std::max(amax(x), 1e-4f) * (1.0f / 448.0f);
  RC_ASSERT(scale >= target);
  RC_ASSERT(scale / 2 < target);
  for (size_t i = 0; i < 32; ++i) {
    const float expected = e4m3_to_float(float_to_e4m3(std::fmin(std::fmax(x[i] / scale, -448.0f), 448.0f)));
    RC_ASSERT(e4m3_to_float(codes[i]) == expected);
  }
}

TEST(QuantizeFp8, ExactPowersDoNotRoundTheScaleUp) {
  std::vector<float> x(128, 0.0f);
  std::vector<uint8_t> codes(128);
  x[7] = -448.0f;
  EXPECT_EQ(quantize_fp8_block(x, codes.data()), 127);
  EXPECT_EQ(codes[7], 0xfe);
  x[7] = std::nextafter(448.0f, 449.0f);
  EXPECT_EQ(quantize_fp8_block(x, codes.data()), 128);
}

TEST(QuantizeFp8, ZerosAndTinyValuesUseTheFloor) {
  std::vector<float> x(32, 0.0f);
  std::vector<uint8_t> codes(32, 0xaa);
  const uint8_t floor_scale = ceil_e8m0(1e-4f * (1.0f / 448.0f));
  EXPECT_EQ(quantize_fp8_block(x, codes.data()), floor_scale);
  for (const uint8_t code : codes) EXPECT_EQ(code, 0);
  x[0] = 9.9e-5f;
  EXPECT_EQ(quantize_fp8_block(x, codes.data()), floor_scale);
}

TEST(QuantizeFp4, FloorAndTies) {
  std::vector<float> x(32, 0.0f);
  std::vector<uint8_t> packed(16);
  EXPECT_EQ(quantize_fp4_block(x, packed.data()), 1);  // 2^-126
  x = std::vector<float>(32, 0.0f);
  x[0] = 6.0f, x[1] = 2.5f, x[2] = -0.75f, x[3] = 5.0f;
  EXPECT_EQ(quantize_fp4_block(x, packed.data()), 127);
  EXPECT_EQ(packed[0], 0x47);  // low nibble: element 0 = 6 (code 7); high nibble: 2.5 -> 2 (code 4)
  EXPECT_EQ(packed[1], 0x6a);  // -0.75 -> -1 (code 10); 5 -> 4 (code 6)
}

TEST(QuantizeNvfp4, ScaleIsE4m3OfASixth) {
  std::vector<float> x(16, 0.0f);
  std::vector<uint8_t> packed(8);
  EXPECT_EQ(e4m3_to_float(quantize_nvfp4_block(x, packed.data())), std::ldexp(1.0f, -9));
  x[3] = 7.0f;
  const float scale = e4m3_to_float(quantize_nvfp4_block(x, packed.data()));
  EXPECT_EQ(scale, e4m3_to_float(float_to_e4m3(7.0f / 6.0f)));
  EXPECT_EQ(packed[1] >> 4, float_to_e2m1(std::fmin(7.0f / scale, 6.0f)));
}

RC_GTEST_PROP(Requantize, IsIdempotentForPowerOfTwoScales, ()) {
  auto x = *blocks(64);
  requantize_fp8(x, 32);
  auto again = x;
  requantize_fp8(again, 32);
  RC_ASSERT(again == x);
}

RC_GTEST_PROP(Requantize, ErrorIsBoundedByHalfAStep, ()) {
  const auto x = *blocks(32);
  auto fp8 = x;
  requantize_fp8(fp8, 32);
  auto fp4 = x;
  requantize_fp4(fp4, 32);
  const float largest = std::max(amax(x), 1e-4f);
  for (size_t i = 0; i < x.size(); ++i) {
    RC_ASSERT(std::fabs(fp8[i] - x[i]) <= std::max(std::fabs(x[i]) / 16, largest * 0x1p-17f) * 1.01f);
    RC_ASSERT(std::fabs(fp4[i] - x[i]) <= largest / 3.0f * 1.01f);
  }
}

TEST(Requantize, NonFiniteBlocksBecomeNaNAndLeaveTheirNeighboursAlone) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    for (auto* requantize : {&requantize_fp8, &requantize_fp4}) {
      std::vector<float> x(64, 1.0f);
      x[3] = bad;
      (*requantize)(x, 32);
      for (size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(x[i]), i < 32) << i;
    }
    std::vector<float> x(32, 1.0f);
    x[20] = bad;
    requantize_nvfp4(x, 16);
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(std::isnan(x[i]), i >= 16) << i;
  }
}

}  // namespace
}  // namespace onelane
