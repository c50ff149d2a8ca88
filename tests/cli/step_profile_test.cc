// Counters of kernels, from what ncu prints.
#include "cli/step_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace onelane {
namespace {

using ::testing::HasSubstr;

std::string header() {
  std::string text = R"("ID","Process ID","Kernel Name","Context")";
  for (const std::string& metric : profile_metrics()) text.append(",\"").append(metric).append("\"");
  return text + "\n";
}

const std::string kUnits = "\"\",\"\",\"\",\"\",\"ns\",\"%\",\"%\",\"%\",\"%\"\n";

std::string line(const std::string& kernel, const std::string& counters) {
  return "\"0\",\"7\",\"" + kernel + "\",\"1\"," + counters + "\n";
}

TEST(StepProfile, GathersKernelsByName) {
  const auto kernels = parse_profile("==PROF== Connected to process 7\nfilling a synthetic v4 ...\n" + header() +
                                     kUnits + line("multiply", "\"1,000\",\"50\",\"40.5\",\"10\",\"80\"") +
                                     line("sum_pairs", "\"500\",\"10\",\"20\",\"0\",\"5\"") +
                                     line("multiply", "\"3000\",\"90\",\"40.5\",\"30\",\"100\""));
  ASSERT_TRUE(kernels) << kernels.error().message;
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
  const std::string start = header() + kUnits;
  EXPECT_THAT(parse_profile(start + line("k", "\"n/a\",\"50\",\"40\",\"10\",\"80\"")).error().message,
              HasSubstr("gpu__time_duration.sum of k is 'n/a'"));
  EXPECT_THAT(parse_profile(start + line("k", "\"5\"")).error().message, HasSubstr("is ''"));
}

}  // namespace
}  // namespace onelane
