// Synthetic models: published shapes, cut anywhere; bytes that a model can be run on.
#include "model/synthetic.h"

#include <cmath>
#include <filesystem>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "checkpoint/config.h"
#include "checkpoint/footprint.h"
#include "checkpoint/inventory.h"
#include "checkpoint/tiny_models.h"
#include "engine/session.h"
#include "model/routing.h"
#include "model/synthetic_bytes.h"
#include "numerics/formats.h"
#include "support/data.h"
#include "support/forwarding_kernels.h"
#include "support/gpu.h"

namespace onelane {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PublishedShapes : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(PublishedShapes, AreThoseOfTheConfig) {
  const auto [family, name] = GetParam();
  const std::string dir = shared_path(std::string("configs/") + name);
  ONELANE_SKIP_WITHOUT(dir);
  EXPECT_EQ(*synthetic_spec(family), *load_config(dir));
}

TEST_P(PublishedShapes, CanBeCutAnywhere) {
  const ModelSpec whole = *synthetic_spec(GetParam().first);
  for (int layers = 1; layers <= static_cast<int>(whole.layers.size()); ++layers) {
    SCOPED_TRACE(layers);
    const ModelSpec spec = first_layers(whole, layers);
    EXPECT_EQ(static_cast<int>(spec.layers.size()), layers);
    EXPECT_EQ(spec.draft_stages, whole.draft_stages);
    EXPECT_EQ(static_cast<int>(spec.dspark.target_layers.size()), std::min(3, layers));
    EXPECT_EQ(spec.dspark.target_layers.back(), layers - 1);
    EXPECT_TRUE(std::is_sorted(spec.dspark.target_layers.begin(), spec.dspark.target_layers.end()));
    EXPECT_EQ(spec.candidate.source_layer, layers > whole.candidate.source_layer ? whole.candidate.source_layer : -1);
    std::vector<int> engram;
    for (const LayerSpec& layer : spec.layers) {
      EXPECT_LT(layer.kv_owner, layers);
      EXPECT_LT(layer.index_owner, layers);
      if (layer.engram) engram.push_back(layer.index);
      if (layer.candidate_source || layer.candidate_masked) {
        EXPECT_GE(spec.candidate.source_layer, 0);
      }
    }
    EXPECT_EQ(spec.engram.layers, engram);
  }
  EXPECT_EQ(first_layers(whole, static_cast<int>(whole.layers.size())), whole);
}

INSTANTIATE_TEST_SUITE_P(Families, PublishedShapes,
                         ::testing::Values(std::pair("v4", "v4-flash-0731"), std::pair("v41", "v41-flash")),
                         [](const auto& family) { return std::string(family.param.first); });

TEST(SyntheticSpec, HasThePublishedNumberOfBytes) {
  const KindTotal v4 = footprint(*synthetic_spec("v4"), {}).weights;
  EXPECT_EQ(v4.tensors, 72'317);
  EXPECT_EQ(v4.bytes, 166'878'536'440);
  const KindTotal v41 = footprint(*synthetic_spec("v41"), {}).weights;
  EXPECT_EQ(v41.tensors, 96'085);
  EXPECT_EQ(v41.bytes, 510'286'023'000);
}

TEST(SyntheticSpec, OtherNamesAreRefused) {
  const auto spec = synthetic_spec("v5");
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(spec.error().message, HasSubstr("'v4' and 'v41'"));
}

// Every layer of the published model, each as narrow as the formats allow.
ModelSpec narrow(const std::string& family) {
  ModelSpec spec = *synthetic_spec(family);
  spec.vocab = 512;
  spec.hidden = 256;
  spec.n_heads = 4;
  spec.q_lora = 128;
  spec.o_lora = 64;
  spec.o_groups = 2;
  spec.indexer.heads = 2;
  spec.indexer.topk = 32;
  spec.dspark.noise_token_id = 3;
  spec.dspark.markov_rank = 32;
  spec.engram.compressed_vocab_size = 400;
  for (auto* blocks : {&spec.layers, &spec.draft_stages}) {
    for (LayerSpec& layer : *blocks) {
      layer.moe.n_experts = 8;
      layer.moe.topk = 2;
      layer.moe.inter = 128;
    }
  }
  return spec;
}

constexpr int64_t kEngramBytes = 4 << 20;

std::unique_ptr<Model> make(ModelSpec spec, SyntheticOptions options, Kernels* kernels = testing::model_kernels()) {
  options.engram_bytes = kEngramBytes;
  auto model = synthetic_model(std::move(spec), options, kernels);
  EXPECT_TRUE(model) << (model ? "" : model.error().message);
  return model ? *std::move(model) : nullptr;
}

// Logits after each of `count` different tokens, then of a draft block.
std::vector<std::vector<float>> logits_of(const Model& model, Kernels& kernels, int count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = 4 + 7 * i % (model.spec.vocab - 4);
  auto session = Session::create(model, kernels, {.max_tokens = count + 8});
  EXPECT_TRUE(session);
  std::vector<std::vector<float>> logits;
  EXPECT_TRUE((*session)->append_rows(
      tokens, [&](int, std::span<const float> row) { logits.emplace_back(row.begin(), row.end()); }));
  auto drafts = (*session)->draft(5, model.spec.dspark.block_size);
  EXPECT_TRUE(drafts);
  EXPECT_EQ(static_cast<int>(drafts->size()), model.spec.dspark.block_size);
  for (const DraftToken& draft : *drafts) EXPECT_TRUE(std::isfinite(draft.confidence));
  return logits;
}

double correlation(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

class SyntheticModel : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Kernels> kernels_ = testing::make_test_kernels(2);
};

TEST_P(SyntheticModel, KeepsTokensFiniteAndApartThroughAllLayers) {
  constexpr int kTokens = kSanitized ? 12 : 140;
  const auto model = make(narrow(GetParam()), {});
  ASSERT_NE(model, nullptr);
  const auto logits = logits_of(*model, *kernels_, kTokens);
  ASSERT_EQ(logits.size(), static_cast<size_t>(kTokens));
  for (size_t row = 0; row < logits.size(); ++row) {
    double squares = 0;
    for (const float value : logits[row]) squares += double{value} * value;
    const double rms = std::sqrt(squares / static_cast<double>(logits[row].size()));
    EXPECT_TRUE(rms > 0.3 && rms < 3) << row << ": " << rms;  // NaN is neither
    if (row > 0) {
      EXPECT_LT(correlation(logits[row], logits[row - 1]), 0.8) << row;
    }
  }
}

TEST_P(SyntheticModel, IsAFunctionOfItsSeed) {
  const ModelSpec spec = first_layers(narrow(GetParam()), 3);
  const auto first = logits_of(*make(spec, {.seed = 1}), *kernels_, 3);
  EXPECT_EQ(first, logits_of(*make(spec, {.seed = 1}), *kernels_, 3));
  EXPECT_NE(first, logits_of(*make(spec, {.seed = 2}), *kernels_, 3));
}

// Memory of a device with little of it.
class SmallMemory : public Memory {
 public:
  std::byte* allocate(size_t bytes) override {
    ++allocations;
    left -= static_cast<int64_t>(bytes);
    return left < 0 ? nullptr : host_memory().allocate(bytes);
  }
  void release(std::byte* data) override { host_memory().release(data); }
  void copy(void* to, const void* from, size_t bytes) override { host_memory().copy(to, from, bytes); }
  void fill(void* to, int byte, size_t bytes) override { host_memory().fill(to, byte, bytes); }
  int64_t available() const override { return left; }
  bool on_host() const override { return false; }

  int64_t left = 0;
  int allocations = 0;
};

class SmallDevice : public ForwardingKernels {
 public:
  using ForwardingKernels::ForwardingKernels;
  Memory& memory() override { return small; }
  Memory& shared_memory() override { return host_memory(); }
  SmallMemory small;
};

TEST_P(SyntheticModel, TakesAsManyLayersAsFit) {
  const ModelSpec spec = narrow(GetParam());
  const auto cpu = make_cpu_kernels(1);
  constexpr int64_t kReserve = 64 << 20;
  SmallDevice device(*cpu);
  device.small.left = kReserve + Weights::device_bytes(first_layers(spec, 7)) + 1000;
  const auto model = make(spec, {.reserve_bytes = kReserve}, &device);
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->spec.layers.size(), 7U);
  EXPECT_GE(device.small.left, kReserve);
  EXPECT_EQ(device.small.allocations, 1);  // all weights together
  const auto on_host = make(spec, {.layers = 7}, nullptr);
  EXPECT_EQ(logits_of(*model, device, 3), logits_of(*on_host, *cpu, 3));

  SmallDevice another(*cpu);
  another.small.left = Weights::device_bytes(first_layers(spec, 7));
  const auto too_many = synthetic_model(spec, {.layers = 8, .engram_bytes = kEngramBytes}, &another);
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(too_many.error().message, HasSubstr("room for 7 layers"));
  another.small.left = 1000;
  EXPECT_FALSE(synthetic_model(spec, {}, &another));
}

TEST_P(SyntheticModel, HasValuesThatItsFormatsAllow) {
  const auto model = make(narrow(GetParam()), {.layers = 4, .routing = "zipf:1.2"}, nullptr);
  ASSERT_NE(model, nullptr);
  for (const BlockWeights& layer : model->weights.layers) {
    const Matrix& w = layer.wq_b;
    for (int i = 0; i < w.out * w.in; ++i) {
      const float value = e4m3_to_float(static_cast<uint8_t>(w.data[i]));
      ASSERT_TRUE(std::isfinite(value));
    }
    EXPECT_NE(layer.experts[0].w1.data, layer.experts[1].w1.data);
    if (layer.tid2eid == nullptr) {
      const std::set<float> distinct(layer.gate_bias, layer.gate_bias + 8);
      EXPECT_EQ(distinct.size(), 8U);
      continue;
    }
    std::vector<int> picks(8, 0);
    for (int token = 0; token < model->spec.vocab; ++token) {
      const int64_t* ids = layer.tid2eid + 2 * token;
      ASSERT_TRUE(ids[0] >= 0 && ids[0] < 8 && ids[1] >= 0 && ids[1] < 8 && ids[0] != ids[1]);
      for (int i = 0; i < 2; ++i) ++picks[static_cast<size_t>(ids[i])];
    }
    std::sort(picks.rbegin(), picks.rend());
    EXPECT_GT(picks[0], 4 * picks[7]);
  }
  int64_t rows = 0;
  for (const LayerSpec& layer : model->spec.layers) rows += layer.engram_rows;
  EXPECT_LT(rows * 264, kEngramBytes * 12 / 10);  // primes of a few hundred lie far apart
}

TEST_P(SyntheticModel, RefusesWhatItCannotMean) {
  const ModelSpec spec = narrow(GetParam());
  for (const char* routing : {"", "zipf", "zipf:", "zipf:x", "zipf:1x", "zipf:-1", "zipf:5", "zipf:nan", "trace"}) {
    const auto model = synthetic_model(spec, {.routing = routing});
    ASSERT_FALSE(model) << routing;
    EXPECT_EQ(model.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(model.error().message, HasSubstr("zipf:S"));
  }
  for (const int layers : {-1, 1000}) {
    const auto model = synthetic_model(spec, {.layers = layers});
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code, ErrorCode::kInvalidArgument);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SyntheticModel, ::testing::Values("v4", "v41"),
                         [](const auto& family) { return std::string(family.param); });

// How often each rank is picked, as a share of rows whose router logits are standard normal.
std::vector<double> shares(int experts, int topk, const std::vector<float>& bias) {
  constexpr int kRows = 5000;
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  std::vector<double> share(static_cast<size_t>(experts), 0.0);
  std::vector<std::pair<float, int>> scores(static_cast<size_t>(experts));
  for (int row = 0; row < kRows; ++row) {
    for (int e = 0; e < experts; ++e) {
      const auto at = static_cast<size_t>(e);
      scores[at] = {-std::sqrt(std::log1p(std::exp(normal(generator)))) - bias[at], e};
    }
    std::nth_element(scores.begin(), scores.begin() + topk, scores.end());
    for (int i = 0; i < topk; ++i) share[static_cast<size_t>(scores[static_cast<size_t>(i)].second)] += 1.0 / kRows;
  }
  return share;
}

std::vector<double> zipf(int experts, double exponent) {
  std::vector<double> popularity;
  for (int rank = 1; rank <= experts; ++rank) popularity.push_back(std::pow(rank, -exponent));
  return popularity;
}

TEST(RouterBias, MakesPopularityFallWithTheRank) {
  EXPECT_THAT(router_bias(zipf(256, 0), 6), Each(::testing::FloatNear(0, 1e-6F)));
  EXPECT_THAT(router_bias(zipf(4, 1), 4), ElementsAre(0, 0, 0, 0));
  double sum = 0;
  for (int rank = 1; rank <= 256; ++rank) sum += 1.0 / rank;
  const auto share = shares(256, 6, router_bias(zipf(256, 1), 6));
  for (const int rank : {1, 2, 3, 5, 10, 20, 40}) {
    EXPECT_NEAR(share[static_cast<size_t>(rank - 1)] / (6 / sum / rank), 1, 0.2) << rank;
  }
  // The tail, together.
  double tail = 0, tail_expected = 0;
  for (int rank = 101; rank <= 256; ++rank) {
    tail += share[static_cast<size_t>(rank - 1)];
    tail_expected += 6 / sum / rank;
  }
  EXPECT_NEAR(tail / tail_expected, 1, 0.2);
}

TEST(RouterBias, LeavesOutWhoWasNeverPicked) {
  std::vector<double> popularity(64, 1.0);
  for (size_t expert = 0; expert < 16; ++expert) popularity[4 * expert] = 0;
  const auto share = shares(64, 4, router_bias(popularity, 4));
  for (size_t expert = 0; expert < 64; ++expert) {
    EXPECT_NEAR(share[expert], expert % 4 == 0 ? 0 : 4.0 / 48, 0.02) << expert;
  }
  for (const float bias : router_bias({1, 0, 0, 0}, 2)) EXPECT_TRUE(std::isfinite(bias));
}

TEST(Routing, FollowsTheTraceOfARealModel) {
  const std::string path = ::testing::TempDir() + "routing.json";
  ASSERT_TRUE(write_file(path, routing_trace_json({{0, {1, 2, 0}}, {2, {0, 0, 5}}})));
  const auto routing = Routing::parse("trace:" + path);
  ASSERT_TRUE(routing) << routing.error().message;
  EXPECT_FALSE(routing->uniform());
  Random random(1);
  EXPECT_THAT(*routing->popularity(0, 3, random), ElementsAre(1, 2, 0));
  EXPECT_THAT(*routing->popularity(2, 3, random), ElementsAre(0, 0, 5));
  EXPECT_THAT(*routing->popularity(-1, 3, random), ElementsAre(1, 1, 1));
  EXPECT_THAT(routing->popularity(1, 3, random).error().message, HasSubstr("no layer 1"));
  EXPECT_THAT(routing->popularity(0, 4, random).error().message, HasSubstr("3 experts in layer 0, the model 4"));
  ASSERT_TRUE(write_file(path, "{}"));
  EXPECT_THAT(Routing::parse("trace:" + path).error().message, HasSubstr(path + ": format is not"));
  EXPECT_THAT(Routing::parse("trace:/no/such/file").error().message, HasSubstr("/no/such/file"));
}

TEST(SyntheticBytes, FollowTheirContent) {
  BytePools pools;
  const Content normal{DType::kF32, 1, 0.5}, scales{DType::kF8E8M0, -10.5, 0.5}, pairs{DType::kI8, 0, 2};
  for (const Content& content : {normal, scales, pairs}) pools.plan(content, 40'000);
  Random random(5);
  pools.fill(random, host_memory());
  double sum = 0, squares = 0;
  const auto floats = pools.view(normal, 40'000, random);
  for (size_t i = 0; i < 10'000; ++i) {
    float value = 0;
    std::memcpy(&value, floats.data() + 4 * i, sizeof(value));
    sum += value;
    squares += (value - 1.0) * (value - 1.0);
  }
  EXPECT_NEAR(sum / 10'000, 1, 0.03);
  EXPECT_NEAR(std::sqrt(squares / 10'000), 0.5, 0.02);
  std::set<int> exponents;
  for (const std::byte code : pools.view(scales, 40'000, random)) exponents.insert(static_cast<int>(code) - 127);
  EXPECT_TRUE(*exponents.begin() >= -13 && *exponents.rbegin() <= -8);
  squares = 0;
  for (const std::byte pair : pools.view(pairs, 40'000, random)) {
    for (const int code : {static_cast<int>(pair) & 15, static_cast<int>(pair) >> 4}) {
      squares += std::pow(e2m1_to_float(static_cast<uint8_t>(code)), 2);
    }
  }
  EXPECT_NEAR(std::sqrt(squares / 80'000), 2, 0.15);
  EXPECT_NE(pools.view(normal, 4, random).data(), pools.view(normal, 4, random).data());
}

TEST(NormalQuantile, InvertsTheDistribution) {
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-9);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963985, 1e-8);
  EXPECT_NEAR(normal_quantile(1e-6), -4.753424309, 1e-7);
}

}  // namespace
}  // namespace onelane
