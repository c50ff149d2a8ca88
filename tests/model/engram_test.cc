#include "model/engram.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/config.h"
#include "checkpoint/engram_primes.h"
#include "model/step.h"
#include "support/data.h"

namespace onelane {
namespace {

EngramSpec published() {
  EngramSpec spec;
  spec.layers = {1, 14};
  spec.max_ngram = 4;
  spec.heads = 8;
  spec.head_dim = 256;
  spec.vocab_size = 16000000;
  spec.pad_token_id = 2;
  spec.compressed_vocab_size = 99092;
  return spec;
}

std::vector<int32_t> identity(int count) {
  std::vector<int32_t> map(static_cast<size_t>(count));
  std::iota(map.begin(), map.end(), 0);
  return map;
}

// spec/model.md appendix D.
TEST(Engram, MultipliersOfThePublishedModel) {
  const auto addresses = EngramAddresses::create(published(), identity(99092));
  ASSERT_TRUE(addresses);
  EXPECT_THAT(std::vector<int64_t>(addresses->multipliers(0).begin(), addresses->multipliers(0).end()),
              ::testing::ElementsAre(76632096046245, 4839876093313, 35959672319349, 73987337458391));
  EXPECT_THAT(std::vector<int64_t>(addresses->multipliers(1).begin(), addresses->multipliers(1).end()),
              ::testing::ElementsAre(67716810739261, 51510806800915, 30921347202721, 82619226485591));
}

TEST(Engram, ATokenizerOfAnotherSizeIsRefused) {
  const auto addresses = EngramAddresses::create(published(), identity(99091));
  ASSERT_FALSE(addresses);
  EXPECT_THAT(addresses.error().message, ::testing::HasSubstr("99092"));
  EXPECT_THAT(addresses.error().message, ::testing::HasSubstr("99091"));
}

TEST(Engram, RowsEqualTheGoldenOnesHoweverTheTextIsCut) {
  const std::string dir = shared_path("v41_golden");
  ONELANE_SKIP_WITHOUT(dir);
  const Vectors golden(dir + "/golden_prompt401.safetensors");
  const auto spec = load_config(dir);
  ASSERT_TRUE(spec);
  const auto addresses = EngramAddresses::create(spec->engram, identity(512));
  ASSERT_TRUE(addresses);
  const auto kernels = make_reference_kernels();
  const auto tokens = golden.get<int32_t>("token_ids");
  const auto expected = golden.get<int32_t>("engram.row_ids");
  const auto multipliers = golden.get<int64_t>("engram.multipliers");
  const int columns = addresses->columns();
  const size_t length = expected.size() / static_cast<size_t>(2 * columns);
  for (int n = 0; n < 2; ++n) {
    for (int i = 0; i < 4; ++i) EXPECT_EQ(addresses->multipliers(n)[i], multipliers[static_cast<size_t>(4 * n + i)]);
    for (const size_t chunk : {length, size_t{1}, size_t{7}}) {
      for (size_t begin = 0; begin < length; begin += chunk) {
        const size_t count = std::min(chunk, length - begin);
        std::vector<int32_t> rows(count * static_cast<size_t>(columns));
        const size_t history = std::min<size_t>(begin, 3);
        Step step;
        step.add(0, static_cast<int>(begin), std::span(tokens).subspan(begin, count),
                 std::span(tokens).subspan(begin - history, history));
        AddressArgs args = addresses->args(n);
        args.table_rows = rows.data();
        kernels->address(step.rows(), args);
        for (size_t t = 0; t < count; ++t) {
          for (int c = 0; c < columns; ++c) {
            ASSERT_EQ(rows[t * columns + c], expected[((begin + t) * 2 + n) * columns + c])
                << "layer " << n << " token " << begin + t << " column " << c;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace onelane
