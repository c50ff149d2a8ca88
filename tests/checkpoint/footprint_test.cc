#include "checkpoint/footprint.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "checkpoint/config.h"
#include "checkpoint/tiny_models.h"

namespace onelane {
namespace {

std::string config_beside(const std::string& name) {
  return std::string(ONELANE_ROOT) + "/../shared/data/configs/" + name;
}

#define SKIP_WITHOUT(dir) \
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is not there"

TEST(Footprint, DistinctExperts) {
  EXPECT_DOUBLE_EQ(expected_distinct_experts(384, 6, 1), 6.0);
  EXPECT_DOUBLE_EQ(expected_distinct_experts(4, 4, 3), 4.0);
  EXPECT_NEAR(expected_distinct_experts(2, 1, 2), 1.5, 1e-12);
  EXPECT_NEAR(expected_distinct_experts(384, 6, 6), 34.6227, 1e-4);
  EXPECT_NEAR(expected_distinct_experts(256, 6, 100000), 256.0, 1e-9);
}

TEST(Footprint, V41Flash) {
  const std::string dir = config_beside("v41-flash");
  SKIP_WITHOUT(dir);
  const ModelSpec spec = *load_config(dir);
  const Footprint one = footprint(spec, {.rows = 1, .tokens = 100000});
  EXPECT_EQ(one.weights.tensors, 96085);
  EXPECT_EQ(one.weights.bytes, 510'286'023'000);
  EXPECT_DOUBLE_EQ(one.kv_bytes_per_token, 890.0);
  EXPECT_EQ(one.entry_bytes, 890 * 100000);
  EXPECT_EQ(one.ring_bytes, 43 * 134 * 528);
  EXPECT_EQ(one.state_bytes, 3 * 2 * 512 * 2 * 4);
  // One row reads exactly its experts: 6 of 384 in 40 layers.
  constexpr int64_t kExpert = (3 * 5120 * 2304) / 2 + (3 * 5120 * 2304) / 32;
  EXPECT_DOUBLE_EQ(one.step.experts, 40.0 * 6 * kExpert);
  // One embedding row; 24 Engram rows of 256 values and 8 scales in 2 layers.
  EXPECT_DOUBLE_EQ(one.step.rows, 5120 * 2 + 2 * 24 * 264);
  // Everything else of the backbone, once.
  int64_t dense = 0;
  for (const ExpectedTensor& tensor : expected_tensors(spec)) {
    const bool by_row = tensor.kind == TensorKind::kEmbedding || tensor.kind == TensorKind::kEngramTable;
    if (!tensor.draft && !by_row && tensor.kind != TensorKind::kExpert && tensor.kind != TensorKind::kVision) {
      dense += tensor.bytes();
    }
  }
  EXPECT_DOUBLE_EQ(one.step.dense, static_cast<double>(dense));
  // Windows of 40 layers, 512 picks in 38, keys: half of 100,001 in 3 layers, all in layer 20, 16,384 in 4.
  EXPECT_DOUBLE_EQ(one.step.kv, 40.0 * 128 * 528 + 38.0 * 512 * 288 + 68.0 * (3 * 50000 + 100001 + 4 * 16384));

  const Footprint six = footprint(spec, {.rows = 6, .tokens = 100000});
  EXPECT_NEAR(six.step.experts / one.step.experts, 34.6227 / 6, 1e-3);
  EXPECT_DOUBLE_EQ(six.step.dense, one.step.dense);
  EXPECT_DOUBLE_EQ(six.step.rows, 6 * one.step.rows);
  EXPECT_NEAR(six.step.weights(), 34.56e9, 0.01e9);
  EXPECT_NEAR(six.step.floor_us(4.8e6), (six.step.weights() + six.step.kv) / 4.8e6, 1e-6);
  // Five drafts: own experts at 128/3, the shared head, five passes over the Markov head.
  EXPECT_NEAR(six.draft.distinct_experts, expected_distinct_experts(128, 3, 5), 1e-12);
  EXPECT_GT(six.draft.dense, 129280.0 * 5120 * 2 + 5 * 129280.0 * 256 * 2);
}

TEST(Footprint, V4Flash) {
  const std::string dir = config_beside("v4-flash-0731");
  SKIP_WITHOUT(dir);
  const ModelSpec spec = *load_config(dir);
  const Footprint one = footprint(spec, {.rows = 1, .tokens = 1'000'000});
  EXPECT_DOUBLE_EQ(one.kv_bytes_per_token, 21 * (584 + 68) / 4.0 + 20 * 584 / 128.0);
  EXPECT_EQ(one.entry_bytes, 21 * 250000 * int64_t{652} + 20 * 7812 * int64_t{584});
  EXPECT_EQ(one.ring_bytes, 46 * 134 * 584);
  EXPECT_EQ(one.state_bytes, 21 * (8 * 1024 + 8 * 256) * 8 + 20 * 128 * 512 * 8);
  // Layers of ratio 128 attend to all 7,812 entries; 512 are picked elsewhere.
  EXPECT_DOUBLE_EQ(one.step.kv, 43.0 * 128 * 584 + 20.0 * 7812 * 584 + 21.0 * 512 * 584 + 21.0 * 250000 * 68);
  EXPECT_DOUBLE_EQ(one.step.rows, 4096 * 2 + 3 * 6 * 8);
  EXPECT_NEAR(footprint(spec, {.rows = 6, .tokens = 0}).step.weights(), 27.29e9, 0.01e9);
}

TEST(Footprint, ShortSequencesReadWhatIsThere) {
  const ModelSpec spec = *parse_config(tiny::v41().dump());
  const Footprint cost = footprint(spec, {.rows = 1, .tokens = 2});
  // Three positions: windows of three in four layers; one entry of ratio 2; three of ratio 1 in two layers.
  EXPECT_DOUBLE_EQ(cost.step.kv, 4.0 * 3 * 528 + 288 * (1 + 3 + 3) + 68 * (1 + 3 + 3));
  EXPECT_EQ(cost.entry_bytes, 356 + 2 * 356);
  const ModelSpec v4 = *parse_config(tiny::v4().dump(), {.draft_stages = 0});
  EXPECT_DOUBLE_EQ(footprint(v4, {.rows = 1, .tokens = 2}).draft.total(), 0.0);
}

}  // namespace
}  // namespace onelane
