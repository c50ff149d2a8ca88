// Router and Engram, case by case (spec/model.md sections 5 and 7.1).
#include "kernels/stage_support.h"

namespace onelane {
namespace {

using namespace testing;

constexpr int kDim = 32;

double score(double z) { return std::sqrt(z > 20 ? z : std::log1p(std::exp(z))); }

// Four experts; z of expert e is x[e].
struct Router {
  explicit Router(const std::vector<float>& z, int k = 2)
      : gate(bf16_weight(4, kDim, [](int o, int k_) { return o == k_ ? 1.0f : 0.0f; })),
        x(kDim),
        ids(static_cast<size_t>(k), -7),
        weights(static_cast<size_t>(k)) {
    for (int e = 0; e < 4; ++e) x[e] = float_to_bf16(z[e]);
    step.run(0, 1).tokens({2});
    args = {.x = x.data(),
            .dim = kDim,
            .gate = gate.matrix,
            .bias = bias.data(),
            .experts = 4,
            .topk = k,
            .scale = 1.5f,
            .ids = ids.data(),
            .weights = weights.data()};
  }
  Step step;
  Weight gate;
  Array<float> bias = Array<float>(4);
  Array<bf16> x;
  Array<int32_t> ids;
  Array<float> weights;
  RouteArgs args;
};

class Route : public StageTest {};
ONELANE_EVERY_IMPLEMENTATION(Route);

TEST_P(Route, TakesTheBestFirstAndNormalisesTheirUnbiasedScores) {
  Router router({0, 2, 1, -1});
  router.bias[3] = 10;  // chosen for its bias, weighed by its score
  kernels->route(router.step.rows(), router.args);
  EXPECT_EQ(router.ids.vector(), (std::vector<int32_t>{3, 1}));
  const double sum = score(-1) + score(2);
  EXPECT_NEAR(router.weights[0], score(-1) / sum * 1.5, 1e-6);
  EXPECT_NEAR(router.weights[1], score(2) / sum * 1.5, 1e-6);
}

TEST_P(Route, TiesGoToTheLowerExpert) {
  Router router({1, 0, 1, 1});
  kernels->route(router.step.rows(), router.args);
  EXPECT_EQ(router.ids.vector(), (std::vector<int32_t>{0, 2}));
}

TEST_P(Route, HashedTokensTakeTheExpertsOfTheirTableRow) {
  Router router({0, 1, 2, 3});
  const Array<int64_t> table = {0, 1, 0, 1, 2, 0, 0, 1};  // token 2: experts 2 and 0
  router.args.bias = nullptr;
  router.args.tid2eid = table.data();
  kernels->route(router.step.rows(), router.args);
  EXPECT_EQ(router.ids.vector(), (std::vector<int32_t>{2, 0}));
  EXPECT_NEAR(router.weights[0] / router.weights[1], score(2) / score(0), 1e-6);
}

TEST_P(Route, WithoutNormalisationTheScoreIsTheWeight) {
  Router router({0, 2, 1, -1}, 1);
  router.args.normalise = false;
  kernels->route(router.step.rows(), router.args);
  EXPECT_EQ(router.ids[0], 1);
  EXPECT_NEAR(router.weights[0], score(2) * 1.5, 1e-6);
}

TEST_P(Route, ScoresThatUnderflowGiveEqualWeightsAndLargeOnesDoNotOverflow) {
  Router cold({-200, -200, -200, -200});
  kernels->route(cold.step.rows(), cold.args);
  EXPECT_EQ(cold.ids.vector(), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(cold.weights.vector(), (std::vector<float>{0.75f, 0.75f}));
  Router hot({1000, 4000, 0, 0});
  kernels->route(hot.step.rows(), hot.args);
  EXPECT_NEAR(hot.weights[0], 1.0, 1e-6);  // sqrt(4000) = 2 sqrt(1000)
  EXPECT_NEAR(hot.weights[1], 0.5, 1e-6);
}

TEST_P(Route, ANaNScoreStillChoosesExistingExperts) {
  Router router({0, 1, 2, 0});
  router.bias[0] = NAN;
  kernels->route(router.step.rows(), router.args);
  EXPECT_EQ(router.ids.vector(), (std::vector<int32_t>{2, 1}));
  Router lost({NAN, NAN, NAN, NAN});
  kernels->route(lost.step.rows(), lost.args);
  EXPECT_EQ(lost.ids.vector(), (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(std::isnan(lost.weights[0]));
}

class Engram : public StageTest {};
ONELANE_EVERY_IMPLEMENTATION(Engram);

// Copies 0 and 1 agree and disagree with the key, copy 2 is empty, copy 3 has no key.
TEST_P(Engram, TheGateIsTheSigmoidOfTheSignedRoot) {
  const int dim = 64;
  // Table row 1: 1 at dim 0 of column 0; row 2: 2 at dim 0 of column 1, under a scale of 4.
  Array<uint8_t> table(3 * 32), scale(3, 127);
  table[1 * 32] = float_to_e4m3(1);
  table[2 * 32] = float_to_e4m3(0.5f);
  scale[2] = 129;
  // Keys 0, 1 and 2 are constant 1 (from column 0), key 3 is 0; the value is column 1's 2 everywhere.
  const Weight wkv = fp8_weight(5 * dim, 64, 32, 32, [](int o, int k) {
    if (o >= 4 * dim) return k == 32 ? 1.0f : 0.0f;
    return o < 3 * dim && k == 0 ? 1.0f : 0.0f;
  });
  const Array<bf16> q_weight = constant_bf16(4 * dim, 0.5f);
  const Array<bf16> k_weight = constant_bf16(4 * dim, 0.25f);
  Array<bf16> stream(kStreams * dim);
  for (int d = 0; d < dim; ++d) {
    stream[0 * dim + d] = float_to_bf16(4);
    stream[1 * dim + d] = float_to_bf16(-4);
    stream[3 * dim + d] = float_to_bf16(1);
  }
  const Array<int32_t> rows = {1, 2};
  Step step;
  step.run(0, 1);
  kernels->engram(step.rows(), {.stream = stream.data(),
                                .dim = dim,
                                .table_rows = rows.data(),
                                .columns = 2,
                                .table = table.data(),
                                .table_scale = scale.data(),
                                .width = 32,
                                .wkv = wkv.matrix,
                                .q_weight = q_weight.data(),
                                .k_weight = k_weight.data(),
                                .norm_eps = 1e-20f});
  // dot = sum of 64 * 0.5 * 0.25 / sqrt(64) = 1 for parallel unit vectors.
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  EXPECT_EQ(bf16_to_float(stream[0 * dim + 7]), round_bf16(static_cast<float>(4 + sigmoid(1) * 2)));
  EXPECT_EQ(bf16_to_float(stream[1 * dim + 7]), round_bf16(static_cast<float>(-4 + sigmoid(-1) * 2)));
  EXPECT_EQ(bf16_to_float(stream[2 * dim + 7]), 1);  // dot 0: a gate of one half
  EXPECT_EQ(bf16_to_float(stream[3 * dim + 7]), 2);
}

}  // namespace
}  // namespace onelane
