// Residual stream, head and drafter stages, case by case (spec/model.md sections 2 and 6).
#include "kernels/stage_support.h"

namespace onelane {
namespace {

using namespace testing;

class Streams : public StageTest {};
ONELANE_EVERY_IMPLEMENTATION(Streams);

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

constexpr int kDim = 32;

// One row through mix_streams, with every input at hand.
struct Mix {
  Array<bf16> stream = Array<bf16>(kStreams * kDim);
  Array<float> fn = Array<float>(kMixes * kStreams * kDim);
  Array<float> base = Array<float>(kMixes);
  Array<float> scale = {1, 1, 1};
  Array<bf16> norm = constant_bf16(kDim, 1);
  Array<float> pre = Array<float>(kStreams), post = Array<float>(kStreams), comb = Array<float>(kStreams * kStreams);
  Array<bf16> x = Array<bf16>(kDim);
  float norm_eps = 1e-6f;
  float mix_eps = 1e-6f;
  int iterations = 20;
  const float* collapse_with = nullptr;

  void set(int copy, int d, float value) { stream[copy * kDim + d] = float_to_bf16(value); }
  void run(Kernels& kernels) {
    Step step;
    step.run(0, 1);
    kernels.mix_streams(step.rows(), {.stream = stream.data(),
                                      .dim = kDim,
                                      .weights = {fn.data(), base.data(), scale.data()},
                                      .norm_eps = norm_eps,
                                      .mix_eps = mix_eps,
                                      .iterations = iterations,
                                      .collapse_with = collapse_with,
                                      .norm = norm.data(),
                                      .pre = pre.data(),
                                      .post = post.data(),
                                      .comb = comb.data(),
                                      .x = x.data()});
  }
};

TEST_P(Streams, EmbedCopiesTheTokensRowFourTimes) {
  Random random(1);
  const Array<bf16> table = random.bf16s(5 * kDim);
  Array<bf16> stream(3 * kStreams * kDim);
  Step step;
  step.run(0, 3).tokens({4, 0, 4});
  kernels->embed(step.rows(), {.table = table.data(), .dim = kDim, .stream = stream.data()});
  for (int row = 0; row < 3; ++row) {
    for (int j = 0; j < kStreams; ++j) {
      for (int d = 0; d < kDim; ++d) {
        EXPECT_EQ(stream[(row * kStreams + j) * kDim + d], table[step.rows().token[row] * kDim + d]);
      }
    }
  }
}

TEST_P(Streams, AnEmptyStreamGivesTheBases) {
  Mix mix;
  for (int i = 0; i < kMixes; ++i) mix.base[i] = 0.25f * static_cast<float>(i % 8 - 4);
  mix.scale = {2, 3, 4};  // multiply m, which is 0
  mix.run(*kernels);
  for (int j = 0; j < kStreams; ++j) {
    EXPECT_NEAR(mix.pre[j], sigmoid(mix.base[j]) + 1e-6, 1e-7);
    EXPECT_NEAR(mix.post[j], 2 * sigmoid(mix.base[4 + j]), 2e-7);  // no eps
  }
}

// Copy 0 is 2 everywhere, the rest 0: over all 128 values the mean square is 1, over copy 0 alone it would be 4.
TEST_P(Streams, OneStatisticNormalisesAllCopies) {
  Mix mix;
  for (int d = 0; d < kDim; ++d) mix.set(0, d, 2);
  mix.fn[0] = 1;                                   // pre[0] reads copy 0, dim 0
  mix.fn[1 * kStreams * kDim + 3 * kDim + 5] = 1;  // pre[1] reads copy 3, dim 5
  mix.scale[0] = 0.5f;
  mix.base[1] = 1;
  mix.run(*kernels);
  EXPECT_NEAR(mix.pre[0], sigmoid(2 * 0.5) + 1e-6, 1e-6);
  EXPECT_NEAR(mix.pre[1], sigmoid(1) + 1e-6, 1e-6);
}

TEST_P(Streams, TheFirstSinkhornPassIsSoftmaxOverRowsThenColumns) {
  Mix mix;
  mix.iterations = 1;
  mix.base[8] = std::log(3.0f);  // C[0][0]
  mix.run(*kernels);
  EXPECT_NEAR(mix.comb[0], 0.5 / 1.25, 1e-5);
  EXPECT_NEAR(mix.comb[1], (1.0 / 6) / (1.0 / 6 + 0.75), 1e-5);
  EXPECT_NEAR(mix.comb[4], 0.25 / 1.25, 1e-5);
}

TEST_P(Streams, SinkhornEndsDoublyStochastic) {
  Random random(2);
  for (int trial = 0; trial < 20; ++trial) {
    Mix mix;
    for (int i = 8; i < kMixes; ++i) mix.base[i] = random.normal();
    mix.run(*kernels);
    for (int i = 0; i < kStreams; ++i) {
      double row = 0;
      double column = 0;
      for (int k = 0; k < kStreams; ++k) row += mix.comb[i * 4 + k], column += mix.comb[k * 4 + i];
      EXPECT_NEAR(row, 1, 1e-3);
      EXPECT_NEAR(column, 1, 1e-5);  // the column pass is the last
    }
  }
}

// Copy j is one-hot at dim j, so the collapsed row shows the weights it was made with.
TEST_P(Streams, CollapsesWithThePreviousPreWhenThereIsOneElseWithItsOwn) {
  Mix mix;
  for (int j = 0; j < kStreams; ++j) mix.set(j, j, 1);
  for (int j = 0; j < kStreams; ++j) mix.base[j] = static_cast<float>(j);
  mix.run(*kernels);
  double squares = 0;
  for (int j = 0; j < kStreams; ++j) squares += std::pow(round_bf16(mix.pre[j]), 2);
  for (int j = 0; j < kStreams; ++j) {
    EXPECT_NEAR(bf16_to_float(mix.x[j]), mix.pre[j] / std::sqrt(squares / kDim), 0.02);
  }
  const Array<float> delayed = {0, 0, 1, 0};
  const float own = mix.pre[1];
  mix.collapse_with = delayed.data();
  mix.run(*kernels);
  for (int d = 0; d < kDim; ++d) EXPECT_EQ(bf16_to_float(mix.x[d]), d == 2 ? round_bf16(std::sqrt(32.0f)) : 0) << d;
  EXPECT_EQ(mix.pre[1], own);  // what this sublayer hands on does not depend on what it was handed
}

TEST_P(Streams, TheNormIsPlainAndItsEpsIsTheModels) {
  Mix mix;
  const Array<float> first = {1, 0, 0, 0};
  mix.collapse_with = first.data();
  for (int d = 0; d < kDim; ++d) mix.set(0, d, 0x1p-20f);
  mix.norm = constant_bf16(kDim, 0.03125f);  // a weight near 0 stays one
  mix.norm_eps = 1e-20f;
  mix.run(*kernels);
  EXPECT_EQ(bf16_to_float(mix.x[7]), 0.03125f);
  mix.norm_eps = 1e-6f;
  mix.run(*kernels);
  EXPECT_NEAR(bf16_to_float(mix.x[7]), 0.03125 * 0x1p-20 * 1000, 1e-6);
}

TEST_P(Streams, ExpandContractsTheFirstIndexOfComb) {
  Array<bf16> stream(kStreams * kDim);
  for (int j = 0; j < kStreams; ++j) stream[j * kDim + 9] = float_to_bf16(static_cast<float>(j + 1));
  const Array<bf16> y = constant_bf16(kDim, 10);
  const Array<float> post = {0, 0, 0, 2};
  Array<float> comb(kStreams * kStreams);
  comb[0 * 4 + 1] = 1;  // from copy 0 to copy 1
  comb[2 * 4 + 3] = 3;  // from copy 2 to copy 3
  Step step;
  step.run(0, 1);
  kernels->expand_streams(
      step.rows(), {.stream = stream.data(), .dim = kDim, .y = y.data(), .post = post.data(), .comb = comb.data()});
  const auto at = [&](int copy) { return bf16_to_float(stream[copy * kDim + 9]); };
  EXPECT_EQ(at(0), 0);
  EXPECT_EQ(at(1), 1);
  EXPECT_EQ(at(2), 0);
  EXPECT_EQ(at(3), 2 * 10 + 3 * 3);
}

TEST_P(Streams, TapWritesTheMeanOfTheCopiesIntoItsColumn) {
  Array<bf16> stream(2 * kStreams * kDim);
  for (int i = 0; i < 2 * kStreams * kDim; ++i) stream[i] = float_to_bf16(static_cast<float>(i / kDim));
  Array<bf16> taps(2 * 3 * kDim, float_to_bf16(-1));
  Step step;
  step.run(0, 2);
  kernels->tap(step.rows(),
               {.stream = stream.data(), .dim = kDim, .taps = taps.data(), .tap_width = 3 * kDim, .column = kDim});
  for (int i = 0; i < 2 * 3 * kDim; ++i) {
    const bool inside = i / kDim % 3 == 1;
    EXPECT_EQ(bf16_to_float(taps[i]), !inside ? -1 : i < 3 * kDim ? 1.5f : 5.5f) << i;
  }
}

TEST_P(Streams, HeadTakesTheChosenRowsAndReportsTheHiddenStateBeforeItsNorm) {
  Array<bf16> stream(3 * kStreams * kDim);
  for (int row = 0; row < 3; ++row) {
    for (int j = 0; j < kStreams; ++j) {
      stream[(row * kStreams + j) * kDim + row] = float_to_bf16(static_cast<float>(j));  // the row's own dim
    }
  }
  const Weight head = bf16_weight(4, kDim, [](int o, int k) { return o == k ? 1.0f : 0.0f; });
  const Array<bf16> norm = constant_bf16(kDim, 0.5f);
  const std::vector<int32_t> chosen = {2, 0};
  const Array<float> collapse = {0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 1};  // row 2: copies 1 and 3
  Array<bf16> hidden(2 * kDim);
  Array<float> logits(2 * 4);
  Step step;
  step.run(0, 3);
  HeadArgs args{.stream = stream.data(),
                .dim = kDim,
                .rows = chosen.data(),
                .count = 2,
                .collapse_with = collapse.data(),
                .norm_eps = 1e-20f,
                .mix_eps = 1e-6f,
                .norm = norm.data(),
                .head = head.matrix,
                .hidden = hidden.data(),
                .logits = logits.data()};
  kernels->head(step.rows(), args);
  EXPECT_EQ(bf16_to_float(hidden[2]), 4);
  EXPECT_EQ(bf16_to_float(hidden[kDim]), 2);
  const float normed = round_bf16(std::sqrt(32.0f) * 0.5f);
  EXPECT_EQ(logits.vector(), (std::vector<float>{0, 0, normed, 0, normed, 0, 0, 0}));

  // V4: four sigmoid weights from the row itself.
  const Array<float> fn(kStreams * kStreams * kDim);
  const Array<float> base = {-50, 0, -50, -50};
  const Array<float> scale = {1};
  args.collapse_with = nullptr;
  args.mix = {fn.data(), base.data(), scale.data()};
  kernels->head(step.rows(), args);
  EXPECT_NEAR(bf16_to_float(hidden[2]), 0.5, 1e-2);

  // The best tokens as choose() gives them: none of a row that is not finite.
  Array<int32_t> best(2, -7), chosen_apart(2, -7);
  args.best = best.data();
  args.collapse_with = collapse.data();
  stream[2 * kStreams * kDim + kDim + 2] = float_to_bf16(NAN);
  kernels->head(step.rows(), args);
  kernels->choose(step.rows(), {.logits = logits.data(), .count = 2, .vocab = 4, .best = chosen_apart.data()});
  EXPECT_EQ(best.vector(), (std::vector<int32_t>{-1, 0}));
  EXPECT_EQ(best.vector(), chosen_apart.vector());
}

TEST_P(Streams, MarkovAddsTheBiasOfThePreviousTokenAndScoresHiddenAndEmbedding) {
  const int vocab = 3;
  const int rank = 32;
  Array<bf16> w1(vocab * rank);
  w1[2 * rank + 4] = float_to_bf16(3);  // token 2 embeds as 3 at rank 4
  const Weight w2 = bf16_weight(vocab, rank, [](int o, int k) { return k == 4 ? static_cast<float>(o) : 0.0f; });
  const Weight confidence = bf16_weight(1, kDim + rank, [](int, int k) {
    return k == 1 ? 10.0f : k == kDim + 4 ? 100.0f : 0.0f;
  });
  Array<bf16> hidden(kDim);
  hidden[1] = float_to_bf16(2);
  Array<float> logits = {0.5f, 0.5f, 0.5f};
  Array<float> sure(1);
  const Array<int32_t> previous = {2};
  Step step;
  step.run(7, 1).tokens({1});
  kernels->markov(step.rows(), {.prev = previous.data(),
                                .w1 = w1.data(),
                                .w2 = w2.matrix,
                                .confidence = confidence.matrix,
                                .hidden = hidden.data(),
                                .dim = kDim,
                                .rank = rank,
                                .logits = logits.data(),
                                .confidence_out = sure.data()});
  EXPECT_EQ(logits.vector(), (std::vector<float>{0.5f, 3.5f, 6.5f}));
  EXPECT_EQ(sure[0], 2 * 10 + 3 * 100);
  // Without one it is the row's own token.
  kernels->markov(step.rows(),
                  {.row = 0, .w1 = w1.data(), .w2 = w2.matrix, .dim = kDim, .rank = rank, .logits = logits.data()});
  EXPECT_EQ(logits.vector(), (std::vector<float>{0.5f, 3.5f, 6.5f}));  // token 1 embeds as zeros
}

TEST_P(Streams, ChooseTakesTheBestTokenTiesToTheLowerAndNoneOfARowThatIsNotFinite) {
  constexpr int kVocab = 20'011;
  Random random(3);
  Array<float> logits(random.floats(6 * kVocab));
  const auto at = [&](int row, int id) -> float& { return logits[static_cast<size_t>(row) * kVocab + id]; };
  at(0, kVocab - 1) = 100;
  at(1, 9000) = at(1, 8999) = at(1, 19'000) = 100;
  at(2, 5) = 100, at(2, 12'345) = std::nanf("");
  at(3, 5) = 100, at(3, 0) = -INFINITY;
  at(4, 5) = INFINITY;
  for (int id = 0; id < kVocab; ++id) at(5, id) = -3;
  Step step;
  step.run(0, 6);
  Array<int32_t> best(6, 77);
  kernels->choose(step.rows(), {.logits = logits.data(), .count = 6, .vocab = kVocab, .best = best.data()});
  EXPECT_EQ(best.vector(), (std::vector<int32_t>{kVocab - 1, 8999, -1, -1, -1, 0}));
}

}  // namespace
}  // namespace onelane
