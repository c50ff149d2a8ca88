// Sums in float with a bound on their error must round as sums in double do: on rounding boundaries and a hair beside
// them, at both ends of the range of scales, with NaN. Held against the reference bit by bit, on every instruction set
// that this machine has.
#include <limits>

#include <hwy/targets.h>

#include "kernels/stage_support.h"

namespace onelane {
namespace {

using namespace testing;

// The CPU kernels on one instruction set each, by one thread and by three.
class Guard : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(0);
    if ((hwy::SupportedTargets() & GetParam()) == 0) GTEST_SKIP() << "not on this machine";
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(GetParam());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  std::unique_ptr<Kernels> reference = make_reference_kernels();
  std::unique_ptr<Kernels> cpu[2] = {make_cpu_kernels(1), make_cpu_kernels(3)};
};
#if defined(__x86_64__)
INSTANTIATE_TEST_SUITE_P(, Guard, ::testing::Values(HWY_SSE4, HWY_AVX2, HWY_AVX3),
                         [](const auto& test) { return std::string(hwy::TargetName(test.param)); });
#else
INSTANTIATE_TEST_SUITE_P(, Guard, ::testing::Values(HWY_NEON),
                         [](const auto& test) { return std::string(hwy::TargetName(test.param)); });
#endif

void expect_equal_bits(const Array<bf16>& got, const Array<bf16>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  int shown = 0;
  for (size_t i = 0; i < got.size() && shown < 5; ++i) {
    const bool both_nan = std::isnan(bf16_to_float(got[i])) && std::isnan(bf16_to_float(want[i]));
    if (got[i] == want[i] || both_nan) continue;
    ++shown;
    ADD_FAILURE() << what << ", value " << i << ": " << bf16_to_float(got[i]) << " instead of "
                  << bf16_to_float(want[i]);
  }
}

// One product of `rows` rows with `w`: wo_a hands the first w.in values of each row on, as they are.
Array<bf16> product(Kernels& kernels, const Matrix& w, const Array<bf16>& x, int rows) {
  const Weight pass = bf16_weight(w.in, kHeadDim, diagonal(1));
  Array<bf16> y(static_cast<size_t>(rows) * w.out);
  Step step;
  step.run(0, rows);
  kernels.project_out(step.rows(),
                      {.attended = x.data(), .heads = 1, .groups = 1, .wo_a = pass.matrix, .wo_b = w, .y = y.data()});
  return y;
}

using Values = std::function<float(Random&, int)>;

struct ProductCase {
  const char* name;
  Values x;                              // of an input
  Values w;                              // of a weight, before its scale
  std::function<int(Random&)> exponent;  // of a scale
};

float pick(Random& random, std::initializer_list<float> values) {
  const auto at = static_cast<size_t>(std::fabs(random.normal(1000))) % values.size();
  return values.begin()[at];
}

const ProductCase kProducts[] = {
    {"normal", [](Random& r, int) { return r.normal(); }, [](Random& r, int) { return r.normal(100); },
     [](Random& r) { return static_cast<int>(r.normal(2)) - 9; }},
    // Sums of few bits: half of them lie on a boundary.
    {"ties", [](Random& r, int) { return pick(r, {0, 1, -1, 0x1p-8f, -0x1p-8f, 0x1p-7f}); },
     [](Random& r, int) { return pick(r, {1, -1, 1.5f, 0.5f, 0}); }, [](Random&) { return 0; }},
    // 1 + 2^-8 lies on a boundary; what follows is far below the last place of a float.
    {"beside ties",
     [](Random& r, int k) {
       return k == 0 ? 1.0f : k == 32 ? 0x1p-8f : k > 63 ? pick(r, {0, 0x1p-29f, -0x1p-29f}) : 0;
     },
     [](Random&, int) { return 1.0f; }, [](Random&) { return 0; }},
    {"cancellation", [](Random&, int k) { return k % 2 == 0 ? 300.0f : -300.0f; },
     [](Random& r, int) { return pick(r, {1, 1, 1.125f}); }, [](Random&) { return 0; }},
    {"subnormal codes", [](Random& r, int) { return r.normal(); }, [](Random& r, int) { return r.normal(0.01f); },
     [](Random& r) { return static_cast<int>(r.normal(3)); }},
    {"great scales", [](Random& r, int) { return r.normal(); }, [](Random& r, int) { return r.normal(2); },
     [](Random& r) { return 60 + static_cast<int>(r.normal(25)); }},
    {"small scales", [](Random& r, int) { return r.normal(); }, [](Random& r, int) { return r.normal(2); },
     [](Random& r) { return std::max(-127, -100 - static_cast<int>(std::fabs(r.normal(20)))); }},
    {"great inputs", [](Random& r, int) { return r.normal(1e30f); }, [](Random& r, int) { return r.normal(2); },
     [](Random&) { return 3; }},
    {"small inputs", [](Random& r, int) { return r.normal(1e-30f); }, [](Random& r, int) { return r.normal(2); },
     [](Random&) { return -3; }},
    {"nothing", [](Random&, int) { return 0.0f; }, [](Random& r, int) { return r.normal(); },
     [](Random&) { return 0; }},
    {"bad inputs",
     [](Random& r, int k) {
       return k == 40   ? std::numeric_limits<float>::quiet_NaN()
              : k == 41 ? std::numeric_limits<float>::infinity()
                        : r.normal();
     },
     [](Random& r, int) { return r.normal(); }, [](Random&) { return 0; }},
};

TEST_P(Guard, Products) {
  Random random(1);
  for (const ProductCase& test : kProducts) {
    for (const int in : {32, 64, 128, 256, 384, 512}) {
      for (const bool fp4 : {false, true}) {
        for (const int act_block : {0, 32}) {
          if (fp4 && act_block == 0) continue;
          const int out = 76;  // the last tile is not full
          const int block = in >= 256 ? 128 : 32;
          std::vector<int> exponents(static_cast<size_t>(out) * in / 32);
          for (int& exponent : exponents) exponent = std::clamp(test.exponent(random), -127, 110);
          const auto value = [&](int row, int column, int, int k) {
            const int e = exponents[static_cast<size_t>(row) * (in / 32) + column];
            return std::ldexp(test.w(random, k), e);
          };
          const auto exponent = [&](int row, int column) {
            return exponents[static_cast<size_t>(row) * (in / 32) + column];
          };
          const Weight w = fp4 ? fp4_weight(
                                     out, in, act_block, [&](int o, int k) { return value(o, k / 32, o, k); }, exponent)
                               : fp8_weight(
                                     out, in, block, act_block,
                                     [&](int o, int k) { return value(o / block, k / block, o, k); }, exponent);
          for (const int rows : {1, 3, 5, 9, 21}) {
            Array<bf16> x(static_cast<size_t>(rows) * kHeadDim);
            for (int row = 0; row < rows; ++row) {
              for (int k = 0; k < in; ++k) x[row * kHeadDim + k] = float_to_bf16(test.x(random, k));
            }
            const Array<bf16> want = product(*reference, w.matrix, x, rows);
            for (const auto& kernels : cpu) {
              expect_equal_bits(product(*kernels, w.matrix, x, rows), want,
                                std::string(test.name) + (fp4 ? ", e2m1 " : ", e4m3 ") + std::to_string(in) +
                                    " wide, activations in blocks of " + std::to_string(act_block) + ", " +
                                    std::to_string(rows) + " rows");
            }
          }
        }
      }
    }
  }
}

// With q = 0 an output is the mean of the values: of 64 or 128 small integers, so that many lie on a boundary.
TEST_P(Guard, Attention) {
  Random random(2);
  constexpr int kHeadCount = 5;
  for (const auto& [name, query, value] : {
           std::tuple<const char*, float, Values>{"means", 0, [](Random& r, int) { return std::round(r.normal(3)); }},
           {"weighted", 1, [](Random& r, int) { return r.normal(); }},
           {"steep", 40, [](Random& r, int) { return r.normal(); }},
           {"great values", 0.01f, [](Random& r, int) { return r.normal(1e30f); }},
           {"small values", 0.01f, [](Random& r, int) { return r.normal(1e-36f); }},
       }) {
    for (const int rows : {1, 2, 4}) {
      for (const int first : {0, 63, 127, 300}) {
        Step step;
        step.run(first, rows);
        Records kv(RecordFormat::kV41Fp8, rows);
        const Rings rings(RecordFormat::kV41Fp8, 1);
        const auto record = [&] {
          std::vector<float> values(kHeadDim);
          for (float& v : values) v = value(random, 0);
          return values;
        };
        for (int p = std::max(0, first - kWindow); p < first; ++p) rings.set(0, p, record());
        for (int row = 0; row < rows; ++row) kv.set(row, record());
        const Array<bf16> q = random.bf16s(static_cast<size_t>(rows) * kHeadCount * kHeadDim, query);
        const Array<float> sink = {0, 5, -50, -std::numeric_limits<float>::infinity(), 200};
        const auto attend = [&](Kernels& kernels) {
          Array<bf16> out(q.size());
          kernels.attend(step.rows(), {.q = q.data(),
                                       .heads = kHeadCount,
                                       .kv = kv.block,
                                       .ring = rings.cache,
                                       .sink = sink.data(),
                                       .rope = &table_a(),
                                       .out = out.data()});
          return out;
        };
        const Array<bf16> want = attend(*reference);
        for (const auto& kernels : cpu) {
          expect_equal_bits(attend(*kernels), want,
                            std::string(name) + ", " + std::to_string(rows) + " rows from " + std::to_string(first));
        }
      }
    }
  }
}

// Records hold the bytes that the reference writes, for values of any size and beside every midpoint.
TEST_P(Guard, Records) {
  Random random(3);
  constexpr int kDim = 64;
  constexpr int kRows = 12;
  Step step;
  step.run(0, kRows);
  const StepRows rows = step.rows();
  const Weight wkv = bf16_weight(kHeadDim, kDim, random_values(4, 1));
  const Weight wk = bf16_weight(kIndexDim, kHeadDim, random_values(5, 1));
  for (int round = 0; round < 20; ++round) {
    Array<bf16> x = random.bf16s(static_cast<size_t>(kRows) * kDim);
    x[3 * kDim + 5] = float_to_bf16(std::numeric_limits<float>::quiet_NaN());
    x[4 * kDim + 5] = float_to_bf16(std::numeric_limits<float>::infinity());
    const auto norms = [&](int count) {
      Array<bf16> norm(static_cast<size_t>(count));
      for (int i = 0; i < count; ++i) {
        const float size = round == 0 ? 1 : pick(random, {1, 1e-3f, 1e-8f, 1e-38f, 1e4f, 1e30f, 3e38f, 0});
        norm[i] = float_to_bf16(i % 64 == 0 ? size : random.normal(size));
      }
      return norm;
    };
    const Array<bf16> kv_norm = norms(kHeadDim);
    const Array<bf16> k_norm = norms(kIndexDim);
    for (const RecordFormat format : {RecordFormat::kV4Fp8, RecordFormat::kV41Fp8}) {
      const auto project = [&](Kernels& kernels) {
        Records kv(format, kRows);
        kernels.project_qkv(rows, {.x = x.data(),
                                   .dim = kDim,
                                   .wkv = wkv.matrix,
                                   .kv_norm = kv_norm.data(),
                                   .norm_eps = 1e-6f,
                                   .rope = &table_a(),
                                   .kv = kv.block});
        return std::vector<std::byte>(kv.memory.data(), kv.memory.data() + kv.memory.size());
      };
      const auto want = project(*reference);
      for (const auto& kernels : cpu) EXPECT_EQ(project(*kernels), want) << "window records, round " << round;
    }
    const auto compress = [&](Kernels& kernels) {
      const Pages entries(RecordFormat::kV41Nvfp4, step.pages(), 1);
      const Pages keys(RecordFormat::kIndexMxfp4, step.pages(), 1);
      const Array<bf16> latent = rounded_product(kernels, rows, wkv.matrix, x.data());
      kernels.compress(rows, {.ratio = 1,
                              .norm_eps = 1e-6f,
                              .rope = &table_b(),
                              .main = {.latent = latent.data(), .norm = kv_norm.data(), .width = kHeadDim},
                              .entries = entries.cache,
                              .wk = wk.matrix,
                              .k_norm = k_norm.data(),
                              .keys = keys.cache});
      return std::pair(entries.bytes(), keys.bytes());
    };
    const auto want = compress(*reference);
    for (const auto& kernels : cpu) EXPECT_TRUE(compress(*kernels) == want) << "entries and keys, round " << round;
  }
}

}  // namespace
}  // namespace onelane
