// Pooling, its state across steps, and index keys, case by case (spec/model.md 3.3 to 3.5).
#include <numeric>

#include "kernels/stage_support.h"

namespace onelane {
namespace {

using namespace testing;

constexpr int kDim = 32;

// A compressor over x whose dims 0.. say what kv and gate are; a record of its entries.
struct Pooling {
  Pooling(int ratio, bool overlap, RecordFormat format, int capacity, std::function<float(int, int)> kv,
          std::function<float(int, int)> gate)
      : wkv(bf16_weight((overlap ? 2 : 1) * kHeadDim, kDim, std::move(kv))),
        wgate(bf16_weight(wkv.matrix.out, kDim, std::move(gate))),
        norm(constant_bf16(kHeadDim, 1)),
        state(static_cast<size_t>(capacity) * 2 * wkv.matrix.out, NAN),
        entries(format, 4, ratio) {
    args.ratio = ratio;
    args.norm_eps = 1e-20f;
    args.rope = &table_b();
    args.main.norm = norm.data();
    args.main.width = kHeadDim;
    args.main.overlap = overlap;
    args.main.state = {state.data(), state.size(), capacity};
    args.entries = entries.cache;
  }
  // Rows of the positions [first, first + count) of `x`, [positions, kDim].
  void run(Kernels& kernels, const Array<bf16>& x, int first, int count) {
    step = Step();
    step.run(first, count);
    const StepRows rows = step.rows();
    QkvArgs qkv{.x = x.data() + static_cast<size_t>(first) * kDim, .dim = kDim, .rope = &table_b()};
    products.ask(count, wkv.matrix, args.ratio == 1 ? Matrix{} : wgate.matrix, qkv.of_x, args.main);
    kernels.project_qkv(rows, qkv);
    kernels.compress(rows, args);
  }
  std::vector<float> entry(int j) const { return entries.get(step.rows(), 0, j); }

  Weight wkv, wgate;
  PoolProducts products;
  Array<bf16> norm;
  Array<float> state;
  Pages entries;
  Step step;
  CompressArgs args;
};

// Every channel of the entry is the weighted mean of the tokens' dim 0, but for channel 0, which is 1 in every token.
float first_dim_everywhere(int o, int k) { return o % kHeadDim == 0 ? (k == 1 ? 1.0f : 0.0f) : (k == 0 ? 1.0f : 0.0f); }

class Compress : public StageTest {};
ONELANE_EVERY_IMPLEMENTATION(Compress);

// Ratio 2, gates 0 and log 3: channel = (1 * a + 3 * b) / 4; norm and fp4 leave the ratio of two channels.
TEST_P(Compress, PoolsEveryChannelBySoftmaxOfItsGates) {
  Pooling p(2, false, RecordFormat::kV4Fp8, 12, first_dim_everywhere, [](int, int k) { return k == 2 ? 1.0f : 0.0f; });
  Array<bf16> x(2 * kDim);
  const float log3 = round_bf16(std::log(3.0f));
  for (int t = 0; t < 2; ++t) x[t * kDim + 1] = float_to_bf16(1);
  x[0 * kDim + 0] = float_to_bf16(2);
  x[1 * kDim + 0] = float_to_bf16(6);
  x[1 * kDim + 2] = float_to_bf16(log3);
  p.run(*kernels, x, 0, 2);
  const std::vector<float> entry = p.entry(0);
  const float mean = (2 + std::exp(log3) * 6) / (1 + std::exp(log3));  // about 5
  EXPECT_NEAR(entry[480] / entry[0], mean, 0.2);  // dim 0 is fp8, dim 480 bf16; entry 0 is not turned
  EXPECT_NEAR(entry[480], mean / std::sqrt((1 + 511 * mean * mean) / 512), 0.004);
}

TEST_P(Compress, RotatesAnEntryAtTheFirstTokenOfItsGroup) {
  Pooling p(
      4, false, RecordFormat::kV4Fp8, 14, [](int o, int k) { return o == 450 && k == 0 ? 1.0f : 0.0f; },
      [](int, int) { return 0.0f; });
  const Array<bf16> x = constant_bf16(16 * kDim, 1);
  p.run(*kernels, x, 0, 16);
  for (int j = 0; j < 4; ++j) {
    std::vector<float> expected(kRopeDim);
    expected[2] = round_bf16(std::sqrt(512.0f));
    rotate(expected.data(), rope_angles(table_b(), j * 4));
    const std::vector<float> entry = p.entry(j);
    for (int d = 0; d < kRopeDim; ++d)
      EXPECT_EQ(entry[448 + d], round_bf16(expected[d])) << "entry " << j << " dim " << d;
  }
}

// First half of the channels from the group before, second half from the group itself; nothing before group 0.
TEST_P(Compress, OverlapPoolsTheFirstHalfOfTheGroupBefore) {
  Pooling p(
      4, true, RecordFormat::kV4Fp8, 14,
      [](int o, int k) {
        return o % kHeadDim == 0 && k == (o < kHeadDim ? 0 : 1) ? 1.0f : o % kHeadDim == 500 && k == 2;
      },
      [](int, int) { return 0.0f; });
  Array<bf16> x(8 * kDim);
  for (int t = 0; t < 8; ++t) {
    x[t * kDim + 0] = float_to_bf16(t < 4 ? 3 : 100);  // read of the group before
    x[t * kDim + 1] = float_to_bf16(t < 4 ? 5 : 7);    // read of the group itself
    x[t * kDim + 2] = float_to_bf16(1);
  }
  p.run(*kernels, x, 0, 8);
  // Entry 0: the mean of four 5s. Entry 1: the mean of four 3s and four 7s, which is 5 again, not 100.
  for (int j = 0; j < 2; ++j)
    EXPECT_NEAR(p.entry(j)[0] / (j == 0 ? p.entry(j)[500] : 22.6274f / std::sqrt(26.0f)), 5, 0.2);
}

TEST_P(Compress, AddsThePositionBiasOfTheTokensPlaceInItsGroup) {
  Pooling p(4, false, RecordFormat::kV4Fp8, 14, first_dim_everywhere, [](int, int) { return 0.0f; });
  Array<float> ape(4 * kHeadDim);
  for (int c = 0; c < kHeadDim; ++c) ape[2 * kHeadDim + c] = 60;  // the third token takes all
  p.args.main.ape = ape.data();
  Array<bf16> x(8 * kDim);
  for (int t = 0; t < 8; ++t) {
    x[t * kDim] = float_to_bf16(t == 6 ? 3.0f : -50.0f);
    x[t * kDim + 1] = float_to_bf16(1);
  }
  p.run(*kernels, x, 0, 8);
  EXPECT_NEAR(p.entry(1)[480], std::cos(0) * 3 / std::sqrt((1 + 511 * 9) / 512.0f), 1);  // rotated, same size
  EXPECT_NEAR(p.entry(1)[5] / p.entry(1)[0], 3, 0.2);
}

// However the prompt is cut, whatever rejected drafts left behind: the same bytes.
TEST_P(Compress, StateCarriesGroupsAcrossStepsAndRollback) {
  struct Case {
    int ratio;
    bool overlap;
    RecordFormat format;
  };
  for (const Case& c : {Case{2, false, RecordFormat::kV41Nvfp4}, Case{4, true, RecordFormat::kV4Fp8},
                        Case{128, false, RecordFormat::kV4Fp8}}) {
    const int total = c.ratio == 128 ? 260 : 40;
    const int capacity = (c.overlap ? 2 : 1) * c.ratio + 6;
    Random random(7);
    const Array<bf16> x = random.bf16s(static_cast<size_t>(total) * kDim);
    const Array<bf16> noise = random.bf16s(x.size(), 30);
    const auto pooling = [&] {
      return Pooling(c.ratio, c.overlap, c.format, capacity, random_values(8, 0.3f), random_values(9, 0.5f));
    };
    Pooling whole = pooling();
    whole.run(*kernels, x, 0, total);
    for (const int chunk : {1, 3, 7, 100}) {
      for (const bool drafts : {false, true}) {
        Pooling cut = pooling();
        for (int first = 0; first < total; first += chunk) {
          cut.run(*kernels, x, first, std::min(chunk, total - first));
          const int next = std::min(first + chunk, total);
          // Five drafts that are all rejected: rows at the positions that the next step will use.
          if (drafts && next + 5 <= total) cut.run(*kernels, noise, next, 5);
        }
        for (int j = 0; j < total / c.ratio; ++j) {
          ASSERT_EQ(cut.entry(j), whole.entry(j)) << "ratio " << c.ratio << " chunk " << chunk << " entry " << j;
        }
      }
    }
  }
}

TEST_P(Compress, RatioOneHasNoGateAndAnEntryPerToken) {
  Pooling p(
      1, false, RecordFormat::kV41Nvfp4, 1, [](int o, int k) { return o == k ? 1.0f : 0.0f; },
      [](int, int) { return 0.0f; });
  Array<bf16> x(3 * kDim);
  for (int t = 0; t < 3; ++t) x[t * kDim + t] = float_to_bf16(2);
  p.run(*kernels, x, 0, 3);
  for (int t = 0; t < 3; ++t) {
    const std::vector<float> entry = p.entry(t);
    for (int d = 0; d < 448; ++d) EXPECT_NEAR(entry[d], d == t ? std::sqrt(512.0f) : 0, 1.0f) << t << ", " << d;
  }
}

// The key reads the latent's rope dims before they turn, and turns itself at the entry's position.
TEST_P(Compress, IndexKeysComeFromTheLatentBeforeRope) {
  Pooling p(
      2, false, RecordFormat::kV41Nvfp4, 12, [](int o, int k) { return o == 448 && k == 0 ? 1.0f : 0.0f; },
      [](int, int) { return 0.0f; });
  const Weight wk = bf16_weight(kIndexDim, kHeadDim, [](int o, int k) { return o == 10 && k == 448 ? 1.0f : 0.0f; });
  const Array<bf16> k_norm = constant_bf16(kIndexDim, 1);
  Pages keys(RecordFormat::kIndexMxfp4, 4, 2);
  p.args.wk = wk.matrix;
  p.args.k_norm = k_norm.data();
  p.args.keys = keys.cache;
  const Array<bf16> x = constant_bf16(40 * kDim, 1);
  p.run(*kernels, x, 0, 40);
  for (int j = 0; j < 20; ++j) {
    const std::vector<float> key = keys.get(p.step.rows(), 0, j);
    // sqrt(128) = 11.31 at dim 10; its scale is 2 (11.31 / 6 up to a power of two), its code 6.
    for (int d = 0; d < kIndexDim; ++d) EXPECT_EQ(key[d], d == 10 ? 12 : 0) << "key " << j << " dim " << d;
  }
}

// V4: own compressor, RoPE on the last 64 of 128, Walsh-Hadamard, then fp4.
TEST_P(Compress, V4IndexKeysAreTransformed) {
  Pooling p(4, true, RecordFormat::kV4Fp8, 14, random_values(10, 0.2f), random_values(11, 0.2f));
  Array<float> kv(16 * 2 * kIndexDim);
  const Array<float> gate(kv.size());
  for (size_t i = 3; i < kv.size(); i += kIndexDim) kv[i] = 1;
  const Array<bf16> norm = constant_bf16(kIndexDim, 1);
  Array<float> state(14 * 2 * 2 * kIndexDim);
  Compressor compressor;
  compressor.kv = kv.data();
  compressor.gate = gate.data();
  compressor.norm = norm.data();
  compressor.width = kIndexDim;
  compressor.overlap = true;
  compressor.state = {state.data(), state.size(), 14};
  Pages keys(RecordFormat::kIndexMxfp4, 4, 4);
  p.args.index_compressor = &compressor;
  p.args.keys = keys.cache;
  const Array<bf16> x = constant_bf16(16 * kDim, 1);
  p.run(*kernels, x, 0, 16);
  for (int j = 0; j < 4; ++j) {
    const std::vector<float> key = keys.get(p.step.rows(), 0, j);
    // One-hot of sqrt(128) at dim 3 becomes +-1 with the sign of the Walsh function; RoPE does not touch dim 3.
    for (int d = 0; d < kIndexDim; ++d) {
      const int sign = (d & 1) ^ (d >> 1 & 1);
      EXPECT_EQ(key[d], sign == 0 ? 1 : -1) << "key " << j << " dim " << d;
    }
  }
}

}  // namespace
}  // namespace onelane
