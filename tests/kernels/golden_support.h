// Golden vectors of tests/data (layout and conventions: tests/data/README.md) and the tiny model behind them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "kernels/stage_support.h"
#include "support/tiny_model.h"

namespace onelane::testing {

// One file of golden vectors.
class Golden {
 public:
  Golden(const std::string& generation, const std::string& stage)
      : checkpoint_(
            Checkpoint::open(std::string(ONELANE_ROOT) + "/tests/data/" + generation + "/" + stage + ".safetensors")
                .value()) {}

  bool has(const std::string& name) const { return checkpoint_.find(name) != nullptr; }
  std::vector<bf16> bf16s(const std::string& name) const { return copy_tensor<uint16_t>(tensor(name)); }
  std::vector<float> floats(const std::string& name) const { return copy_tensor<float>(tensor(name)); }
  std::vector<int32_t> ints(const std::string& name) const { return copy_tensor<int32_t>(tensor(name)); }
  std::vector<uint8_t> bytes(const std::string& name) const { return copy_tensor<uint8_t>(tensor(name)); }
  const TensorView& tensor(const std::string& name) const {
    const TensorView* found = checkpoint_.find(name);
    ONELANE_CHECK(found != nullptr, name.c_str());
    return *found;
  }

 private:
  Checkpoint checkpoint_;
};

// The tiny model of a generation ("v41", "v4"), loaded once per process and place; never destroyed, since its place may
// be gone after main().
inline const Model& tiny_model(const std::string& generation, Kernels& kernels) {
  static auto& models = *new std::map<std::pair<std::string, const Memory*>, std::unique_ptr<Model>>;
  std::unique_ptr<Model>& model = models[{generation, &kernels.memory()}];
  if (!model) model = load_tiny_model(generation, &kernels);
  return *model;
}

class GoldenTest : public ::testing::TestWithParam<std::tuple<const char*, Implementation>> {
 protected:
  std::string generation = std::get<0>(GetParam());
  std::unique_ptr<Kernels> kernels = std::get<1>(GetParam()).make();
  const Model& model = tiny_model(generation, *kernels);
  const ModelSpec& spec = model.spec;

  Golden golden(const std::string& stage) const { return {generation, stage}; }
  static std::string layer(int index) { return "layers." + std::to_string(index); }
};

#define ONELANE_GOLDEN(suite)                                                                                         \
  INSTANTIATE_TEST_SUITE_P(                                                                                           \
      , suite,                                                                                                        \
      ::testing::Combine(::testing::Values("v41", "v4"), ::testing::ValuesIn(::onelane::testing::implementations())), \
      [](const auto& test) { return std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param).name; })

// A step whose rows are all their own run of slot 0: stages that only read history take rows at any positions.
inline Step rows_at(const std::vector<int32_t>& positions, int pages_per_slot = 4) {
  Step step(1, pages_per_slot);
  for (const int32_t position : positions) step.run(position, 1);
  return step;
}

// -- comparison ------------------------------------------------------------------------------------------------------

// How far two results may be apart: `ulps` roundings in at most `share` of the elements. An error below `floor` of the
// largest element counts as one rounding: where a sum cancels, its own last bit says little.
struct Bound {
  int ulps = 1;
  double share = 0.01;
  double floor = 0x1p-13;
};

inline int ordered(bf16 code) { return code & 0x8000 ? -(code & 0x7fff) : code; }

inline void expect_bf16(const std::string& what, std::span<const bf16> actual, std::span<const bf16> expected,
                        Bound bound) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  float largest = 0;
  for (const bf16 code : expected) largest = std::max(largest, std::fabs(bf16_to_float(code)));
  size_t off = 0;
  size_t worst = 0;
  int worst_ulps = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    int ulps = std::abs(ordered(actual[i]) - ordered(expected[i]));
    if (ulps == 0) continue;
    ++off;
    const float difference = std::fabs(bf16_to_float(actual[i]) - bf16_to_float(expected[i]));
    if (difference <= bound.floor * largest) ulps = 1;
    if (!(ulps <= worst_ulps)) worst_ulps = ulps, worst = i;
  }
  const double share = static_cast<double>(off) / static_cast<double>(actual.size());
  if (std::getenv("ONELANE_GOLDEN_VERBOSE")) {
    std::printf("%-44s off %.5f worst %d ulp\n", what.c_str(), share, worst_ulps);
  }
  EXPECT_LE(worst_ulps, bound.ulps) << what << " at " << worst << ": " << bf16_to_float(actual[worst]) << " against "
                                    << bf16_to_float(expected[worst]);
  EXPECT_LE(share, bound.share) << what << ": share of unequal elements";
}

// Root mean square of the difference relative to that of the expected values.
inline void expect_rms(const std::string& what, std::span<const bf16> actual, std::span<const bf16> expected,
                       double bound) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double e = bf16_to_float(expected[i]);
    difference += (bf16_to_float(actual[i]) - e) * (bf16_to_float(actual[i]) - e);
    norm += e * e;
  }
  const double rms = std::sqrt(difference / norm);
  if (std::getenv("ONELANE_GOLDEN_VERBOSE")) std::printf("%-44s rms %.3g\n", what.c_str(), rms);
  EXPECT_LE(rms, bound) << what;
}

// Largest difference relative to the largest expected magnitude; not-finite values must be equal.
inline void expect_floats(const std::string& what, std::span<const float> actual, std::span<const float> expected,
                          double relative) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  for (const float value : expected) {
    if (std::isfinite(value)) largest = std::max(largest, static_cast<double>(std::fabs(value)));
  }
  size_t worst = 0;
  double worst_error = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    const double error = std::fabs(static_cast<double>(actual[i]) - expected[i]) / largest;
    if (!(error <= worst_error)) worst_error = error, worst = i;
  }
  if (std::getenv("ONELANE_GOLDEN_VERBOSE")) std::printf("%-44s relative %.3g\n", what.c_str(), worst_error);
  EXPECT_LE(worst_error, relative) << what << " at " << worst << ": " << actual[worst] << " against "
                                   << expected[worst];
}

// Record `i` of `block` against golden bytes, for i in [0, count): equal in all but `share` of the records' bytes.
inline void expect_records(const std::string& what,
                           const std::function<std::pair<const uint8_t*, const uint8_t*>(int)>& at, RecordFormat format,
                           const std::vector<uint8_t>& data, const std::vector<uint8_t>& scale, double share) {
  const int data_bytes = record_data_bytes(format);
  const int scale_bytes = record_scale_bytes(format);
  const int count = static_cast<int>(data.size()) / data_bytes;
  ASSERT_EQ(static_cast<int>(scale.size()), count * scale_bytes) << what;
  size_t off = 0;
  std::string first;
  const auto compare = [&](int record, const char* part, const uint8_t* actual, const uint8_t* expected, int bytes) {
    for (int b = 0; b < bytes; ++b) {
      if (actual[b] == expected[b]) continue;
      if (off++ == 0) first = "record " + std::to_string(record) + " " + part + " byte " + std::to_string(b);
    }
  };
  for (int i = 0; i < count; ++i) {
    const auto [actual_data, actual_scale] = at(i);
    compare(i, "data", actual_data, data.data() + static_cast<size_t>(i) * data_bytes, data_bytes);
    compare(i, "scale", actual_scale, scale.data() + static_cast<size_t>(i) * scale_bytes, scale_bytes);
  }
  const double off_share = static_cast<double>(off) / static_cast<double>(data.size() + scale.size());
  if (std::getenv("ONELANE_GOLDEN_VERBOSE")) std::printf("%-44s bytes off %.5f\n", what.c_str(), off_share);
  EXPECT_LE(off_share, share) << what << ", first at " << first;
}

inline std::function<std::pair<const uint8_t*, const uint8_t*>(int)> records_of(const RecordBlock& block) {
  return [block](int i) { return std::pair<const uint8_t*, const uint8_t*>(block.data(i), block.scales(i)); };
}

inline std::function<std::pair<const uint8_t*, const uint8_t*>(int)> records_of(const StepRows& rows,
                                                                                const Pages& pages) {
  return [rows, &pages](int entry) {
    const RecordBlock block = pages.place(rows, 0, entry);
    const int record = entry % pages.cache.per_page;
    return std::pair<const uint8_t*, const uint8_t*>(block.data(record), block.scales(record));
  };
}

// Writes golden record bytes into a page pool.
inline void fill_pages(const StepRows& rows, const Pages& pages, const std::vector<uint8_t>& data,
                       const std::vector<uint8_t>& scale) {
  const RecordFormat format = pages.cache.format;
  const int count = static_cast<int>(data.size()) / record_data_bytes(format);
  for (int entry = 0; entry < count; ++entry) {
    const RecordBlock block = pages.place(rows, 0, entry);
    const int record = entry % pages.cache.per_page;
    std::memcpy(block.data(record), data.data() + static_cast<size_t>(entry) * record_data_bytes(format),
                static_cast<size_t>(record_data_bytes(format)));
    std::memcpy(block.scales(record), scale.data() + static_cast<size_t>(entry) * record_scale_bytes(format),
                static_cast<size_t>(record_scale_bytes(format)));
  }
}

}  // namespace onelane::testing
