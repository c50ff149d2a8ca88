// What every stage promises besides its numbers: a row's bits depend on its own sequence and on nothing else, and bad
// numbers stay in their sequence.
#include <map>

#include "kernels/stage_support.h"

namespace onelane {
namespace {

using namespace testing;

constexpr int kDim = 64;
constexpr int kHeads = 2;
constexpr int kQueryLora = 32;
constexpr int kSlots = 3;

// An attention sublayer with random weights: V4.1's ratio 2 or V4's overlapping ratio 4 with its own index compressor.
class Sublayer {
 public:
  Sublayer(Kernels& kernels, bool v4)
      : kernels_(kernels),
        v4_(v4),
        ratio_(v4 ? 4 : 2),
        window_(v4 ? RecordFormat::kV4Fp8 : RecordFormat::kV41Fp8),
        rings_(window_, kSlots),
        entries_(v4 ? RecordFormat::kV4Fp8 : RecordFormat::kV41Nvfp4, 4 * kSlots, ratio_),
        keys_(RecordFormat::kIndexMxfp4, 4 * kSlots, ratio_),
        state_(static_cast<size_t>(kSlots) * kCapacity * 2 * main_width()),
        index_state_(static_cast<size_t>(kSlots) * kCapacity * 2 * 2 * kIndexDim) {}

  // Runs one step of rows x [rows, kDim]; returns y [rows, kDim].
  std::vector<bf16> run(const StepRows& rows, const std::vector<bf16>& x) {
    const auto count = static_cast<size_t>(rows.count);
    Array<bf16> in(x), qr(count * kQueryLora), q(count * kHeads * kHeadDim), out(q.size()), y(count * kDim);
    Records kv(window_, rows.count);
    Array<int32_t> picks(count * kTopk);
    Array<bf16> index_queries(count * kHeads * kIndexDim), head_weights(count * kHeads);
    QkvArgs qkv{.x = in.data(),
                .dim = kDim,
                .wq_a = wq_a_.matrix,
                .wq_b = wq_b_.matrix,
                .wkv = wkv_.matrix,
                .q_norm = norm_.data(),
                .kv_norm = norm_.data(),
                .q_head_norm = v4_,
                .norm_eps = 1e-6f,
                .rope = &table_b(),
                .heads = kHeads,
                .qr = qr.data(),
                .q = q.data(),
                .kv = kv.block};
    // The first rows of the larger generation's.
    Matrix pool_kv = pool_kv_.matrix, pool_gate = pool_gate_.matrix;
    pool_kv.out = pool_gate.out = main_width();
    PoolProducts products, index_products;
    Compressor main, index;
    products.ask(rows.count, pool_kv, pool_gate, qkv.of_x, main);
    if (v4_) index_products.ask(rows.count, index_kv_.matrix, index_gate_.matrix, qkv.of_x + 2, index);
    qkv.of_x[4] = {.weights = weights_proj_.matrix, .rounded = head_weights.data()};
    qkv.of_qr = {.weights = index_wq_b_.matrix, .rounded = index_queries.data()};
    kernels_.project_qkv(rows, qkv);
    compress(rows, main, index);
    kernels_.index(rows, {.queries = index_queries.data(),
                          .head_weights = head_weights.data(),
                          .heads = kHeads,
                          .ratio = ratio_,
                          .hadamard = v4_,
                          .rope = &table_b(),
                          .keys = keys_.cache,
                          .topk = kTopk,
                          .picks = picks.data()});
    kernels_.attend(rows, {.q = q.data(),
                           .heads = kHeads,
                           .kv = kv.block,
                           .ring = rings_.cache,
                           .sink = sink_.data(),
                           .rope = &table_b(),
                           .ratio = ratio_,
                           .entries = entries_.cache,
                           .picks = picks.data(),
                           .topk = kTopk,
                           .out = out.data()});
    kernels_.commit(rows, {.kv = kv.block, .ring = rings_.cache});
    kernels_.project_out(rows, {.attended = out.data(),
                                .heads = kHeads,
                                .groups = 2,
                                .wo_a = wo_a_.matrix,
                                .wo_b = wo_b_.matrix,
                                .y = y.data()});
    return y.vector();
  }

 private:
  static constexpr int kTopk = 12;
  static constexpr int kCapacity = 14;

  int main_width() const { return (v4_ ? 2 : 1) * kHeadDim; }

  void compress(const StepRows& rows, Compressor main, Compressor index) {
    main.norm = norm_.data();
    main.width = kHeadDim;
    main.overlap = v4_;
    main.state = {state_.data(), static_cast<size_t>(kCapacity) * 2 * main_width(), kCapacity};
    index.norm = norm_.data();
    index.width = kIndexDim;
    index.overlap = true;
    index.state = {index_state_.data(), static_cast<size_t>(kCapacity) * 2 * 2 * kIndexDim, kCapacity};
    kernels_.compress(rows, {.ratio = ratio_,
                             .norm_eps = 1e-6f,
                             .rope = &table_b(),
                             .main = main,
                             .entries = entries_.cache,
                             .wk = v4_ ? Matrix{} : wk_.matrix,
                             .k_norm = norm_.data(),
                             .index_compressor = v4_ ? &index : nullptr,
                             .keys = keys_.cache});
  }

  Kernels& kernels_;
  bool v4_;
  int ratio_;
  RecordFormat window_;
  Weight wq_a_ = fp8_weight(kQueryLora, kDim, 32, 32, random_values(1, 0.2f));
  Weight wq_b_ = fp8_weight(kHeads * kHeadDim, kQueryLora, 32, 32, random_values(2, 0.5f));
  Weight wkv_ = fp8_weight(kHeadDim, kDim, 32, 32, random_values(3, 0.2f));
  Weight wo_a_ = fp8_weight(2 * 48, kHeadDim, 32, 0, random_values(4, 0.2f));
  Weight wo_b_ = fp8_weight(kDim, 96, 32, 32, random_values(5, 0.2f));
  Weight pool_kv_ = bf16_weight(2 * kHeadDim, kDim, random_values(6, 0.2f));
  Weight pool_gate_ = bf16_weight(2 * kHeadDim, kDim, random_values(7, 0.2f));
  Weight index_kv_ = bf16_weight(2 * kIndexDim, kDim, random_values(8, 0.2f));
  Weight index_gate_ = bf16_weight(2 * kIndexDim, kDim, random_values(9, 0.2f));
  Weight wk_ = bf16_weight(kIndexDim, kHeadDim, random_values(10, 0.1f));
  Weight index_wq_b_ = fp8_weight(kHeads * kIndexDim, kQueryLora, 32, 32, random_values(11, 0.5f));
  Weight weights_proj_ = bf16_weight(kHeads, kDim, random_values(12, 0.2f));
  Array<bf16> norm_ = constant_bf16(kHeadDim, 1);
  Array<float> sink_ = {0.5f, -0.5f};
  Rings rings_;
  Pages entries_, keys_;
  Array<float> state_, index_state_;
};

// Runs sequences through a sublayer, `chunks` rows at a time in rotation, all sequences side by side in every step.
// Returns y of every sequence.
std::vector<std::vector<bf16>> run_side_by_side(Sublayer& sublayer, const std::vector<std::vector<bf16>>& x,
                                                const std::vector<int>& slots, const std::vector<int>& chunks) {
  std::vector<std::vector<bf16>> y(x.size());
  std::vector<size_t> done(x.size(), 0);
  for (size_t turn = 0;; ++turn) {
    Step step(kSlots, 4);
    std::vector<bf16> rows;
    std::vector<size_t> owner;
    for (size_t s = 0; s < x.size(); ++s) {
      const size_t left = x[s].size() / kDim - done[s];
      const size_t count = std::min(left, static_cast<size_t>(chunks[(turn + s) % chunks.size()]));
      if (count == 0) continue;
      step.run(static_cast<int>(done[s]), static_cast<int>(count), slots[s]);
      const auto begin = x[s].begin() + static_cast<std::ptrdiff_t>(done[s] * kDim);
      rows.insert(rows.end(), begin, begin + static_cast<std::ptrdiff_t>(count * kDim));
      owner.insert(owner.end(), count, s);
      done[s] += count;
    }
    if (owner.empty()) return y;
    const std::vector<bf16> out = sublayer.run(step.rows(), rows);
    for (size_t row = 0; row < owner.size(); ++row) {
      const auto begin = out.begin() + static_cast<std::ptrdiff_t>(row * kDim);
      y[owner[row]].insert(y[owner[row]].end(), begin, begin + kDim);
    }
  }
}

class Invariance : public StageTest {
 protected:
  std::vector<bf16> sequence(unsigned seed, int rows) {
    return Random(seed).bf16s(static_cast<size_t>(rows) * kDim).vector();
  }
};
ONELANE_EVERY_IMPLEMENTATION(Invariance);

TEST_P(Invariance, ChunksNeighboursAndSlotsDoNotChangeARowsBits) {
  for (const bool v4 : {false, true}) {
    const std::vector<bf16> x = sequence(1, 150);
    Sublayer whole(*kernels, v4);
    const std::vector<bf16> expected = run_side_by_side(whole, {x}, {0}, {150})[0];
    for (const std::vector<int>& chunks : {std::vector<int>{1, 2, 30}, {7, 3}, {130, 1, 1, 64}}) {
      Sublayer cut(*kernels, v4);
      EXPECT_EQ(run_side_by_side(cut, {x}, {2}, chunks)[0], expected) << "v4 " << v4 << " chunks of " << chunks[0];
      Sublayer shared(*kernels, v4);
      EXPECT_EQ(run_side_by_side(shared, {sequence(2, 160), x, sequence(3, 40)}, {0, 1, 2}, chunks)[1], expected)
          << "v4 " << v4 << " chunks of " << chunks[0] << ", with neighbours";
    }
  }
}

TEST_P(Invariance, ASlotAndItsPagesNeedNoClearing) {
  for (const bool v4 : {false, true}) {
    const std::vector<bf16> x = sequence(1, 50);
    Sublayer fresh(*kernels, v4);
    const std::vector<bf16> expected = run_side_by_side(fresh, {x}, {0}, {9})[0];
    Sublayer used(*kernels, v4);
    run_side_by_side(used, {sequence(4, 150)}, {0}, {50});
    EXPECT_EQ(run_side_by_side(used, {x}, {0}, {9})[0], expected) << v4;
  }
}

TEST_P(Invariance, BadNumbersStayInTheirSequence) {
  for (const bool v4 : {false, true}) {
    const std::vector<bf16> x = sequence(1, 60);
    Sublayer alone(*kernels, v4);
    const std::vector<bf16> expected = run_side_by_side(alone, {x}, {0}, {60})[0];
    for (const float fault : {NAN, INFINITY, 3e38f}) {
      std::vector<bf16> bad = sequence(2, 60);
      for (int row = 5; row < 60; row += 11) bad[static_cast<size_t>(row) * kDim + 3] = float_to_bf16(fault);
      Sublayer shared(*kernels, v4);
      const auto y = run_side_by_side(shared, {bad, x}, {0, 1}, {13});
      EXPECT_EQ(y[1], expected) << v4 << " beside " << fault;
      // Before the fault even its own sequence is untouched.
      Sublayer own(*kernels, v4);
      const std::vector<bf16> clean = run_side_by_side(own, {sequence(2, 60)}, {0}, {13})[0];
      EXPECT_TRUE(std::equal(clean.begin(), clean.begin() + 5 * kDim, y[0].begin())) << v4 << " before " << fault;
    }
  }
}

// The stages without history: every row alone, then all together with a broken row between.
TEST_P(Invariance, RowsOfTheFeedForwardStagesAreIndependent) {
  const int experts = 4;
  const Weight gate = bf16_weight(experts, kDim, random_values(1, 0.3f));
  std::vector<Weight> storage;
  std::vector<ExpertWeights> list;
  for (unsigned e = 0; e <= experts; ++e) {
    for (unsigned m = 0; m < 3; ++m) {
      storage.push_back(e < experts ? fp4_weight(kDim, kDim, 32, random_values(10 * e + m, 0.3f))
                                    : fp8_weight(kDim, kDim, 32, 32, random_values(10 * e + m, 0.3f)));
    }
    list.push_back({storage[3 * e].matrix, storage[3 * e + 1].matrix, storage[3 * e + 2].matrix});
  }
  const Array<float> bias = {0.1f, -0.1f, 0, 0.2f};
  const Array<float> fn(Random(3).floats(static_cast<size_t>(kMixes) * kStreams * kDim, 0.1f));
  const Array<float> base(Random(4).floats(kMixes));
  const Array<float> scale = {1, 1, 1};
  const Array<bf16> norm = constant_bf16(kDim, 1);
  const Weight vocabulary = bf16_weight(16, kDim, random_values(5, 1));

  // stream -> mix -> route -> experts -> expand -> head; the stream and logits of every row.
  const auto run = [&](const std::vector<bf16>& input) {
    const int count = static_cast<int>(input.size()) / (kStreams * kDim);
    const auto rows = static_cast<size_t>(count);
    Step step;
    step.run(0, count);
    Array<bf16> stream(input), x(rows * kDim), y(rows * kDim);
    Array<float> pre(rows * 4), post(rows * 4), comb(rows * 16), weights(rows * 2), logits(rows * 16);
    Array<int32_t> ids(rows * 2);
    kernels->mix_streams(step.rows(), {.stream = stream.data(),
                                       .dim = kDim,
                                       .weights = {fn.data(), base.data(), scale.data()},
                                       .norm_eps = 1e-6f,
                                       .mix_eps = 1e-6f,
                                       .norm = norm.data(),
                                       .pre = pre.data(),
                                       .post = post.data(),
                                       .comb = comb.data(),
                                       .x = x.data()});
    kernels->route(step.rows(), {.x = x.data(),
                                 .dim = kDim,
                                 .gate = gate.matrix,
                                 .bias = bias.data(),
                                 .experts = experts,
                                 .topk = 2,
                                 .scale = 1.5f,
                                 .ids = ids.data(),
                                 .weights = weights.data()});
    kernels->experts(step.rows(), {.x = x.data(),
                                   .dim = kDim,
                                   .inter = kDim,
                                   .experts = list.data(),
                                   .expert_count = experts,
                                   .ids = ids.data(),
                                   .weights = weights.data(),
                                   .topk = 2,
                                   .shared = list.back(),
                                   .limit = 10,
                                   .y = y.data()});
    kernels->expand_streams(
        step.rows(), {.stream = stream.data(), .dim = kDim, .y = y.data(), .post = post.data(), .comb = comb.data()});
    std::vector<int32_t> chosen(rows);
    for (int row = 0; row < count; ++row) chosen[row] = row;
    kernels->head(step.rows(), {.stream = stream.data(),
                                .dim = kDim,
                                .rows = chosen.data(),
                                .count = count,
                                .collapse_with = pre.data(),
                                .norm_eps = 1e-6f,
                                .norm = norm.data(),
                                .head = vocabulary.matrix,
                                .logits = logits.data()});
    return std::pair(stream.vector(), logits.vector());
  };
  const size_t width = kStreams * kDim;
  for (const int count : {2, 9, 33}) {
    std::vector<bf16> input = Random(6).bf16s(static_cast<size_t>(count) * width).vector();
    input[1 * width + 5] = float_to_bf16(NAN);
    const auto [streams, logits] = run(input);
    for (int row = 0; row < count; ++row) {
      if (row == 1) continue;
      const auto begin = input.begin() + static_cast<std::ptrdiff_t>(row * width);
      const auto [stream, logit] = run({begin, begin + static_cast<std::ptrdiff_t>(width)});
      EXPECT_TRUE(std::equal(stream.begin(), stream.end(), streams.begin() + static_cast<std::ptrdiff_t>(row * width)))
          << row;
      EXPECT_TRUE(std::equal(logit.begin(), logit.end(), logits.begin() + row * 16)) << row;
      for (const float value : logit) EXPECT_TRUE(std::isfinite(value));
    }
    EXPECT_TRUE(std::isnan(logits[16]));
  }
}

// Products so wide that a device may share a row's values out among several blocks: whole rows of scale tiles and cut
// ones, segments that end inside a block of activations, few outputs and many. A row alone, then among others, one of
// which is broken.
TEST_P(Invariance, RowsOfWideProductsAreIndependent) {
  const auto reference = make_reference_kernels();
  const std::vector<Weight> all = [] {
    std::vector<Weight> weights;
    weights.push_back(fp8_weight(48, 4096, 128, 128, random_values(1, 0.2f), [](int o, int k) { return (o + k) % 3; }));
    weights.push_back(fp8_weight(40, 4224, 128, 128, random_values(2, 0.2f)));
    weights.push_back(fp8_weight(40, 4352, 32, 128, random_values(3, 0.2f), [](int o, int k) { return (o + k) % 5; }));
    weights.push_back(fp8_weight(24, 4128, 32, 32, random_values(4, 0.2f)));
    weights.push_back(fp4_weight(24, 4160, 32, random_values(5, 0.5f)));
    weights.push_back(bf16_weight(24, 4128, random_values(6, 0.2f)));
    weights.push_back(fp8_weight(3200, 2176, 128, 128, random_values(7, 0.2f)));
    return weights;
  }();
  for (const Weight& weight : all) {
    const Matrix& matrix = weight.matrix;
    const auto in = static_cast<size_t>(matrix.in), out = static_cast<size_t>(matrix.out);
    const Array<bf16> norm = constant_bf16(out, 1);
    const auto run = [&](Kernels& on, const std::vector<bf16>& input) {
      const Array<bf16> taps(input);
      Array<bf16> x(input.size() / in * out);
      Step step;
      step.run(0, static_cast<int>(input.size() / in));
      on.main_input(step.rows(), {taps.data(), matrix, norm.data(), 1e-6f, x.data()});
      return x.vector();
    };
    const auto row_of = [](const std::vector<bf16>& rows, int row, size_t width) {
      const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(row * width);
      return std::vector<bf16>(begin, begin + static_cast<std::ptrdiff_t>(width));
    };
    for (const int count : {8, 13}) {
      std::vector<bf16> input = Random(6).bf16s(static_cast<size_t>(count) * in).vector();
      input[1 * in + 5] = float_to_bf16(NAN);
      const std::vector<bf16> together = run(*kernels, input);
      for (const int row : {0, 2, count - 1}) {
        const std::vector<bf16> of_row = row_of(together, row, out);
        EXPECT_EQ(of_row, run(*kernels, row_of(input, row, in))) << matrix.out << " x " << matrix.in << ", row " << row;
      }
      const std::vector<bf16> oracle = run(*reference, row_of(input, count - 1, in));
      for (size_t i = 0; i < out; ++i) {
        const float y = bf16_to_float(together[(count - 1) * out + i]);
        ASSERT_NEAR(y, bf16_to_float(oracle[i]), 2e-2) << matrix.out << " x " << matrix.in << ", output " << i;
      }
      EXPECT_TRUE(std::isnan(bf16_to_float(together[out])));
    }
  }
}

}  // namespace
}  // namespace onelane
