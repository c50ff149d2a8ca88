// Experts, case by case (spec/model.md section 5).
#include <algorithm>
#include <random>
#include <string>

#include "base/format.h"
#include "kernels/stage_support.h"
#include "numerics/quantize.h"

namespace onelane {
namespace {

using namespace testing;

constexpr int kDim = 32;

class Experts : public StageTest {};
ONELANE_EVERY_IMPLEMENTATION(Experts);

struct Expert {
  // g = gate * x, u = up * x, y = a, dim by dim.
  Expert(float gate, float up, int act_block = 32)
      : w1(fp8_weight(kDim, kDim, 32, act_block, diagonal(gate))),
        w2(fp8_weight(kDim, kDim, 32, act_block, diagonal(1))),
        w3(fp8_weight(kDim, kDim, 32, act_block, diagonal(up))) {}
  ExpertWeights weights() const { return {w1.matrix, w2.matrix, w3.matrix}; }
  Weight w1, w2, w3;
};

double silu(double x) { return x / (1 + std::exp(-x)); }

std::vector<float> run_experts(Kernels& kernels, const std::vector<ExpertWeights>& experts, const Expert& shared,
                               const Array<bf16>& x, const Array<int32_t>& ids, const Array<float>& weights) {
  Array<bf16> y(kDim);
  Step step;
  step.run(0, 1);
  kernels.experts(step.rows(), {.x = x.data(),
                                .dim = kDim,
                                .inter = kDim,
                                .experts = experts.data(),
                                .expert_count = static_cast<int>(experts.size()),
                                .ids = ids.data(),
                                .weights = weights.data(),
                                .topk = static_cast<int>(ids.size()),
                                .shared = shared.weights(),
                                .limit = 10,
                                .y = y.data()});
  std::vector<float> out;
  for (int d = 0; d < kDim; ++d) out.push_back(bf16_to_float(y[d]));
  return out;
}

// Without activation quantisation the numbers stay legible.
TEST_P(Experts, UpIsClampedOnBothSidesAndTheGateFromAboveOnly) {
  const Array<bf16> x = [] {
    Array<bf16> v(kDim);
    v[0] = float_to_bf16(4);
    v[1] = float_to_bf16(-4);
    return v;
  }();
  const Expert none(0, 0, 0);
  const auto y = [&](float gate, float up, int d) {
    const Expert expert(gate, up, 0);
    return run_experts(*kernels, {expert.weights()}, none, x, {0}, {1})[d];
  };
  EXPECT_EQ(y(4, 1, 0), round_bf16(static_cast<float>(silu(10) * 4)));      // g = 16 -> 10
  EXPECT_EQ(y(-4, 1, 0), round_bf16(static_cast<float>(silu(-16) * 4)));    // g = -16 stays
  EXPECT_EQ(y(0.25f, 4, 0), round_bf16(static_cast<float>(silu(1) * 10)));  // u = 16 -> 10
  EXPECT_EQ(y(0.25f, -4, 0), round_bf16(static_cast<float>(silu(1) * -10)));
  EXPECT_EQ(y(0.25f, 4, 1), round_bf16(static_cast<float>(silu(-1) * -10)));
}

TEST_P(Experts, TheSharedExpertIsClampedTooAndWeighsOne) {
  Array<bf16> x(kDim);
  x[0] = float_to_bf16(16);
  const Expert none(0, 0, 0);
  const std::vector<float> y = run_experts(*kernels, {none.weights()}, Expert(2, 2, 0), x, {0}, {1});
  EXPECT_EQ(y[0], round_bf16(static_cast<float>(silu(10) * 10)));
}

// Two dims of different size share a quantisation block: whether the weight comes before w2 decides what rounds.
TEST_P(Experts, TheRoutingWeightIsAppliedBeforeTheSecondProductQuantises) {
  Array<bf16> x(kDim);
  x[0] = float_to_bf16(4);
  x[1] = float_to_bf16(0.3125f);
  const float weight = 0.37f;
  const Expert expert(1, 1);
  std::vector<float> a(kDim);
  for (int d = 0; d < kDim; ++d) {
    const float v = bf16_to_float(x[d]);
    a[d] = round_bf16(weight * static_cast<float>(silu(v)) * v);
  }
  requantize_fp8(a, 32);
  const std::vector<float> y = run_experts(*kernels, {expert.weights()}, Expert(0, 0), x, {0}, {weight});
  EXPECT_EQ(y, a);
  std::vector<float> late(kDim);
  for (int d = 0; d < kDim; ++d)
    late[d] = round_bf16(static_cast<float>(silu(bf16_to_float(x[d]))) * bf16_to_float(x[d]));
  requantize_fp8(late, 32);
  EXPECT_NE(round_bf16(weight * late[0]), a[0]);  // or this proves nothing
}

// That the squares of the differences from the reference's `count` results add up to less than `bound` of those of the
// results.
void expect_as_the_reference(Kernels& kernels, const StepRows& rows, ExpertsArgs args, int count, double bound) {
  Array<bf16> y(count), want(count);
  args.y = y.data();
  kernels.experts(rows, args);
  args.y = want.data();
  make_reference_kernels()->experts(rows, args);
  double error = 0, size = 0;
  for (int i = 0; i < count; ++i) {
    const double a = bf16_to_float(y[i]), b = bf16_to_float(want[i]);
    error += (a - b) * (a - b), size += b * b;
  }
  EXPECT_GT(size, 0);
  EXPECT_LT(error, bound * size);
}

// Matrices as wide as published ones take other ways than narrow ones.
TEST_P(Experts, WideMatricesAgreeWithTheReference) {
  constexpr int kWide = 1280, kInter = 1280, kMostRows = 9, kTopk = 2;
  for (const int act_block : {32, 128}) {
    std::vector<Weight> storage;
    std::vector<ExpertWeights> list;
    for (unsigned e = 0; e <= 3; ++e) {
      const auto exponent = [](int o, int block) { return -6 - (o + block) % 3; };
      const auto weight = [&](int out, int in, unsigned seed) {
        const auto value = random_values(4 * e + seed, 2.0f);
        return e < 3 ? fp4_weight(out, in, act_block, value, exponent)
                     : fp8_weight(out, in, act_block, act_block, value, exponent);
      };
      storage.push_back(weight(kInter, kWide, 1));
      storage.push_back(weight(kWide, kInter, 2));
      storage.push_back(weight(kInter, kWide, 3));
    }
    for (unsigned e = 0; e <= 3; ++e) {
      list.push_back({storage[3 * e].matrix, storage[3 * e + 1].matrix, storage[3 * e + 2].matrix});
    }
    Array<bf16> x(kMostRows * kWide);
    const auto value = random_values(99, 1.0f);
    for (int row = 0; row < kMostRows; ++row) {
      for (int d = 0; d < kWide; ++d) x[row * kWide + d] = float_to_bf16(value(row, d));
    }
    // Experts of several rows, and of both places of a row.
    Array<int32_t> ids(kMostRows * kTopk);
    Array<float> weights(kMostRows * kTopk);
    for (int i = 0; i < kMostRows * kTopk; ++i) {
      ids[i] = (i / kTopk + i % kTopk * 2) * 2 % 3;
      weights[i] = 0.5f + 0.125f * static_cast<float>(i % 5);
    }
    ids[1] = ids[0];
    for (const int rows : {1, 2, 8, 9}) {  // the GPU's blocks plan eight themselves
      SCOPED_TRACE(std::to_string(rows) + " rows, act_block " + std::to_string(act_block));
      Step step;
      step.run(0, rows);
      const ExpertsArgs args{.x = x.data(),
                             .dim = kWide,
                             .inter = kInter,
                             .experts = list.data(),
                             .expert_count = 3,
                             .ids = ids.data(),
                             .weights = weights.data(),
                             .topk = kTopk,
                             .shared = list[3],
                             .limit = 10};
      expect_as_the_reference(*kernels, step.rows(), args, rows * kWide, 1e-5);
    }
  }
}

// Of each pair of quads the first has the large scales, and nothing else: the sums are those of the second.
TEST_P(Experts, SmallScalesCountBesideLargeOnes) {
  constexpr int kWide = 1280, kRows = 8, kFew = 7;  // with eight an expert the GPU goes another way
  const auto is_large = [](int k) { return k / 128 % 2 == 0; };
  for (const bool of_weights : {true, false}) {
    for (const int act_block : {32, 128}) {
      SCOPED_TRACE(std::string(of_weights ? "weights" : "activations") + ", " + std::to_string(act_block));
      // In the first product scales of weights are 2^-25 (fp4) or 2^-18 (fp8) of the large ones, or of activations
      // 2^-18.
      std::vector<Weight> storage;
      for (unsigned e = 0; e < 2; ++e) {
        const int small = of_weights ? (e == 0 ? -25 : -18) : 0;
        const auto weight = [&](unsigned seed) {
          const auto random = random_values(3 * e + seed, 2.0f);
          const auto value = [=](int o, int k) {
            const float v = random(o, k);
            return is_large(k) ? (of_weights ? v : 0.0f) : std::ldexp(v, small);
          };
          const auto exponent = [=](int block) { return is_large(block) ? 0 : small; };
          return e == 0 ? fp4_weight(kWide, kWide, act_block, value, [=](int, int b) { return exponent(32 * b); })
                        : fp8_weight(kWide, kWide, act_block, act_block, value,
                                     [=](int, int b) { return exponent(act_block * b); });
        };
        storage.push_back(weight(1));
        const auto second = random_values(50 + e, 0.5f);
        storage.push_back(e == 0 ? fp4_weight(kWide, kWide, act_block, second)
                                 : fp8_weight(kWide, kWide, act_block, act_block, second));
        storage.push_back(weight(2));
      }
      const std::vector<ExpertWeights> list = {{storage[0].matrix, storage[1].matrix, storage[2].matrix},
                                               {storage[3].matrix, storage[4].matrix, storage[5].matrix}};
      Array<bf16> x(kRows * kWide);
      const auto value = random_values(99, 1.0f);
      for (int row = 0; row < kRows; ++row) {
        for (int d = 0; d < kWide; ++d) {
          const float v = value(row, d) * (of_weights ? 0x1p12f : 0x1p-6f);
          x[row * kWide + d] = float_to_bf16(!is_large(d) ? v : of_weights ? 0.0f : 0x1p18f * v);
        }
      }
      const Array<int32_t> ids(kRows);
      Array<float> weights(kRows);
      for (int row = 0; row < kRows; ++row) weights[row] = 1;
      for (const int rows : {kFew, kRows}) {
        SCOPED_TRACE(std::to_string(rows) + " rows");
        Step step;
        step.run(0, rows);
        const ExpertsArgs args{.x = x.data(),
                               .dim = kWide,
                               .inter = kWide,
                               .experts = list.data(),
                               .expert_count = 1,
                               .ids = ids.data(),
                               .weights = weights.data(),
                               .topk = 1,
                               .shared = list[1],
                               .limit = 10};
        expect_as_the_reference(*kernels, step.rows(), args, rows * kWide, 1e-4);
      }
    }
  }
}

// Experts of one format, wide enough for what published ones are multiplied with; scales from none to 2^4.
struct WideExperts {
  int dim, inter;
  std::vector<Weight> storage;
  std::vector<ExpertWeights> list;  // the shared one last

  WideExperts(int count, int width, int hidden, bool fp4, int act_block) : dim(width), inter(hidden) {
    const auto exponent = [](int o, int block) { return o % 31 == 7 && block % 5 == 1 ? -127 : o % 17 - 12; };
    uint32_t random = 1;
    const auto value = [&random](int, int) {
      random = random * 1664525 + 1013904223;
      return 0.3f * (static_cast<float>(random >> 8) * 0x1p-23f - 1);
    };
    for (int e = 0; e <= count; ++e) {
      const auto weight = [&](int out, int in) {
        return fp4 && e < count ? fp4_weight(out, in, act_block, value, exponent)
                                : fp8_weight(out, in, act_block, act_block, value, exponent);
      };
      storage.push_back(weight(inter, dim));
      storage.push_back(weight(dim, inter));
      storage.push_back(weight(inter, dim));
    }
    for (size_t e = 0; e < storage.size(); e += 3) {
      list.push_back({storage[e].matrix, storage[e + 1].matrix, storage[e + 2].matrix});
    }
  }
  ExpertsArgs args(const Array<bf16>& x, const Array<int32_t>& ids, const Array<float>& weights, int topk, float limit,
                   Array<bf16>& y) const {
    return {.x = x.data(),
            .dim = dim,
            .inter = inter,
            .experts = list.data(),
            .expert_count = static_cast<int>(list.size()) - 1,
            .ids = ids.data(),
            .weights = weights.data(),
            .topk = topk,
            .shared = list.back(),
            .limit = limit,
            .y = y.data()};
  }
  // y of rows [first, first + count) of x, each with one expert.
  std::vector<bf16> run(Kernels& kernels, const std::vector<bf16>& x, const std::vector<int32_t>& ids, int first,
                        int count) const {
    const Array<bf16> rows(std::vector<bf16>(x.begin() + first * dim, x.begin() + (first + count) * dim));
    const Array<int32_t> id(std::vector<int32_t>(ids.begin() + first, ids.begin() + first + count));
    Array<float> weights(static_cast<size_t>(count));
    for (int row = 0; row < count; ++row) weights[row] = 0.25f + 0.01f * static_cast<float>(first + row);
    Array<bf16> y(static_cast<size_t>(count) * dim);
    Step step;
    step.run(first, count);
    kernels.experts(step.rows(), args(rows, id, weights, 1, 10, y));
    return y.vector();
  }
  // All rows at once and eight at a time; one of them is not a number.
  void expect_same_bits(Kernels& kernels, std::vector<int32_t> ids) const {
    std::shuffle(ids.begin(), ids.end(), std::mt19937(5));
    const int rows = static_cast<int>(ids.size()), bad = rows / 2;
    std::vector<bf16> x = Random(6).bf16s(ids.size() * static_cast<size_t>(dim), 1.0f).vector();
    x[static_cast<size_t>(bad) * dim + 9] = float_to_bf16(NAN);
    const std::vector<bf16> many = run(kernels, x, ids, 0, rows);
    for (int first = 0; first < rows; first += 8) {
      const int count = std::min(8, rows - first);
      const std::vector<bf16> few = run(kernels, x, ids, first, count);
      for (int row = first; row < first + count; ++row) {
        const auto one = many.begin() + row * dim, other = few.begin() + (row - first) * dim;
        if (row == bad) {
          EXPECT_TRUE(std::all_of(one, one + dim, [](bf16 v) { return std::isnan(bf16_to_float(v)); }));
        } else {
          EXPECT_TRUE(std::all_of(one, one + dim, [](bf16 v) { return std::isfinite(bf16_to_float(v)); }));
          EXPECT_TRUE(std::any_of(one, one + dim, [](bf16 v) { return v != 0; }));
          EXPECT_TRUE(std::equal(one, one + dim, other)) << "row " << row << " of " << rows << ", expert " << ids[row];
        }
      }
    }
  }
};

// Steps of many rows take other ways than those of few, by how many rows an expert has.
TEST_P(Experts, ManyRowsHaveTheBitsOfFew) {
  if (GetParam().name == std::string("reference")) GTEST_SKIP() << "one way for all";
  const std::vector<std::vector<int>> counts = {{0, 1, 7, 8, 112, 113, 31},
                                                {33, 127, 0, 128, 129, 48, 49},
                                                {0, 0, 0, 240, 0, 0, 0},
                                                {16, 64, 65, 80, 81, 96, 97}};
  for (const int act_block : {32, 128}) {
    for (const bool fp4 : {true, false}) {
      SCOPED_TRACE(std::string(fp4 ? "fp4" : "fp8") + ", activations by " + std::to_string(act_block));
      const WideExperts experts(7, 384, 1152, fp4, act_block);
      for (const auto& of_expert : counts) {
        std::vector<int32_t> ids;
        for (int e = 0; e < 7; ++e) ids.insert(ids.end(), static_cast<size_t>(of_expert[e]), e);
        experts.expect_same_bits(*kernels, ids);
      }
    }
  }
}

TEST_P(Experts, ManyRowsHaveTheBitsOfFewAtPublishedWidths) {
  if (GetParam().name != std::string("cuda")) GTEST_SKIP() << "for GPUs: minutes elsewhere";
  WideExperts(1, 4096, 2048, true, 128).expect_same_bits(*kernels, std::vector<int32_t>(100));
  WideExperts(1, 5120, 2304, true, 32).expect_same_bits(*kernels, std::vector<int32_t>(100));
}

// With a router the stage is route() and then the experts of what it chose.
TEST_P(Experts, RouteFirstWhereThereIsARouter) {
  constexpr int kCount = 7, kTopk = 3;
  const WideExperts experts(kCount, 384, 256, true, 128);
  const Weight gate = bf16_weight(kCount, experts.dim, random_values(31, 0.2f));
  const Array<float> bias = {0.1f, 0, -0.1f, 0.3f, 0, 0, 0.2f};
  Array<int64_t> table(10 * kTopk);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int64_t>((i / kTopk + 2 * (i % kTopk)) % kCount);
  for (const bool hash : {false, true}) {
    for (const int rows : {1, 6, 8, 9, 40}) {
      SCOPED_TRACE(format("{} rows, {}", rows, hash ? "hash" : "scores"));
      Step step;
      std::vector<int32_t> tokens(static_cast<size_t>(rows));
      for (int row = 0; row < rows; ++row) tokens[row] = row % 10;
      step.run(5, rows).tokens(tokens);
      const auto pairs = static_cast<size_t>(rows) * kTopk, values = static_cast<size_t>(rows) * experts.dim;
      const Array<bf16> x = Random(8).bf16s(values);
      Array<int32_t> ids[2] = {Array<int32_t>(pairs, -1), Array<int32_t>(pairs, -1)};
      Array<float> weights[2] = {Array<float>(pairs), Array<float>(pairs)};
      Array<bf16> y[2] = {Array<bf16>(values), Array<bf16>(values)};
      for (const int together : {0, 1}) {
        const RouteArgs router{.x = x.data(),
                               .dim = experts.dim,
                               .gate = gate.matrix,
                               .bias = hash ? nullptr : bias.data(),
                               .tid2eid = hash ? table.data() : nullptr,
                               .experts = kCount,
                               .topk = kTopk,
                               .scale = 1.5f,
                               .ids = ids[together].data(),
                               .weights = weights[together].data()};
        if (together == 0) kernels->route(step.rows(), router);
        ExpertsArgs args = experts.args(x, ids[together], weights[together], kTopk, 7, y[together]);
        if (together == 1) args.router = &router;
        kernels->experts(step.rows(), args);
      }
      EXPECT_EQ(ids[1].vector(), ids[0].vector());
      EXPECT_EQ(weights[1].vector(), weights[0].vector());
      EXPECT_EQ(y[1].vector(), y[0].vector());
      EXPECT_TRUE(std::any_of(y[0].data(), y[0].data() + values, [](bf16 v) { return v != 0; }));
    }
  }
}

TEST_P(Experts, SumsTheChosenAndTheSharedExpertOnceEach) {
  Array<bf16> x(kDim);
  x[0] = float_to_bf16(8);  // silu(8 * 1) * (8 * up) = 63.97 * up in round numbers
  const auto a = [](float weight, float up) { return round_bf16(weight * static_cast<float>(silu(8)) * (8 * up)); };
  const Expert experts[] = {{1, 0.0625f, 0}, {1, 0.125f, 0}, {1, 0.25f, 0}};
  const std::vector<ExpertWeights> list = {experts[0].weights(), experts[1].weights(), experts[2].weights()};
  const Expert shared(1, 0.5f, 0);
  const std::vector<float> y = run_experts(*kernels, list, shared, x, {2, 0}, {0.5f, 1.5f});
  EXPECT_EQ(y[0], round_bf16(a(0.5f, 0.25f) + a(1.5f, 0.0625f) + a(1, 0.5f)));
}

// Where a step is recorded, the sum of a row's experts may be left to mix_streams, and must not be lost or come late
// where something else follows.
TEST_P(Experts, RecordedWithWhatFollowsGiveTheSameBits) {
  if (GetParam().name != std::string("cuda")) GTEST_SKIP() << "only GPUs record";
  constexpr int kCount = 7, kTopk = 3;
  const WideExperts experts(kCount, 384, 256, true, 128);
  const std::unique_ptr<Kernels> recording = make_device_kernels();
  enum Then { kExpandAndMix, kExpandByOthers, kMix, kExpand, kNothing };
  for (const Then then : {kExpandAndMix, kExpandByOthers, kMix, kExpand, kNothing}) {
    for (const int rows : {1, 17, 65}) {
      SCOPED_TRACE(format("{} rows, then {}", rows, static_cast<int>(then)));
      Step step;
      step.run(5, rows);
      const auto pairs = static_cast<size_t>(rows) * kTopk, values = static_cast<size_t>(rows) * experts.dim;
      Random random(rows);
      const Array<bf16> x = random.bf16s(values), before = random.bf16s(kStreams * values),
                        other = random.bf16s(values);
      Array<int32_t> ids(pairs);
      for (size_t i = 0; i < pairs; ++i) ids[i] = static_cast<int32_t>((i / kTopk + 2 * (i % kTopk)) % kCount);
      const auto floats = [&](size_t count) { return Array<float>(random.floats(count)); };
      const Array<float> weights = floats(pairs), fn = floats(kMixes * kStreams * experts.dim);
      const Array<float> base = floats(kMixes), scale = {0.02f, 0.02f, 0.02f};
      const Array<bf16> norm = random.bf16s(experts.dim);
      const Array<float> post = floats(rows * kStreams), comb = floats(rows * kStreams * kStreams);
      Array<bf16> stream(kStreams * values), y(values), mixed(values);
      Array<float> coefficients(rows * kMixes);
      const auto stages = [&] {
        recording->experts(step.rows(), experts.args(x, ids, weights, kTopk, 7, y));
        if (then == kExpandAndMix || then == kExpandByOthers || then == kExpand) {
          recording->expand_streams(step.rows(), {.stream = stream.data(),
                                                  .dim = experts.dim,
                                                  .y = then == kExpandByOthers ? other.data() : y.data(),
                                                  .post = post.data(),
                                                  .comb = comb.data()});
        }
        if (then == kExpand || then == kNothing) return;
        recording->mix_streams(step.rows(), {.stream = stream.data(),
                                             .dim = experts.dim,
                                             .weights = {fn.data(), base.data(), scale.data()},
                                             .norm_eps = 1e-6f,
                                             .mix_eps = 1e-6f,
                                             .iterations = 20,
                                             .norm = norm.data(),
                                             .pre = coefficients.data(),
                                             .post = coefficients.data() + rows * kStreams,
                                             .comb = coefficients.data() + 2 * rows * kStreams,
                                             .x = mixed.data()});
      };
      std::vector<bf16> first_y, first_stream, first_mixed;
      for (int turn = 0; turn < 4; ++turn) {  // as they are, recorded, repeated
        std::copy_n(before.data(), kStreams * values, stream.data());
        std::fill_n(y.data(), values, bf16{});
        recording->begin(step.rows());
        recording->run(&experts, static_cast<uint64_t>(100 * then + rows), stages);
        recording->finish();
        if (turn == 0) first_y = y.vector(), first_stream = stream.vector(), first_mixed = mixed.vector();
        EXPECT_EQ(y.vector(), first_y) << "turn " << turn;
        EXPECT_EQ(stream.vector(), first_stream) << "turn " << turn;
        EXPECT_EQ(mixed.vector(), first_mixed) << "turn " << turn;
      }
      EXPECT_TRUE(std::any_of(first_y.begin(), first_y.end(), [](bf16 v) { return v != 0; }));
    }
  }
}

}  // namespace
}  // namespace onelane
