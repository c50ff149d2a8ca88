// Scores, ties, visibility and two-level selection of the indexer, case by case (spec/model.md 3.4, 3.5).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "base/format.h"
#include "kernels/stage_support.h"

namespace onelane {
namespace {

using namespace testing;

// An indexer of two heads, of which the first sees the key's dim 0 and the second dim 32, or of four, which see dims 0,
// 16, 32 and 48: a query is 6 there, so dot = 6 * key[dim].
struct Indexer {
  // `rows` with the same queries, the last of them at `position`.
  Indexer(int position, int ratio, int topk, int heads = 2, int rows = 1)
      : step(1, std::max(4, position / kPageTokens + 1)),
        keys(RecordFormat::kIndexMxfp4, step.pages(), ratio),
        queries(static_cast<size_t>(rows) * heads * kIndexDim),
        head_weights(constant_bf16(static_cast<size_t>(rows) * heads, 1)),
        picks(static_cast<size_t>(rows) * topk, 99) {
    step.run(position - rows + 1, rows);
    for (int i = 0; i < rows * heads; ++i) queries[i * kIndexDim + 64 / heads * (i % heads)] = float_to_bf16(6);
    args = {.queries = queries.data(),
            .head_weights = head_weights.data(),
            .heads = heads,
            .ratio = ratio,
            .rope = &table_b(),
            .keys = keys.cache,
            .topk = topk,
            .picks = picks.data()};
  }
  // Key j: first head's dot is 6 a, second head's 6 b; a and b are e2m1 values.
  void key(int j, float a, float b = 0) {
    keys.set(step.rows(), 0, j, record_values({{0, a}, {32, b}, {1, 6.0f}, {33, 6.0f}}, kIndexDim));
  }
  std::vector<int32_t> run(Kernels& kernels) {
    kernels.index(step.rows(), args);
    return picks.vector();
  }

  Step step;
  Pages keys;
  Array<bf16> queries, head_weights;
  Array<int32_t> picks;
  IndexArgs args;
};

class Index : public StageTest {};
ONELANE_EVERY_IMPLEMENTATION(Index);

TEST_P(Index, PicksTheBestAscendingWithTiesToTheLowerNumber) {
  Indexer indexer(7, 1, 4);
  const float scores[] = {1, 3, 2, 3, 0.5f, 2, 2, 1};
  for (int j = 0; j < 8; ++j) indexer.key(j, scores[j]);
  EXPECT_EQ(indexer.run(*kernels), (std::vector<int32_t>{1, 2, 3, 5}));
}

// Rows that some choose from in one block, in many together, and from memory, whatever their scores are like.
TEST_P(Index, ChoosesFromLongRows) {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  constexpr int kDigits = 4;  // heads, whose weights make them digits of the score
  enum Kind { kSpread, kAlike, kHalfAlike, kOneFarAbove, kMostFaulty };
  const std::pair<int, int> shapes[] = {{600, 1}, {8193, 1}, {20000, 1}, {140000, 1}, {20000, 17}, {35000, 17}};
  for (const auto& [entries, rows] : shapes) {
    for (const Kind kind : {kSpread, kAlike, kHalfAlike, kOneFarAbove, kMostFaulty}) {
      if (rows > 1 && kind != kSpread && kind != kOneFarAbove) continue;  // to be done in time
      SCOPED_TRACE(format("{} entries, {} rows, kind {}", entries, rows, static_cast<int>(kind)));
      constexpr int kTopk = 512;
      Indexer indexer(entries - 1, 1, kTopk, kDigits, rows);
      for (int i = 0; i < rows * kDigits; ++i) {
        indexer.head_weights[i] = float_to_bf16(std::ldexp(1.0f, -4 * (i % kDigits)));
      }
      std::mt19937 random(entries + kind);
      std::vector<float> scores(static_cast<size_t>(entries));
      for (int j = 0; j < entries; ++j) {
        uint32_t code = random() % 4096;
        if (kind == kAlike || (kind == kHalfAlike && code % 2 == 0)) code = 02222;
        std::vector<float> key(kIndexDim);
        const float scale = kind == kOneFarAbove && j == entries / 3 ? std::ldexp(1.0f, 30) : 1;
        for (int h = 0; h < kDigits; ++h) {
          const float value = kValues[code >> 3 * h & 7] * scale;
          key[16 * h] = value;
          key[16 * h + 1] = 6 * scale;
          scores[j] += std::ldexp(value, -4 * h);
        }
        if (kind == kMostFaulty && random() % 100 != 0) {
          key[0] = NAN;
          scores[j] = -INFINITY;
        }
        indexer.keys.set(indexer.step.rows(), 0, j, key);
      }
      std::vector<int32_t> order(static_cast<size_t>(entries));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
      std::vector<int32_t> expected;
      for (int row = 0; row < rows; ++row) {
        const auto begin = expected.end() - expected.begin();
        for (const int32_t j : order) {
          if (j < entries - rows + 1 + row) expected.push_back(j);
          if (expected.end() - expected.begin() == begin + kTopk) break;
        }
        std::sort(expected.begin() + begin, expected.end());
      }
      EXPECT_EQ(indexer.run(*kernels), expected);
    }
  }
}

TEST_P(Index, SeesEntriesOfCompleteGroupsOnly) {
  for (const int ratio : {1, 2, 4}) {
    for (const int position : {0, 1, 2, 3, 6, 7, 8}) {
      Indexer indexer(position, ratio, 16);
      for (int j = 0; j < 12; ++j) indexer.key(j, 1);
      std::vector<int32_t> expected(16, -1);
      for (int j = 0; j < (position + 1) / ratio; ++j) expected[j] = j;
      EXPECT_EQ(indexer.run(*kernels), expected) << "ratio " << ratio << " position " << position;
    }
  }
}

// relu(-6) + relu(6) = 6 > relu(4 - 2) in any order: summing the heads before the relu would choose entry 1.
TEST_P(Index, ReluIsPerHeadAndBeforeTheWeight) {
  Indexer indexer(1, 1, 1);
  indexer.key(0, -1, 1);
  indexer.key(1, 0.5f, 0);
  EXPECT_EQ(indexer.run(*kernels), (std::vector<int32_t>{0}));
  // A negative head weight turns a high dot into a low score; a negative dot stays 0.
  indexer.head_weights[0] = float_to_bf16(-1);
  indexer.head_weights[1] = float_to_bf16(0);
  indexer.key(0, 2, 0);
  indexer.key(1, -2, 0);
  EXPECT_EQ(indexer.run(*kernels), (std::vector<int32_t>{1}));
}

// Blocks of 8 entries. Block 3 holds the best entry, block 1 the second best, the newest block (5) the worst.
TEST_P(Index, CandidatesKeepTheBestBlocksAndPinTheNewest) {
  const int position = 44;  // 45 entries: block 5 has five of them
  Indexer indexer(position, 1, 4);
  for (int j = 0; j <= position; ++j) indexer.key(j, 1);
  for (int j = 40; j <= position; ++j) indexer.key(j, -1);
  indexer.key(26, 6);
  indexer.key(8, 4);
  indexer.key(9, 3);
  indexer.key(33, 2);
  Array<uint32_t> bits(2, 0xffffffffu);
  indexer.args.mode = IndexArgs::Candidates::kPublish;
  indexer.args.topk_blocks = 3;
  indexer.args.block_size = 8;
  indexer.args.candidates = bits.data();
  indexer.args.candidate_words = 2;
  // The publishing layer's own picks are not masked: entry 33 lies in no candidate block.
  EXPECT_EQ(indexer.run(*kernels), (std::vector<int32_t>{8, 9, 26, 33}));
  EXPECT_EQ(bits[0], 1u << 1 | 1u << 3 | 1u << 5);
  EXPECT_EQ(bits[1], 0u);

  indexer.args.mode = IndexArgs::Candidates::kApply;
  EXPECT_EQ(indexer.run(*kernels), (std::vector<int32_t>{8, 9, 10, 26}));
  EXPECT_EQ(bits[0], 1u << 1 | 1u << 3 | 1u << 5);  // read, not written
}

TEST_P(Index, MaskedEntriesAreTakenOnlyWhenNothingElseIsLeft) {
  Indexer indexer(23, 1, 10);
  for (int j = 0; j < 24; ++j) indexer.key(j, 1);
  Array<uint32_t> bits(1);
  bits[0] = 1u << 2;
  indexer.args.mode = IndexArgs::Candidates::kApply;
  indexer.args.block_size = 8;
  indexer.args.candidates = bits.data();
  indexer.args.candidate_words = 1;
  EXPECT_EQ(indexer.run(*kernels), (std::vector<int32_t>{0, 1, 16, 17, 18, 19, 20, 21, 22, 23}));
}

TEST_P(Index, FewerBlocksThanTopkAreAllKept) {
  Indexer indexer(10, 1, 4);
  for (int j = 0; j < 11; ++j) indexer.key(j, 1);
  Array<uint32_t> bits(1, 0xffffffffu);
  indexer.args.mode = IndexArgs::Candidates::kPublish;
  indexer.args.topk_blocks = 32;
  indexer.args.block_size = 8;
  indexer.args.candidates = bits.data();
  indexer.args.candidate_words = 1;
  indexer.run(*kernels);
  EXPECT_EQ(bits[0], 3u);
}

TEST_P(Index, AFaultyKeyIsTheLastChoiceAndAFaultyQueryStillPicks) {
  Indexer indexer(5, 1, 3);
  for (int j = 0; j < 6; ++j) indexer.key(j, 1);
  indexer.keys.set(indexer.step.rows(), 0, 0, record_values({{0, NAN}}, kIndexDim));
  EXPECT_EQ(indexer.run(*kernels), (std::vector<int32_t>{1, 2, 3}));
  indexer.queries[0] = float_to_bf16(NAN);
  EXPECT_EQ(indexer.run(*kernels), (std::vector<int32_t>{0, 1, 2}));
}

// The Walsh transform keeps dot products: with it on both sides the order of well separated scores is the same.
TEST_P(Index, TheQueryIsTurnedTransformedAndQuantised) {
  Indexer indexer(5, 1, 1, 1);
  std::swap(indexer.queries[0], indexer.queries[64]);
  indexer.args.hadamard = true;
  for (int j = 0; j < 6; ++j) {
    // Key j is what dim 64 turned by position j transforms to; the query stands at position 5.
    std::vector<float> key(kIndexDim);
    const RopeAngles angles = rope_angles(table_b(), j);
    for (int d = 0; d < kIndexDim; ++d) {
      const auto walsh = [&](int dim) {
        return __builtin_popcount(static_cast<unsigned>(dim & d)) % 2 == 0 ? 1.0f : -1.0f;
      };
      key[d] = (walsh(64) * angles.cos[0] + walsh(65) * angles.sin[0]) * 4;
    }
    indexer.keys.set(indexer.step.rows(), 0, j, key);
  }
  EXPECT_EQ(indexer.run(*kernels), (std::vector<int32_t>{5}));
}

}  // namespace
}  // namespace onelane
