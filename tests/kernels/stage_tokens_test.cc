// What happens to tokens: verdicts, Engram rows, references, case by case.
#include "kernels/stage_support.h"

namespace onelane {
namespace {

using namespace testing;

// Tokens before each run: a run's are 100 * (run + 1) + 0, 1, ..., but the first run's sequence is only two tokens old.
std::vector<int32_t> histories(int runs) {
  std::vector<int32_t> before;
  for (int run = 0; run < runs; ++run) {
    for (int i = 0; i < kHistory; ++i) before.push_back(run == 0 && i < kHistory - 2 ? kNoToken : 100 * (run + 1) + i);
  }
  return before;
}

class Tokens : public StageTest {};
ONELANE_EVERY_IMPLEMENTATION(Tokens);

TEST_P(Tokens, AVerdictCountsTheRowsWhoseTokensWereDecided) {
  Step step(4);
  step.run(2, 6, 0).run(40, 1, 3).run(200, 3, 1).run(9, 4, 2);
  step.tokens({5, 6, 7, 8, 9, 10, /**/ 11, /**/ 20, 21, 22, /**/ 30, 31, 32, 33});
  //                best: three drafts accepted; no draft; none accepted, though a later one fits; all accepted
  Array<int32_t> best({6, 7, 8, 1, 10, 2, /**/ 3, /**/ 0, 22, 4, /**/ 31, 32, 33, -1});
  const std::vector<int32_t> before = histories(4);
  Array<int32_t> verdicts(4 * kVerdict, -7);
  StepRows rows = step.rows();
  rows.before = before.data();
  kernels->verify(rows, {.best = best.data(), .verdicts = verdicts.data()});
  EXPECT_EQ(verdicts.vector(), (std::vector<int32_t>{4, 1,  kNoToken, kNoToken, 106, 107, 5,   6,   7,   8,   //
                                                     1, 3,  201,      202,      203, 204, 205, 206, 207, 11,  //
                                                     1, 0,  301,      302,      303, 304, 305, 306, 307, 20,  //
                                                     4, -1, 404,      405,      406, 407, 30,  31,  32,  33}));
}

TEST_P(Tokens, AddressesMixTheTokensBeforeAcrossTheBeginningOfARun) {
  constexpr int kVocab = 500, kOrders = 4, kHeads = 2, kColumns = (kOrders - 1) * kHeads;
  Array<int32_t> map(kVocab);
  for (int i = 0; i < kVocab; ++i) map[static_cast<size_t>(i)] = i * 7 % 97;
  const Array<int64_t> multipliers({(int64_t{1} << 55) + 1, 123456789012345, 977, (int64_t{1} << 54) + 3});
  const Array<int64_t> primes({101, 103, 107, 109, 113, 127});
  Step step(3);
  step.run(2, 5, 0).run(300, 1, 2).run(17, 3, 1);
  const std::vector<int32_t> tokens = {5, 6, 499, 500, -3, /**/ 11, /**/ 20, 21, 22};  // two that the map lacks
  step.tokens(tokens);
  const std::vector<int32_t> before = histories(3);
  Array<int32_t> table_rows(tokens.size() * kColumns, -7);
  StepRows rows = step.rows();
  rows.before = before.data();
  kernels->address(rows, {.token_map = map.data(),
                          .map_size = kVocab,
                          .pad = 4,
                          .multipliers = multipliers.data(),
                          .primes = primes.data(),
                          .max_ngram = kOrders,
                          .heads = kHeads,
                          .table_rows = table_rows.data()});
  for (int run = 0; run < rows.run_count; ++run) {
    std::vector<int32_t> text(before.begin() + run * kHistory, before.begin() + (run + 1) * kHistory);
    const RowRun& range = rows.runs[run];
    text.insert(text.end(), tokens.begin() + range.first_row, tokens.begin() + range.first_row + range.count);
    for (int i = 0; i < range.count; ++i) {
      int64_t offset = 0;
      for (int column = 0; column < kColumns; ++column) {
        int64_t mixed = 0;
        for (int back = 0; back < 2 + column / kHeads; ++back) {
          const int32_t token = text[static_cast<size_t>(kHistory + i - back)];
          const int32_t id = map[static_cast<size_t>(token < 0 || token >= kVocab ? 4 : token)];
          mixed ^= id * multipliers[static_cast<size_t>(back)];
        }
        const int64_t prime = primes[static_cast<size_t>(column)];
        EXPECT_EQ(table_rows[static_cast<size_t>((range.first_row + i) * kColumns + column)], mixed % prime + offset)
            << "run " << run << " token " << i << " column " << column;
        offset += prime;
      }
    }
  }
}

// Of those whose memory is not the host's: a verdict shows which tokens a stage met.
TEST_P(Tokens, ReferencesAreWhatAnEarlierStepLeft) {
  if (kernels->name() != "cuda") GTEST_SKIP() << "the host resolves nothing";
  const Array<int32_t> later({3, 77, -1, 50, 51, 52, 53});
  Step step(2);
  step.run(10, 3, 0).run(40, 2, 1);
  step.tokens({~1, ~2, 9, /**/ 8, ~6});
  std::vector<int32_t> before = histories(2);
  before[kHistory - 1] = ~3;
  before[kHistory - 2] = ~2;
  const std::vector<int32_t> moved_by = {0, -1};
  StepRows rows = step.rows();
  rows.before = before.data();
  rows.later = later.data();
  rows.moved_by = moved_by.data();
  Array<int32_t> best({0, 9, 1, /**/ 53, 2});
  Array<int32_t> verdicts(2 * kVerdict, -7);
  kernels->verify(rows, {.best = best.data(), .verdicts = verdicts.data()});
  EXPECT_EQ(verdicts.vector(), (std::vector<int32_t>{3, 1, kNoToken, kNoToken, kNoToken, 0,   50,  77,  0, 9,  //
                                                     2, 2, 202,      203,      204,      205, 206, 207, 8, 53}));
}

}  // namespace
}  // namespace onelane
