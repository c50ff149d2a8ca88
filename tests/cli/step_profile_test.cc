// Counters of kernels, from what ncu prints.
#include "cli/step_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace onelane {
namespace {

using ::testing::HasSubstr;

std::string header() {
  std::string text = R"("ID","Process ID","Kernel Name","Context")";
  for (const std::string& metric : profile_metrics()) text += ",\"" + metric + "\"";
  return text + "\n";
}

const char* const kUnits = R"("","","","","ns","%","%","%","%"
)";

TEST(StepProfile, GathersKernelsByName) {
  const auto kernels =
      parse_profile("==PROF== Connected to process 7\nfilling a synthetic v4 ...\n" + header() + kUnits +
                        R"("0","7","multiply",
                    "1", "1,000", "50", "40.5", "10",
                    "80"
                    "1",
                    "7", "sum_pairs", "1", "500", "10", "20", "0",
                    "5"
                    "2",
                    "7", "multiply", "1", "3000", "90", "40.5",
                    "30", "100") ");
      ASSERT_TRUE(kernels)
      << kernels.error().message;
  ASSERT_EQ(kernels->size(), 2U);
  const KernelCounters& first = kernels->front();
  EXPECT_EQ(first.calls, 2);
  EXPECT_NEAR(first.us, 4, 1e-9);
  EXPECT_NEAR(first.sm_active, 0.8, 1e-9);
  EXPECT_NEAR(first.issue_active, 0.405, 1e-9);
  EXPECT_NEAR(first.tensor_active, 0.25, 1e-9);
  EXPECT_NEAR(first.memory_read, 0.95, 1e-9);
  EXPECT_EQ(kernels->back().name, "sum_pairs");
  EXPECT_THAT(profile_table(*kernels), HasSubstr("all                               3         4.5"));
}

TEST(StepProfile, SaysWhatItCannotRead) {
  EXPECT_THAT(parse_profile("").error().message, HasSubstr("no kernel was watched"));
  EXPECT_THAT(parse_profile("==ERROR== no permission\n").error().message, HasSubstr("no kernel was watched"));
  EXPECT_THAT(parse_profile(header() + kUnits).error().message, HasSubstr("no kernel was watched"));
  EXPECT_THAT(parse_profile("\"ID\",\"Kernel Name\"\n").error().message, HasSubstr("no column gpu__time_duration.sum"));
  const std::string broken = header() + kUnits + R"("0","7","k","1","n/a","50","40","10","80")" + "\n";
  EXPECT_THAT(parse_profile(broken).error().message, HasSubstr("gpu__time_duration.sum of k is 'n/a'"));
  const std::string cut = header() + kUnits + R"("0","7","k","1","5")" + "\n";
  EXPECT_THAT(parse_profile(cut).error().message, HasSubstr("is ''"));
}

}  // namespace
}  // namespace onelane
