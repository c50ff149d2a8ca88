// Window, sink, rotation and rings of the attention stages, case by case (spec/model.md 3.1, 4.4, 6.4).
#include <limits>
#include <tuple>
#include <utility>

#include "base/format.h"
#include "kernels/stage_support.h"
#include "numerics/quantize.h"

namespace onelane {
namespace {

using namespace testing;

constexpr float kNoSink = -std::numeric_limits<float>::infinity();
constexpr RecordFormat kWindowFormat = RecordFormat::kV41Fp8;

// One head over one sequence. Position p's kv is kv(p); history before the run is in the ring.
struct Attention {
  explicit Attention(int first, int count) : step(1, 4), kv(kWindowFormat, count), rings(kWindowFormat, 1) {
    step.run(first, count);
    q = Array<bf16>(static_cast<size_t>(count) * kHeadDim);
    out = Array<bf16>(q.size());
    args.q = q.data();
    args.heads = 1;
    args.kv = kv.block;
    args.ring = rings.cache;
    args.sink = sink.data();
    args.rope = &table_a();
    args.out = out.data();
  }
  void fill(const std::function<std::vector<float>(int)>& values) {
    const StepRows rows = step.rows();
    const int first = rows.position[0];
    for (int p = std::max(0, first - rings.cache.capacity); p < first; ++p) rings.set(0, p, values(p));
    for (int row = 0; row < rows.count; ++row) kv.set(row, values(first + row));
  }
  float at(int row, int dim) const { return bf16_to_float(out[static_cast<size_t>(row) * kHeadDim + dim]); }

  Step step;
  Array<bf16> q, out;
  Records kv;
  Rings rings;
  Array<float> sink = {kNoSink};
  AttendArgs args;
};

class Attend : public StageTest {};
ONELANE_EVERY_IMPLEMENTATION(Attend);

// With q = 0 every entry weighs the same: out[0] is 1 / n if position 0 is in the window, else 0.
TEST_P(Attend, TheWindowIsTheRowAndThe127PositionsBeforeIt) {
  for (const int last : {0, 1, 126, 127, 128, 129, 300}) {
    // History in the ring, in the step, and in both.
    for (const int first : {last, std::max(0, last - 60), std::max(0, last - 127), 0}) {
      Attention a(first, last - first + 1);
      a.fill([](int p) { return record_values({{0, p == 0 ? 1.0f : 0.0f}, {1, 1.0f}}); });
      kernels->attend(a.step.rows(), a.args);
      const int visible = std::min(last + 1, kWindow);
      EXPECT_EQ(a.at(last - first, 0), last <= 127 ? round_bf16(1.0f / static_cast<float>(visible)) : 0)
          << "position " << last << " in a run from " << first;
      EXPECT_EQ(a.at(last - first, 1), 1);
    }
  }
}

TEST_P(Attend, TheSinkAddsToTheDenominatorOnly) {
  Attention a(0, 4);
  a.sink[0] = 0;
  a.fill([](int) { return record_values({{0, 1.0f}}); });
  kernels->attend(a.step.rows(), a.args);
  for (int row = 0; row < 4; ++row) {
    const auto n = static_cast<float>(row + 1);
    EXPECT_EQ(a.at(row, 0), round_bf16(n / (n + 1)));
  }
}

TEST_P(Attend, TheSinkIsNotPartOfTheMaximum) {
  for (const float scale : {-300.0f, 300.0f}) {
    Attention a(0, 1);
    a.sink[0] = 0;
    a.q[0] = float_to_bf16(scale);
    a.fill([](int) { return record_values({{0, 16.0f}}); });  // s = 16 * scale / sqrt(512) = +-212
    kernels->attend(a.step.rows(), a.args);
    EXPECT_EQ(a.at(0, 0), scale > 0 ? 16 : 0);
  }
}

// Three entries that matter, the rest far below. The largest score stands in the first block of 64 or in the second; in
// the second it comes too late for the rounding of the first, and only rescales it.
TEST_P(Attend, ProbabilitiesAreRoundedAgainstTheRunningMaximumOfTheirBlockAndSummedUnrounded) {
  const float query = 16;
  const auto probability = [&](float key) { return std::exp((key - 2) * query / std::sqrt(512.0)); };
  // Chosen so that every other rounding gives another result.
  const double p[] = {probability(0.625f), probability(0.25f), 1.0};
  const double total = p[0] + p[1] + p[2];
  for (const int largest_at : {2, 63, 64}) {
    Attention a(0, 65);
    a.fill([&](int position) {
      const float key = position == 0 ? 0.625f : position == 1 ? 0.25f : position == largest_at ? 2.0f : -240.0f;
      return record_values({{0, key}, {40, position == 0 ? 1.0f : 0.0f}});
    });
    a.q[size_t{64} * kHeadDim] = float_to_bf16(query);
    kernels->attend(a.step.rows(), a.args);
    // Entry 0 has the largest score of the first block when the largest of all is in the second: it rounds to itself.
    const double rounded = largest_at < kAttendBlock ? round_bf16(static_cast<float>(p[0])) : p[0];
    const float expected = round_bf16(static_cast<float>(rounded / total));
    if (kernels->name() == "cuda") {  // rounds against a maximum of its own, on which the bits do not depend
      EXPECT_NEAR(a.at(64, 40), expected, expected / 128) << largest_at;
    } else {
      EXPECT_EQ(a.at(64, 40), expected) << largest_at;
    }
  }
  EXPECT_NE(round_bf16(static_cast<float>(round_bf16(static_cast<float>(p[0])) / total)),
            round_bf16(static_cast<float>(p[0] / total)));  // or this proves nothing
}

TEST_P(Attend, TheOutputIsTurnedBackByTheRowsPosition) {
  Attention a(500, 1);
  const std::vector<float> kv = record_values({{3, 1.0f}, {448, 1.0f}, {450, 0.5f}, {511, -2.0f}});
  a.fill([&](int) { return kv; });
  kernels->attend(a.step.rows(), a.args);
  std::vector<float> turned(kv.begin() + 448, kv.end());
  rotate(turned.data(), rope_angles(table_a(), 500), /*inverse=*/true);
  EXPECT_EQ(a.at(0, 3), 1);
  for (int d = 0; d < kRopeDim; ++d) EXPECT_EQ(a.at(0, 448 + d), round_bf16(turned[d])) << d;
}

TEST_P(Attend, WithoutPicksEveryVisibleEntryIsAttended) {
  for (const int position : {126, 127, 128, 255, 256}) {
    Attention a(position, 1);
    a.fill([](int) { return record_values({}); });
    Pages pages(RecordFormat::kV4Fp8, a.step.pages(), 128);
    const StepRows rows = a.step.rows();
    for (int entry = 0; entry < 4; ++entry) pages.set(rows, 0, entry, record_values({{entry, 1.0f}}));
    a.args.ratio = 128;
    a.args.entries = pages.cache;
    kernels->attend(rows, a.args);
    const int visible = (position + 1) / 128;
    const int n = std::min(position + 1, kWindow) + visible;
    for (int entry = 0; entry < 4; ++entry) {
      EXPECT_EQ(a.at(0, entry), entry < visible ? round_bf16(1.0f / static_cast<float>(n)) : 0) << position;
    }
  }
}

TEST_P(Attend, PicksNameTheEntriesAndMinusOneNamesNone) {
  Attention a(400, 1);
  a.fill([](int) { return record_values({}); });
  Pages pages(RecordFormat::kV41Nvfp4, a.step.pages(), 2);
  const StepRows rows = a.step.rows();
  for (int entry = 0; entry < 200; ++entry) pages.set(rows, 0, entry, record_values({{entry, 6.0f}}));
  const Array<int32_t> picks = {0, 63, 64, 199, -1, -1};
  a.args.ratio = 2;
  a.args.entries = pages.cache;
  a.args.picks = picks.data();
  a.args.topk = 6;
  kernels->attend(rows, a.args);
  for (int entry = 0; entry < 200; ++entry) {
    const bool picked = entry == 0 || entry == 63 || entry == 64 || entry == 199;
    EXPECT_EQ(a.at(0, entry), picked ? round_bf16(6.0f / 132) : 0) << entry;
  }
}

TEST_P(Attend, ADraftBlockSees128RingPositionsAndAllItsOwnRows) {
  for (const int first : {0, 50, 200}) {
    Attention a(first, 5);
    a.args.block_attention = true;
    a.fill([&](int p) {
      return record_values({{0, p == first - 129 ? 1.0f : 0.0f},
                            {1, p == std::max(0, first - 128) ? 1.0f : 0.0f},
                            {2, p == first + 4 ? 1.0f : 0.0f}});
    });
    kernels->attend(a.step.rows(), a.args);
    const float share = round_bf16(1.0f / static_cast<float>(std::min(first, kWindow) + 5));
    for (int row = 0; row < 5; ++row) {
      EXPECT_EQ(a.at(row, 0), 0) << first;
      EXPECT_EQ(a.at(row, 1), share) << first;
      EXPECT_EQ(a.at(row, 2), share) << first;
    }
  }
}

class Commit : public StageTest {};
ONELANE_EVERY_IMPLEMENTATION(Commit);

TEST_P(Commit, KeepsTheLastRowsOfARunAndLeavesOtherRecordsAlone) {
  for (const RecordFormat format : {RecordFormat::kV41Fp8, RecordFormat::kV4Fp8}) {
    Rings rings(format, 2, 20);
    const auto value = [](int position) {
      return record_values({{0, static_cast<float>(position % 16) + 1}, {511, 8}});
    };
    const auto expect = [&](int slot, int position, const std::vector<float>& values) {
      std::vector<float> decoded(kHeadDim);
      const RecordBlock block = rings.cache.block(slot);
      decode_record(format, block.data(position % 20), block.scales(position % 20), decoded.data());
      EXPECT_EQ(decoded, values) << "slot " << slot << " position " << position;
    };
    rings.set(0, 0, record_values({{5, 1.0f}}));
    rings.set(1, 3, record_values({{6, 1.0f}}));
    Step step(2);
    step.run(100, 3, /*slot=*/0).run(7, 50, /*slot=*/1);
    Records kv(format, 53);
    for (int row = 0; row < 53; ++row) kv.set(row, value(step.rows().position[row]));
    kernels->commit(step.rows(), {.kv = kv.block, .ring = rings.cache});
    for (int p = 100; p < 103; ++p) {
      if (p != 100) expect(0, p, value(p));
    }
    expect(0, 100, value(100));  // over position 0's record: 100 % 20
    expect(0, 3, record_values({}));
    for (int p = 37; p < 57; ++p) expect(1, p, value(p));
  }
}

class ProjectQkv : public StageTest {};
ONELANE_EVERY_IMPLEMENTATION(ProjectQkv);

TEST_P(ProjectQkv, NormalisesQueryHeadsOnlyWhereTheModelDoes) {
  const int dim = 64;
  Random random(3);
  const Array<bf16> x = random.bf16s(2 * dim);
  const Array<bf16> q_norm = constant_bf16(32, 1);
  const Array<bf16> kv_norm = constant_bf16(kHeadDim, 1);
  const Weight wq_a = fp8_weight(32, dim, 32, 32, random_values(4, 0.1f));
  const Weight wq_b = fp8_weight(2 * kHeadDim, 32, 32, 32, random_values(5, 1));
  const Weight wkv = fp8_weight(kHeadDim, dim, 32, 32, random_values(6, 0.1f));
  Step step;
  step.run(9, 2);
  Array<bf16> qr(2 * 32), q(2 * 2 * kHeadDim);
  Records kv(kWindowFormat, 2);
  QkvArgs args{.x = x.data(),
               .dim = dim,
               .wq_a = wq_a.matrix,
               .wq_b = wq_b.matrix,
               .wkv = wkv.matrix,
               .q_norm = q_norm.data(),
               .kv_norm = kv_norm.data(),
               .norm_eps = 1e-6f,
               .rope = &table_a(),
               .heads = 2,
               .qr = qr.data(),
               .q = q.data(),
               .kv = kv.block};
  const auto head_rms = [&](int head) {
    double squares = 0;
    for (int d = 0; d < kHeadDim; ++d)
      squares += std::pow(bf16_to_float(q[static_cast<size_t>(head) * kHeadDim + d]), 2);
    return std::sqrt(squares / kHeadDim);
  };
  kernels->project_qkv(step.rows(), args);
  for (int head = 0; head < 4; ++head) EXPECT_GT(head_rms(head), 3);
  args.q_head_norm = true;
  kernels->project_qkv(step.rows(), args);
  for (int head = 0; head < 4; ++head) EXPECT_NEAR(head_rms(head), 1, 2e-3);

  // The draft ring: without wq_a only the records are made, and they are the same.
  const std::vector<std::byte> with_queries(kv.memory.data(), kv.memory.data() + kv.memory.size());
  kv.memory.zero();
  args.wq_a = args.wq_b = Matrix{};
  args.q_norm = nullptr;
  args.qr = args.q = nullptr;
  kernels->project_qkv(step.rows(), args);
  EXPECT_EQ(std::vector<std::byte>(kv.memory.data(), kv.memory.data() + kv.memory.size()), with_queries);
}

// What it makes for other stages: by place of x exact, rounded or not at all (bits), and of qr.
struct AskedSides {
  unsigned exact, rounded;
  bool of_qr;
};
constexpr AskedSides kV4Sides = {0b01111, 0b10000, true};

struct Sides {
  static constexpr int kDim = 256, kLora = 128, kQueries = 384;
  static constexpr int kOuts[QkvArgs::kSides] = {64, 96, 32, 512, 7};

  Sides() {
    for (const int out : kOuts) weights.push_back(bf16_weight(out, kDim, random_values(20 + out, 0.3f)));
  }
  void ask(const AskedSides& asked, int rows, QkvArgs& args) {
    for (int i = 0; i < QkvArgs::kSides; ++i) {
      const auto count = static_cast<size_t>(rows) * kOuts[i];
      exact[i] = Array<float>((asked.exact >> i & 1) != 0 ? count : 0, NAN);
      rounded[i] = Array<bf16>((asked.rounded >> i & 1) != 0 ? count : 0, 0x7fc0);
      args.of_x[i] = {};
      if (exact[i].size() > 0) args.of_x[i] = {.weights = weights[i].matrix, .exact = exact[i].data()};
      if (rounded[i].size() > 0) args.of_x[i] = {.weights = weights[i].matrix, .rounded = rounded[i].data()};
    }
    queries = Array<bf16>(asked.of_qr ? static_cast<size_t>(rows) * kQueries : 0, 0x7fc0);
    args.of_qr = {};
    if (asked.of_qr) args.of_qr = {.weights = of_qr.matrix, .rounded = queries.data()};
  }
  std::vector<float> of_x(int i) const {
    std::vector<float> values = exact[i].vector();
    for (const bf16 value : rounded[i].vector()) values.push_back(bf16_to_float(value));
    return values;
  }
  double product(int i, int out, const bf16* x) const {
    const auto* w = reinterpret_cast<const bf16*>(weights[i].matrix.data) + out * kDim;
    double sum = 0;
    for (int k = 0; k < kDim; ++k) sum += static_cast<double>(bf16_to_float(w[k])) * bf16_to_float(x[k]);
    return sum;
  }

  std::vector<Weight> weights;
  Weight of_qr = fp8_weight(kQueries, kLora, 32, 32, diagonal(0.5f));
  Array<float> exact[QkvArgs::kSides];
  Array<bf16> rounded[QkvArgs::kSides], queries;
};

// Plain products of x and of qr, whichever of them are asked for, and the same beside any rows.
TEST_P(ProjectQkv, SideProductsAreProductsOfItsRows) {
  constexpr int kMostRows = 70;
  Random random(7);
  const Array<bf16> x = random.bf16s(kMostRows * Sides::kDim);
  Array<bf16> qr = random.bf16s(kMostRows * Sides::kLora);
  Sides sides;
  // V4 with ratios 4 and 128, V4.1 with ratios 2 and 1 and without a compressor; then what no model asks for.
  for (const AskedSides& asked :
       {kV4Sides, AskedSides{0b00011, 0, false}, AskedSides{0b00011, 0b10000, true}, AskedSides{0, 0b10001, true},
        AskedSides{0, 0b10000, true}, AskedSides{0, 0, true}, AskedSides{0b10101, 0b01010, false}}) {
    std::vector<float> most[QkvArgs::kSides];
    for (const int rows : {kMostRows, 20, 6, 1}) {
      SCOPED_TRACE(format("{} rows, exact {:b}, rounded {:b}", rows, asked.exact, asked.rounded));
      Step step;
      step.run(3, rows);
      QkvArgs args{.x = x.data(), .dim = Sides::kDim, .rope = &table_a(), .qr = qr.data()};
      sides.ask(asked, rows, args);
      kernels->project_qkv(step.rows(), args);
      for (int i = 0; i < QkvArgs::kSides; ++i) {
        const std::vector<float> got = sides.of_x(i);
        if (rows == kMostRows) most[i] = got;
        EXPECT_TRUE(std::equal(got.begin(), got.end(), most[i].begin())) << "product " << i;
        const int width = Sides::kOuts[i];
        for (size_t at = 0; at < got.size(); at += 29) {
          const auto row = static_cast<int>(at) / width, out = static_cast<int>(at) % width;
          const double sum = sides.product(i, out, x.data() + row * Sides::kDim);
          const bool exact = sides.exact[i].size() > 0;
          EXPECT_NEAR(got[at], sum, exact ? 1e-4 : 1e-4 + std::abs(sum) / 256) << "product " << i << " at " << at;
        }
      }
      for (int row = 0; asked.of_qr && row < rows; row += 5) {
        std::vector<float> low(Sides::kLora);
        for (int k = 0; k < Sides::kLora; ++k) low[k] = bf16_to_float(qr[row * Sides::kLora + k]);
        requantize_fp8(low, 32);
        for (int k = 0; k < Sides::kLora; ++k) {
          EXPECT_EQ(bf16_to_float(sides.queries[row * Sides::kQueries + k]), round_bf16(0.5f * low[k]));
        }
      }
    }
  }
}

// Beside queries and records they have the bits they have alone, and so have those; of qr means of the qr just made.
TEST_P(ProjectQkv, SideProductsAndItsOwnLeaveEachOtherAlone) {
  constexpr int kHeads = 2;
  Random random(8);
  const Array<bf16> norm = constant_bf16(kHeadDim, 1);
  const Weight wq_a = fp8_weight(Sides::kLora, Sides::kDim, 32, 32, random_values(4, 0.1f));
  const Weight wq_b = fp8_weight(kHeads * kHeadDim, Sides::kLora, 32, 32, random_values(5, 1));
  const Weight wkv = fp8_weight(kHeadDim, Sides::kDim, 32, 32, random_values(6, 0.1f));
  Sides sides;
  for (const int rows : {1, 6, 20, 70}) {
    SCOPED_TRACE(format("{} rows", rows));
    Step step;
    step.run(9, rows);
    const Array<bf16> x = random.bf16s(static_cast<size_t>(rows) * Sides::kDim);
    Array<bf16> qr(static_cast<size_t>(rows) * Sides::kLora), q(static_cast<size_t>(rows) * kHeads * kHeadDim);
    const Records kv(kWindowFormat, rows);
    QkvArgs args{.x = x.data(),
                 .dim = Sides::kDim,
                 .wq_a = wq_a.matrix,
                 .wq_b = wq_b.matrix,
                 .wkv = wkv.matrix,
                 .q_norm = norm.data(),
                 .kv_norm = norm.data(),
                 .norm_eps = 1e-6f,
                 .rope = &table_a(),
                 .heads = kHeads,
                 .qr = qr.data(),
                 .q = q.data(),
                 .kv = kv.block};
    const auto own = [&] {
      const std::vector<std::byte> records(kv.memory.data(), kv.memory.data() + kv.memory.size());
      return std::tuple(qr.vector(), q.vector(), records);
    };
    const auto of_sides = [&] {
      std::vector<std::vector<float>> values;
      for (int i = 0; i < QkvArgs::kSides; ++i) values.push_back(sides.of_x(i));
      return std::pair(values, sides.queries.vector());
    };
    kernels->project_qkv(step.rows(), args);
    const auto own_alone = own();
    sides.ask(kV4Sides, rows, args);
    std::fill_n(qr.data(), qr.size(), bf16{0});
    kernels->project_qkv(step.rows(), args);
    EXPECT_TRUE(own() == own_alone);
    const auto beside = of_sides();
    QkvArgs alone{.x = x.data(), .dim = Sides::kDim, .rope = &table_a(), .qr = qr.data()};
    sides.ask(kV4Sides, rows, alone);
    kernels->project_qkv(step.rows(), alone);
    EXPECT_TRUE(of_sides() == beside);
    EXPECT_TRUE(own() == own_alone);
  }
}

class ProjectOut : public StageTest {};
ONELANE_EVERY_IMPLEMENTATION(ProjectOut);

// Two groups of 48 rows in 32-row scale tiles: a group begins inside a tile. wo_a does not quantise its input.
TEST_P(ProjectOut, GroupsReadTheirOwnHeadsAndKeepThemInBf16) {
  const int o_lora = 48;
  const Weight wo_a = fp8_weight(
      2 * o_lora, 2 * kHeadDim, 32, 0, [](int o, int k) { return k == o % 48 ? 4.0f : 0.0f; },
      [](int row, int) { return row; });
  const Weight wo_b = bf16_weight(96, 96, diagonal(1));
  Array<bf16> attended(4 * kHeadDim);
  const float fine = 1.0078125f;                                                      // lost by e4m3
  for (int d = 0; d < o_lora; ++d) attended[2 * kHeadDim + d] = float_to_bf16(fine);  // the first head of group 1
  attended[2 * kHeadDim + 1] = float_to_bf16(256);
  Array<bf16> y(96);
  Step step;
  step.run(0, 1);
  kernels->project_out(
      step.rows(),
      {.attended = attended.data(), .heads = 4, .groups = 2, .wo_a = wo_a.matrix, .wo_b = wo_b.matrix, .y = y.data()});
  for (int i = 0; i < 96; ++i) EXPECT_EQ(bf16_to_float(y[i]), i < 48 ? 0 : i == 49 ? 1024 : 4 * fine) << i;
}

}  // namespace
}  // namespace onelane
