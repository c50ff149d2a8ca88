// The product inside the reference kernels, against values written down by hand.
#include "kernels/reference/linear.h"
#include "kernels/stage_support.h"
#include "numerics/quantize.h"

namespace onelane::reference {
namespace {

using namespace onelane::testing;

// What a one-hot activation reads out of W: its column k.
std::vector<float> column(const Matrix& w, int k) {
  Array<bf16> x(static_cast<size_t>(w.in));
  x[k] = float_to_bf16(1);
  return multiply(w, x.data(), 1);
}

float pattern(int o, int k) { return static_cast<float>((o * 3 + k * 5) % 7 - 3); }

TEST(ReferenceProduct, ReadsEveryScaleTileOfFp8) {
  for (const int block : {32, 128}) {
    // Neither dimension is a multiple of the tile.
    const Weight w =
        fp8_weight(block + 8, 2 * block + 4, block, 0, pattern, [](int row, int tile) { return 2 * row - 3 * tile; });
    for (int k = 0; k < w.matrix.in; ++k) {
      const std::vector<float> y = column(w.matrix, k);
      for (int o = 0; o < w.matrix.out; ++o) ASSERT_EQ(y[o], pattern(o, k)) << block << ": " << o << ", " << k;
    }
  }
}

TEST(ReferenceProduct, ReadsFp4WithTheEvenKInTheLowNibble) {
  const auto exponent = [](int row, int block) { return row % 3 - block; };
  const auto value = [&](int o, int k) {
    return std::ldexp(e2m1_to_float(static_cast<uint8_t>((o + k) % 16)), exponent(o, k / 32));
  };
  const Weight w = fp4_weight(5, 96, 0, value, exponent);
  for (int k = 0; k < 96; ++k) {
    const std::vector<float> y = column(w.matrix, k);
    for (int o = 0; o < 5; ++o) ASSERT_EQ(y[o], value(o, k)) << o << ", " << k;
  }
}

TEST(ReferenceProduct, QuantisesActivationsPerBlockAndOnlyWhenAsked) {
  std::vector<float> x(64, round_bf16(0.0125f));  // a bf16, not an e4m3
  x[3] = 300;                                     // makes the first block coarse, and only that
  const Array<bf16> codes = to_bf16(x);
  Weight w = fp8_weight(64, 64, 32, 32, diagonal(1));
  std::vector<float> expected = x;
  requantize_fp8(expected, 32);
  EXPECT_EQ(multiply(w.matrix, codes.data(), 1), expected);
  EXPECT_NE(expected[0], expected[40]);
  w.matrix.act_block = 0;
  EXPECT_EQ(multiply(w.matrix, codes.data(), 1), x);
}

TEST(ReferenceProduct, TakesAnyRangeOfRowsAndAnyStride) {
  const Weight w = fp8_weight(96, 32, 32, 0, pattern, [](int row, int) { return row; });
  Random random(1);
  const Array<bf16> x = random.bf16s(3 * 50);
  const std::vector<float> part = multiply(w.matrix, {x.data(), 3, 50}, 40, 30);  // from inside a scale tile
  for (int row = 0; row < 3; ++row) {
    const std::vector<float> whole = multiply(w.matrix, x.data() + row * 50, 1);
    for (int o = 0; o < 30; ++o) EXPECT_EQ(part[row * 30 + o], whole[40 + o]);
  }
}

TEST(ReferenceProduct, ANaNScaleOrActivationStaysInItsRow) {
  Weight w = bf16_weight(2, 32, [](int, int) { return 1.0f; });
  Array<bf16> x = constant_bf16(64, 1);
  x[5] = float_to_bf16(NAN);
  const std::vector<float> y = multiply(w.matrix, x.data(), 2);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
  EXPECT_EQ(y[2], 32);
  EXPECT_EQ(y[3], 32);
  Weight fp4 = fp4_weight(2, 32, 0, [](int, int) { return 1.0f; });
  fp4.scale.as<uint8_t>()[0] = kE8m0Nan;
  const std::vector<float> z = multiply(fp4.matrix, x.data() + 32, 1);
  EXPECT_TRUE(std::isnan(z[0]));
  EXPECT_EQ(z[1], 32);
}

}  // namespace
}  // namespace onelane::reference
