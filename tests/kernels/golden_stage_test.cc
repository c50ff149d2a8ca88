// Streams, experts, Engram, head and drafter stages against the oracle's golden vectors.
#include "kernels/golden_support.h"

namespace onelane {
namespace {

using namespace testing;

class GoldenStage : public GoldenTest {};
ONELANE_GOLDEN(GoldenStage);

TEST_P(GoldenStage, RopeFrequencies) {
  const Golden g = golden("rope");
  const auto compare = [](const RopeFrequencies& table, const std::vector<float>& expected) {
    for (int i = 0; i < kRopeDim / 2; ++i) EXPECT_NEAR(table.frequency[i] / expected[i], 1.0, 1.5e-7) << i;
  };
  compare(model.rope_window, g.floats("table_a"));
  compare(model.rope_compressed, g.floats("table_b"));
}

TEST_P(GoldenStage, MixAndExpandStreams) {
  const Golden g = golden("mix_streams");
  const Step step = rows_at(g.ints("positions"));
  const StepRows rows = step.rows();
  const int dim = spec.hidden;
  const auto count = static_cast<size_t>(rows.count);
  for (const int index : {0, 1, static_cast<int>(spec.layers.size()) - 1}) {
    for (const char* sublayer : {"attn", "ffn"}) {
      const std::string stem = layer(index) + ".mix_" + sublayer;
      const BlockWeights& w = model.weights.layers[index];
      const bool attn = std::string(sublayer) == "attn";
      Array<bf16> stream(g.bf16s(stem + ".x"));
      Array<float> carried(g.has(stem + ".carried") ? g.floats(stem + ".carried") : std::vector<float>());
      Array<float> pre(count * kStreams), post(count * kStreams), comb(count * kStreams * kStreams);
      Array<bf16> x(count * dim);
      kernels->mix_streams(rows, {.stream = stream.data(),
                                  .dim = dim,
                                  .weights = attn ? w.attn_mix : w.ffn_mix,
                                  .norm_eps = spec.rms_eps,
                                  .mix_eps = spec.hyper.eps,
                                  .iterations = spec.hyper.sinkhorn_iters,
                                  .collapse_with = carried.size() > 0 ? carried.data() : nullptr,
                                  .norm = attn ? w.attn_norm : w.ffn_norm,
                                  .pre = pre.data(),
                                  .post = post.data(),
                                  .comb = comb.data(),
                                  .x = x.data()});
      expect_floats(stem + ".pre", pre.vector(), g.floats(stem + ".pre"), 1e-6);
      expect_floats(stem + ".post", post.vector(), g.floats(stem + ".post"), 1e-6);
      expect_floats(stem + ".comb", comb.vector(), g.floats(stem + ".comb"), 1e-6);
      expect_bf16(stem + ".inner", x.vector(), g.bf16s(stem + ".inner"), {1, 0.005});

      Array<bf16> y(g.bf16s(stem + ".y"));
      kernels->expand_streams(
          rows, {.stream = stream.data(), .dim = dim, .y = y.data(), .post = post.data(), .comb = comb.data()});
      expect_bf16(stem + ".out", stream.vector(), g.bf16s(stem + ".out"), {1, 0.005});
    }
  }
}

TEST_P(GoldenStage, Route) {
  const Golden g = golden("route");
  Step step = rows_at(g.ints("positions"));
  step.tokens(g.ints("token_ids"));
  const StepRows rows = step.rows();
  for (const LayerSpec& l : spec.layers) {
    const std::string stem = layer(l.index) + ".ffn";
    const BlockWeights& w = model.weights.layers[l.index];
    Array<bf16> x(g.bf16s(stem + ".x"));
    Array<int32_t> ids(static_cast<size_t>(rows.count * l.moe.topk));
    Array<float> weights(ids.size());
    kernels->route(rows, {.x = x.data(),
                          .dim = spec.hidden,
                          .gate = w.gate,
                          .bias = w.gate_bias,
                          .tid2eid = w.tid2eid,
                          .experts = l.moe.n_experts,
                          .topk = l.moe.topk,
                          .normalise = l.moe.normalise,
                          .norm_eps = l.moe.norm_eps,
                          .scale = l.moe.scaling,
                          .ids = ids.data(),
                          .weights = weights.data()});
    EXPECT_EQ(ids.vector(), g.ints(stem + ".ids")) << stem;
    expect_floats(stem + ".weights", weights.vector(), g.floats(stem + ".weights"), 1e-6);
  }
}

TEST_P(GoldenStage, Experts) {
  const Golden g = golden("experts");
  const Step step = rows_at(g.ints("positions"));
  for (int index = 0; index < 3; ++index) {
    const std::string stem = layer(index) + ".ffn";
    const BlockWeights& w = model.weights.layers[index];
    const MoeSpec& moe = spec.layers[index].moe;
    Array<bf16> x(g.bf16s(stem + ".x"));
    Array<int32_t> ids(g.ints(stem + ".ids"));
    Array<float> weights(g.floats(stem + ".weights"));
    Array<bf16> y(x.size());
    kernels->experts(step.rows(), {.x = x.data(),
                                   .dim = spec.hidden,
                                   .inter = moe.inter,
                                   .experts = w.experts.data(),
                                   .expert_count = moe.n_experts,
                                   .ids = ids.data(),
                                   .weights = weights.data(),
                                   .topk = moe.topk,
                                   .shared = w.shared,
                                   .limit = spec.swiglu_limit,
                                   .y = y.data()});
    expect_bf16(stem + ".y", y.vector(), g.bf16s(stem + ".y"), {1, 0.01});
  }
}

TEST_P(GoldenStage, Engram) {
  if (spec.engram.layers.empty()) GTEST_SKIP() << "this generation has no Engram";
  const Golden g = golden("engram");
  const std::vector<int32_t> positions = g.ints("positions");
  const Step step = rows_at(positions);
  const int columns = spec.engram.columns();
  for (const int index : spec.engram.layers) {
    const std::string stem = layer(index) + ".engram";
    const BlockWeights& w = model.weights.layers[index];
    const std::vector<int32_t> all = g.ints(stem + ".rows");
    Array<int32_t> table_rows(positions.size() * columns);
    for (size_t row = 0; row < positions.size(); ++row) {
      std::copy_n(all.begin() + positions[row] * columns, columns, table_rows.data() + row * columns);
    }
    Array<bf16> stream(g.bf16s(stem + ".x"));
    kernels->engram(step.rows(), {.stream = stream.data(),
                                  .dim = spec.hidden,
                                  .table_rows = table_rows.data(),
                                  .columns = columns,
                                  .table = w.engram_table,
                                  .table_scale = w.engram_table_scale,
                                  .width = spec.engram.head_dim,
                                  .wkv = w.engram_wkv,
                                  .q_weight = w.engram_q_weight,
                                  .k_weight = w.engram_k_weight,
                                  .norm_eps = spec.rms_eps});
    expect_bf16(stem + ".out", stream.vector(), g.bf16s(stem + ".out"), {1, 0.005});
  }
}

TEST_P(GoldenStage, Head) {
  const Golden g = golden("head");
  const Step step = rows_at(g.ints("positions"));
  const StepRows rows = step.rows();
  Array<bf16> stream(g.bf16s("x"));
  Array<float> carried(g.has("carried") ? g.floats("carried") : std::vector<float>());
  std::vector<int32_t> chosen(static_cast<size_t>(rows.count));
  std::iota(chosen.rbegin(), chosen.rend(), 0);  // in another order than the rows stand in
  Array<bf16> hidden(chosen.size() * spec.hidden);
  Array<float> logits(chosen.size() * spec.vocab);
  kernels->head(rows, {.stream = stream.data(),
                       .dim = spec.hidden,
                       .rows = chosen.data(),
                       .count = rows.count,
                       .collapse_with = carried.size() > 0 ? carried.data() : nullptr,
                       .mix = model.weights.head_mix,
                       .norm_eps = spec.rms_eps,
                       .mix_eps = spec.hyper.eps,
                       .norm = model.weights.norm,
                       .head = model.weights.head,
                       .hidden = hidden.data(),
                       .logits = logits.data()});
  const std::vector<bf16> h = g.bf16s("h");
  const std::vector<float> expected = g.floats("logits");
  std::vector<bf16> h_reversed;
  std::vector<float> logits_reversed;
  for (const int32_t row : chosen) {
    h_reversed.insert(h_reversed.end(), h.begin() + row * spec.hidden, h.begin() + (row + 1) * spec.hidden);
    logits_reversed.insert(logits_reversed.end(), expected.begin() + row * spec.vocab,
                           expected.begin() + (row + 1) * spec.vocab);
  }
  expect_bf16("head.h", hidden.vector(), h_reversed, {1, 0.005});
  // A last bit of h moves the logits of its row by about 2^-9 of one addend.
  expect_floats("head.logits", logits.vector(), logits_reversed, 2e-3);
}

TEST_P(GoldenStage, MainInput) {
  const Golden g = golden("draft_block");
  for (const std::string label : {"long", "short"}) {
    Array<bf16> taps(g.bf16s(label + ".taps"));
    const int count = static_cast<int>(taps.size()) / spec.tap_width();
    Array<bf16> main_x(static_cast<size_t>(count) * spec.hidden);
    Step step;
    step.run(0, count);
    kernels->main_input(step.rows(), {.taps = taps.data(),
                                      .main_proj = model.weights.drafter.main_proj,
                                      .norm = model.weights.drafter.main_norm,
                                      .norm_eps = spec.rms_eps,
                                      .main_x = main_x.data()});
    expect_bf16(label + ".main_x", main_x.vector(), g.bf16s(label + ".main_x"), {1, 0.01});
  }
}

TEST_P(GoldenStage, MarkovChain) {
  const Golden g = golden("draft_block");
  const DrafterWeights& w = model.weights.drafter;
  for (const std::string label : {"long", "short"}) {
    Array<bf16> hidden(g.bf16s(label + ".hidden"));
    Array<float> logits(g.floats(label + ".base_logits"));
    const std::vector<float> confidence = g.floats(label + ".confidence");
    const std::vector<int32_t> drafts = g.ints(label + ".draft_ids");
    Array<int32_t> previous(g.ints(label + ".anchor"));
    Array<float> actual(drafts.size());
    Step step;
    step.run(0, 1);
    for (size_t i = 0; i < drafts.size(); ++i) {
      float* row = logits.data() + i * spec.vocab;
      kernels->markov(step.rows(), {.prev = previous.data(),
                                    .w1 = w.markov_w1,
                                    .w2 = w.markov_w2,
                                    .confidence = w.confidence,
                                    .hidden = hidden.data() + i * spec.hidden,
                                    .dim = spec.hidden,
                                    .rank = spec.dspark.markov_rank,
                                    .logits = row,
                                    .confidence_out = &actual[i]});
      kernels->choose(step.rows(), {.logits = row, .count = 1, .vocab = spec.vocab, .best = previous.data()});
      EXPECT_EQ(previous[0], drafts[i]) << label << " draft " << i;
    }
    expect_floats(label + ".logits", logits.vector(), g.floats(label + ".logits"), 1e-6);
    expect_floats(label + ".confidence", actual.vector(), confidence, 1e-6);
  }
}

}  // namespace
}  // namespace onelane
