// The bytes and operations of `onelane bench step`, by hand.
#include "cli/step_cost.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/step_meter.h"
#include "cli/step_report.h"

namespace onelane {
namespace {

Matrix fp8(int out, int in, int block) {
  return {.kind = Matrix::Kind::kFp8, .out = out, .in = in, .block = block, .act_block = block};
}
Matrix fp4(int out, int in) { return {.kind = Matrix::Kind::kFp4, .out = out, .in = in, .act_block = 32}; }
Matrix plain(int out, int in) { return {.kind = Matrix::Kind::kBf16, .out = out, .in = in}; }

// Two sequences: 6 rows from position 1000, 2 rows from position 50.
struct TwoRuns {
  std::vector<RowRun> runs = {{0, 6, 1000, 0}, {6, 2, 50, 1}};
  StepRows rows{.count = 8, .runs = runs.data(), .run_count = 2};
};

TEST(StepCost, MatricesWithTheirScales) {
  EXPECT_EQ(bytes_of(Matrix{}), 0);
  EXPECT_EQ(bytes_of(plain(3, 64)), 384);
  EXPECT_EQ(bytes_of(fp8(1024, 4096, 128)), 1024 * 4096 + 8 * 32);
  EXPECT_EQ(bytes_of(fp8(100, 64, 32)), 6400 + 4 * 2);  // the last tile is a part
  EXPECT_EQ(bytes_of(fp4(2048, 4096)), 2048 * 4096 / 2 + 2048 * 128);
}

TEST(StepCost, DistinctLeavesNothingOutButNegatives) {
  EXPECT_EQ(distinct({}), 0);
  const std::vector<int32_t> ids = {5, -1, 5, 0, 7, -1, 0};
  EXPECT_EQ(distinct(ids), 3);
  const std::vector<int32_t> none = {-1, -1};
  EXPECT_EQ(distinct(none), 0);
}

TEST(StepCost, ExpertsCountThoseThatWerePicked) {
  const TwoRuns step;
  const std::vector<ExpertWeights> experts(8, {fp4(128, 256), fp4(256, 128), fp4(128, 256)});
  const ExpertsArgs args{.dim = 256,
                         .inter = 128,
                         .experts = experts.data(),
                         .expert_count = 8,
                         .topk = 2,
                         .shared = {fp8(128, 256, 32), fp8(256, 128, 32), fp8(128, 256, 32)}};
  const std::vector<int32_t> ids = {0, 1, 0, 2, 1, 2, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
  const double routed = 3 * (128 * 256 / 2 + 128 * 256 / 32), shared = 3 * (128 * 256 + 128 * 256 / 1024);
  const StageCost cost = cost_of(step.rows, args, ids);
  EXPECT_EQ(cost.bytes, 3 * routed + shared + 2 * 8 * 256 * 2 + 8 * 8 * 2);
  EXPECT_EQ(cost.flops, 2.0 * 3 * 128 * 256 * (16 + 8));

  // With a router its gate and bias; x is read once.
  const float bias = 0;
  const RouteArgs router{.dim = 256, .gate = plain(8, 256), .bias = &bias, .experts = 8, .topk = 2};
  ExpertsArgs routed_too = args;
  routed_too.router = &router;
  const StageCost both = cost_of(step.rows, routed_too, ids);
  EXPECT_EQ(both.bytes, cost.bytes + 2 * 8 * 256 + 4 * 8 + 8 * 8 * 2);
  EXPECT_EQ(both.flops, cost.flops + 2.0 * 8 * 8 * 256);
}

TEST(StepCost, AttentionReadsWindowsAndPicksOncePerSequence) {
  const TwoRuns step;
  AttendArgs args{.heads = 4, .kv = {.format = RecordFormat::kV41Fp8}, .ring = {.format = RecordFormat::kV41Fp8}};
  const double vectors = 2 * 8 * 4 * 512 * 2 + 4 * 4;
  const double windows = (127 + 6 + 50 + 2) * 528.0;
  EXPECT_EQ(cost_of(step.rows, args, {}).bytes, vectors + windows);
  EXPECT_EQ(cost_of(step.rows, args, {}).flops, 4.0 * 4 * 512 * (6 * 128 + 51 + 52));

  args.ratio = 4;  // all visible: 1006 / 4 and 52 / 4 entries
  args.entries.format = RecordFormat::kV41Nvfp4;
  EXPECT_EQ(cost_of(step.rows, args, {}).bytes, vectors + windows + (251 + 13) * 288.0);

  const int32_t given = 0;  // on a device: not followed
  args.picks = &given;
  args.topk = 2;
  const std::vector<int32_t> picks = {3, 9, 3, 9, 3, 9, 3, 9, 3, 9, 4, 9, 3, -1, 3, -1};
  EXPECT_EQ(cost_of(step.rows, args, picks).bytes, vectors + windows + (3 + 1) * 288.0 + 16 * 4);
}

TEST(StepCost, ADraftBlockSeesAWholeWindowBeforeItAndAllOfItself) {
  const std::vector<RowRun> runs = {{0, 5, 1000, 0}};
  const StepRows rows{.count = 5, .runs = runs.data(), .run_count = 1};
  const AttendArgs args{.heads = 4,
                        .kv = {.format = RecordFormat::kV4Fp8},
                        .ring = {.format = RecordFormat::kV4Fp8},
                        .block_attention = true};
  EXPECT_EQ(cost_of(rows, args, {}).bytes, 2 * 5 * 4 * 512 * 2 + 4 * 4 + (128 + 5) * 584.0);
  EXPECT_EQ(cost_of(rows, args, {}).flops, 4.0 * 4 * 512 * 5 * 133);
}

TEST(StepCost, TheIndexerReadsVisibleKeysOrCandidates) {
  const std::vector<RowRun> runs = {{0, 2, 1000, 0}};
  const StepRows rows{.count = 2, .runs = runs.data(), .run_count = 1};
  IndexArgs args{.heads = 4, .ratio = 2, .keys = {.format = RecordFormat::kIndexMxfp4}, .topk = 16};
  const double vectors = 2 * 2 * (4 * 128 + 4) + 4 * 2 * 16;
  EXPECT_EQ(cost_of(rows, args).bytes, vectors + 501 * 68.0);
  args.mode = IndexArgs::Candidates::kApply;
  args.topk_blocks = 3;
  args.block_size = 64;
  EXPECT_EQ(cost_of(rows, args).bytes, vectors + 192 * 68.0);
}

TEST(StepCost, QueriesAndTheDraftRing) {
  const TwoRuns step;
  QkvArgs args{.dim = 256, .wkv = fp8(512, 256, 32), .kv = {.format = RecordFormat::kV41Fp8}};
  const double kv = 512 * 256 + 16 * 8 + 8 * 256 * 2 + 512 * 2 + 8 * 528;
  EXPECT_EQ(cost_of(step.rows, args).bytes, kv);
  args.wq_a = fp8(64, 256, 32);
  args.wq_b = fp8(4 * 512, 64, 32);
  EXPECT_EQ(cost_of(step.rows, args).bytes,
            kv + 64 * 256 + 2 * 8 + 2048 * 64 + 64 * 2 + 64 * 2 + 8 * 64 * 2 + 8 * 2048 * 2);

  // What it makes for other stages.
  const double alone = cost_of(step.rows, args).bytes;
  float exact = 0;
  bf16 rounded = 0;
  args.of_x[1] = {.weights = plain(96, 256), .exact = &exact};
  args.of_qr = {.weights = fp8(128, 64, 32), .rounded = &rounded};
  EXPECT_EQ(cost_of(step.rows, args).bytes, alone + 2 * 96 * 256 + 8 * 96 * 4 + 128 * 64 + 4 * 2 + 8 * 128 * 2);
}

TEST(StepCost, ACompressorReadsItsProductsAndKeepsThem) {
  const TwoRuns step;
  const float product = 0;
  CompressArgs args{.ratio = 4};
  args.main = {.kv = &product, .gate = &product, .width = 512, .overlap = true};
  args.entries.format = RecordFormat::kV4Fp8;
  const double groups = (1006 / 4 - 1000 / 4) + (52 / 4 - 50 / 4);
  EXPECT_EQ(cost_of(step.rows, args).bytes, 2 * 8 * 2 * 4 * 1024 + 2 * 512 + groups * 584);
}

// Stages that do nothing, for a meter to count.
class IdleKernels final : public ForwardingKernels {
 public:
  using ForwardingKernels::ForwardingKernels;
  void finish() override {}
  void project_qkv(const StepRows&, const QkvArgs&) override {}
  void experts(const StepRows&, const ExpertsArgs&) override {}
};

TEST(StepMeter, NamesStagesByWhatTheyMake) {
  const TwoRuns step;
  const auto cpu = make_cpu_kernels(1);
  IdleKernels idle(*cpu);
  StepMeter meter(idle);
  meter.set(StepMeter::Mode::kCosts);
  meter.part("target");

  float exact = 0;
  bf16 rounded = 0;
  QkvArgs qkv{.dim = 256, .wkv = fp8(512, 256, 32)};
  qkv.kv.format = RecordFormat::kV41Fp8;
  meter.project_qkv(step.rows, qkv);
  qkv.wq_a = fp8(64, 256, 32);
  qkv.wq_b = fp8(4 * 512, 64, 32);
  meter.project_qkv(step.rows, qkv);
  qkv.of_x[4] = {.weights = plain(4, 256), .rounded = &rounded};
  qkv.of_qr = {.weights = fp8(512, 64, 32), .rounded = &rounded};
  meter.project_qkv(step.rows, qkv);
  qkv.of_x[0] = {.weights = plain(512, 256), .exact = &exact};
  meter.project_qkv(step.rows, qkv);
  qkv.of_qr = {};
  meter.project_qkv(step.rows, qkv);

  const std::vector<ExpertWeights> weights(2, {fp4(128, 256), fp4(256, 128), fp4(128, 256)});
  const std::vector<int32_t> ids(8, 1);
  RouteArgs router{.dim = 256, .gate = plain(2, 256), .experts = 2, .topk = 1};
  ExpertsArgs experts{.dim = 256, .inter = 128, .experts = weights.data(), .expert_count = 2, .ids = ids.data()};
  experts.topk = 1;
  meter.experts(step.rows, experts);
  experts.router = &router;
  meter.experts(step.rows, experts);
  const int64_t table = 0;
  router.tid2eid = &table;
  meter.experts(step.rows, experts);

  std::vector<std::string> names;
  for (const StageEntry& entry : meter.take()) names.push_back(entry.stage);
  EXPECT_EQ(names, (std::vector<std::string>{"project_qkv, kv alone", "project_qkv", "project_qkv, index",
                                             "project_qkv, pooled, index", "project_qkv, pooled", "experts",
                                             "route, experts", "route by hash, experts"}));
}

TEST(StepReport, MediansOfStepsAndMeansOfCosts) {
  const auto step = [](double us, double bytes) {
    return std::vector<StageEntry>{{.part = "target", .stage = "head", .calls = 1, .us = us, .cost = {bytes, 8}}};
  };
  std::vector<StageEntry> entries = median_entries({step(3, 0), step(100, 0), step(5, 0)});
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].us, 5);
  add_costs(entries, {step(0, 10), step(0, 20)});
  EXPECT_EQ(entries[0].cost.bytes, 15);
  EXPECT_EQ(entries[0].cost.flops, 8);
}

}  // namespace
}  // namespace onelane
