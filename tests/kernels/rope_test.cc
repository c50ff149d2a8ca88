#include "kernels/rope.h"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace onelane {
namespace {

RopeFrequencies table_a() { return make_rope_frequencies(10000, 1, 32, 1, 65536); }
RopeFrequencies table_b() { return make_rope_frequencies(160000, 16, 32, 1, 65536); }

TEST(RopeFrequencies, YarnTableHasThePublishedConstants) {
  const RopeFrequencies table = table_b();
  const std::pair<int, double> published[] = {{0, 1.0},          {1, 0.68765602},    {15, 3.6355386e-3},
                                              {16, 2.265625e-3}, {20, 2.9697778e-4}, {25, 5.3723127e-6},
                                              {31, 5.6805290e-7}};
  for (const auto& [i, value] : published) EXPECT_NEAR(table.frequency[i] / value, 1.0, 1.5e-7) << i;
}

TEST(RopeFrequencies, YarnLeavesTheFirstFifteenAloneAndDividesTheLastBySixteen) {
  const RopeFrequencies scaled = table_b();
  const RopeFrequencies plain = make_rope_frequencies(160000, 1, 32, 1, 65536);
  for (int i = 0; i <= 15; ++i) EXPECT_EQ(scaled.frequency[i], plain.frequency[i]) << i;
  for (int i = 16; i < 25; ++i) {
    EXPECT_LT(scaled.frequency[i], plain.frequency[i]) << i;
    EXPECT_GT(scaled.frequency[i], plain.frequency[i] / 16) << i;
  }
  for (int i = 25; i < 32; ++i) EXPECT_FLOAT_EQ(scaled.frequency[i], plain.frequency[i] / 16) << i;
}

TEST(RopeFrequencies, PlainTableIsThePowerSeriesOfItsBase) {
  const RopeFrequencies table = table_a();
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(table.frequency[i] * std::pow(10000.0, 2.0 * i / 64), 1.0, 1e-7) << i;
}

TEST(Rotate, TurnsAdjacentPairsByTheirOwnAngle) {
  float values[kRopeDim] = {};
  values[0] = 1;  // pair 0: the real axis
  values[3] = 1;  // pair 1: the imaginary axis
  const RopeFrequencies table = table_a();
  rotate(values, rope_angles(table, 1));
  EXPECT_FLOAT_EQ(values[0], std::cos(1.0f));
  EXPECT_FLOAT_EQ(values[1], std::sin(1.0f));
  EXPECT_FLOAT_EQ(values[2], -std::sin(table.frequency[1]));
  EXPECT_FLOAT_EQ(values[3], std::cos(table.frequency[1]));
  for (int i = 4; i < kRopeDim; ++i) EXPECT_EQ(values[i], 0) << i;
}

TEST(Rotate, PositionZeroChangesNothing) {
  float values[kRopeDim];
  std::iota(values, values + kRopeDim, -20.0f);
  rotate(values, rope_angles(table_b(), 0));
  for (int i = 0; i < kRopeDim; ++i) EXPECT_EQ(values[i], static_cast<float>(i) - 20.0f);
}

// Trap 57: a float sine without range reduction is off by up to 0.1 there.
TEST(RopeAngles, StayAccurateAtAMillionPositions) {
  const RopeFrequencies table = table_a();
  const RopeAngles angles = rope_angles(table, 1'048'575);
  for (int i = 0; i < 32; ++i) {
    const double angle = 1'048'575.0f * table.frequency[i];
    EXPECT_NEAR(angles.sin[i], std::sin(angle), 1e-7) << i;
    EXPECT_NEAR(angles.cos[i], std::cos(angle), 1e-7) << i;
  }
}

RC_GTEST_PROP(Rotate, InverseUndoesIt, ()) {
  const int position = *rc::gen::inRange(0, 1'048'576);
  const auto raw = *rc::gen::container<std::vector<int>>(kRopeDim, rc::gen::inRange(-4096, 4096));
  const RopeAngles angles = rope_angles(*rc::gen::arbitrary<bool>() ? table_a() : table_b(), position);
  std::vector<float> values(raw.begin(), raw.end());
  rotate(values.data(), angles);
  for (int i = 0; i < kRopeDim; i += 2) {
    RC_ASSERT(std::fabs(std::hypot(values[i], values[i + 1]) -
                        std::hypot(static_cast<float>(raw[i]), static_cast<float>(raw[i + 1]))) < 4e-3f);
  }
  rotate(values.data(), angles, /*inverse=*/true);
  for (int i = 0; i < kRopeDim; ++i) RC_ASSERT(std::fabs(values[i] - static_cast<float>(raw[i])) < 4e-3f);
}

}  // namespace
}  // namespace onelane
