#include "numerics/formats.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace onelane {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Nearest code by exhaustive search in double, ties to the even code: the definition, not the implementation.
template <class Decode>
int nearest_code(double value, int codes, Decode decode) {
  int best = -1;
  for (int code = 0; code < codes; ++code) {
    const double candidate = decode(code);
    if (std::isnan(candidate)) continue;
    const double distance = std::fabs(candidate - value);
    const double best_distance = best < 0 ? kInfinity : std::fabs(static_cast<double>(decode(best)) - value);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(Bf16, EveryCodeSurvivesTheRoundTrip) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = bf16_to_float(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value))));
    } else {
      EXPECT_EQ(float_to_bf16(value), code);
    }
  }
}

TEST(Bf16, EveryMidpointGoesToTheEvenCodeAndItsNeighboursToTheNearest) {
  for (uint32_t code = 0; code < 0x7f80; ++code) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      const uint32_t midpoint = ((code | sign) << 16) | 0x8000u;
      const auto even = static_cast<uint16_t>((code + (code & 1u)) | sign);
      EXPECT_EQ(float_to_bf16(std::bit_cast<float>(midpoint)), even);
      EXPECT_EQ(float_to_bf16(std::bit_cast<float>(midpoint - 1)), code | sign);
      EXPECT_EQ(float_to_bf16(std::bit_cast<float>(midpoint + 1)), (code + 1) | sign);
    }
  }
}

TEST(Bf16, OverflowsToInfinityAndKeepsNaN) {
  EXPECT_EQ(bf16_to_float(float_to_bf16(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_EQ(bf16_to_float(float_to_bf16(-kInfinity)), -kInfinity);
  // A NaN whose payload sits only in the lower half must not turn into infinity.
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(E4m3, ValuesFollowTheOcpTable) {
  EXPECT_EQ(e4m3_to_float(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(e4m3_to_float(0x80)));
  EXPECT_EQ(e4m3_to_float(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(e4m3_to_float(0x07), std::ldexp(7.0f, -9));
  EXPECT_EQ(e4m3_to_float(0x08), std::ldexp(1.0f, -6));
  EXPECT_EQ(e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
}

TEST(E4m3, EveryCodeAndEveryTieRoundsToTheEvenCode) {
  for (int code = 0; code < 0x7f; ++code) {
    for (const int sign : {0, 0x80}) {
      const float value = e4m3_to_float(static_cast<uint8_t>(code | sign));
      EXPECT_EQ(float_to_e4m3(value), code | sign);
      if (code == 0x7e) continue;
      const float next = e4m3_to_float(static_cast<uint8_t>((code + 1) | sign));
      const float midpoint = (value + next) / 2;
      EXPECT_EQ(float_to_e4m3(midpoint), (code + (code & 1)) | sign) << midpoint;
      EXPECT_EQ(float_to_e4m3(std::nextafter(midpoint, value)), code | sign);
      EXPECT_EQ(float_to_e4m3(std::nextafter(midpoint, next)), (code + 1) | sign);
    }
  }
}

TEST(E4m3, SaturatesAndKeepsNaN) {
  for (const float big : {448.0f, 449.0f, 463.9f, 464.0f, 480.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(float_to_e4m3(big), 0x7e);
    EXPECT_EQ(float_to_e4m3(-big), 0xfe);
  }
  EXPECT_EQ(float_to_e4m3(std::nanf("")) & 0x7f, kE4m3Nan);
}

RC_GTEST_PROP(E4m3, AgreesWithExhaustiveSearch, (uint32_t bits)) {
  const auto value = std::bit_cast<float>(bits & 0x7fffffffu);
  RC_PRE(value <= 448.0f);
  const int expected = nearest_code(value, 127, [](int code) { return e4m3_to_float(static_cast<uint8_t>(code)); });
  RC_ASSERT(int{float_to_e4m3(value)} == expected);
}

TEST(E2m1, EveryCodeEveryTieAndTheirNeighbours) {
  const std::vector<std::pair<float, int>> ties = {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4},
                                                   {2.5f, 4},  {3.5f, 6},  {5.0f, 6}};
  for (int code = 0; code < 8; ++code) {
    const float value = e2m1_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(float_to_e2m1(value), code);
    EXPECT_EQ(float_to_e2m1(-value), code | 8);
    if (code == 7) continue;
    const auto [midpoint, even] = ties[static_cast<size_t>(code)];
    EXPECT_EQ(midpoint, (value + e2m1_to_float(static_cast<uint8_t>(code + 1))) / 2);
    EXPECT_EQ(float_to_e2m1(midpoint), even);
    EXPECT_EQ(float_to_e2m1(-midpoint), even | 8);
    EXPECT_EQ(float_to_e2m1(std::nextafter(midpoint, 0.0f)), code);
    EXPECT_EQ(float_to_e2m1(std::nextafter(midpoint, 9.0f)), code + 1);
  }
  EXPECT_EQ(float_to_e2m1(kInfinity), 7);
  EXPECT_EQ(float_to_e2m1(std::nanf("")), 0);
}

TEST(E8m0, EveryCodeIsItsPowerOfTwoAndItsOwnCeiling) {
  for (int code = 0; code < 255; ++code) {
    const float value = e8m0_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(static_cast<double>(value), std::ldexp(1.0, code - 127));
    EXPECT_EQ(ceil_e8m0(value), code);
    const float above = std::nextafter(value, kInfinity);
    EXPECT_EQ(ceil_e8m0(above), code + 1) << code;  // 255, NaN, past the largest
    const float below = std::nextafter(value, 0.0f);
    EXPECT_EQ(ceil_e8m0(below), code) << code;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
  EXPECT_EQ(ceil_e8m0(kInfinity), kE8m0Nan);
  EXPECT_EQ(ceil_e8m0(std::nanf("")), kE8m0Nan);
}

}  // namespace
}  // namespace onelane
