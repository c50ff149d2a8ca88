#include "cli/doctor.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/plugin.h"

namespace onelane {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

Diagnosis diagnose_with(const std::string& folder) {
  return diagnose({.version = "1.2.3", .plugin_folders = {folder}});
}

TEST(Doctor, DescribesTheMachineWithoutAPlugin) {
  const Diagnosis diagnosis = diagnose_with("/nonexistent");
  EXPECT_TRUE(diagnosis.healthy);
  EXPECT_THAT(diagnosis.text, HasSubstr("onelane   1.2.3, build " + std::string(build_id())));
  EXPECT_THAT(diagnosis.text, ContainsRegex("threads +[1-9][0-9]* of [1-9]"));
  EXPECT_THAT(diagnosis.text, ContainsRegex("memory +[0-9.]+ GB, [0-9.]+ GB available"));
  EXPECT_THAT(diagnosis.text, HasSubstr("plugin    none: no libonelane_cuda.so in /nonexistent"));
}

TEST(Doctor, RepeatsTheLoadersReason) {
  const Diagnosis diagnosis = diagnose_with(std::string(ONELANE_FAKE_PLUGINS) + "/wrong_build");
  EXPECT_FALSE(diagnosis.healthy);
  EXPECT_THAT(diagnosis.text, HasSubstr("plugin    refused: "));
  EXPECT_THAT(diagnosis.text, HasSubstr("build id another build"));
}

TEST(Doctor, ListsTheGpusOfAPlugin) {
  const std::string folder = std::string(ONELANE_FAKE_PLUGINS) + "/good";
  const Diagnosis diagnosis = diagnose_with(folder);
  EXPECT_TRUE(diagnosis.healthy);
  EXPECT_THAT(diagnosis.text, HasSubstr("plugin    " + folder + "/libonelane_cuda.so, for 90a"));
  EXPECT_THAT(diagnosis.text, HasSubstr("0: A GPU of cardboard, compute capability 9.0, 132 multiprocessors"));
}

#ifdef ONELANE_BUILT_PLUGIN
TEST(Doctor, RepeatsThePluginsReason) {
  const Diagnosis diagnosis = diagnose_with(ONELANE_BUILT_PLUGIN);
  EXPECT_TRUE(diagnosis.healthy);
  if (diagnosis.text.find("driver    none") == std::string::npos) GTEST_SKIP() << "this machine has a driver";
  EXPECT_THAT(diagnosis.text, HasSubstr("gpu       none to run on: no NVIDIA driver is installed"));
}
#endif

}  // namespace
}  // namespace onelane
