#include "device/plugin.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace onelane {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string fake(const std::string& name) { return std::string(ONELANE_FAKE_PLUGINS) + "/" + name; }

void expect_refused(const std::string& folder, ErrorCode code, const std::string& why) {
  const auto plugin = load_plugin({folder});
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code, code);
  EXPECT_THAT(plugin.error().message, HasSubstr(folder));
  EXPECT_THAT(plugin.error().message, HasSubstr(why));
}

TEST(Plugin, OneThatFitsIsLoadedAndItsPathTold) {
  const auto plugin = load_plugin({fake("no such folder"), fake("good"), fake("wrong_build")});
  ASSERT_TRUE(plugin) << plugin.error().message;
  EXPECT_EQ(plugin->path, fake("good") + "/libonelane_cuda.so");
  onelane_plugin_probe probe;
  EXPECT_EQ(plugin->table->probe(&probe), 1);
  EXPECT_EQ(std::string(probe.gpus[0].name), "A GPU of cardboard");
}

TEST(Plugin, NoneIsNotFoundAndTheFoldersAreTold) {
  const auto plugin = load_plugin({"/nonexistent/a", "/nonexistent/b"});
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(plugin.error().message, HasSubstr("/nonexistent/a, /nonexistent/b"));
  EXPECT_FALSE(load_plugin({}));
}

TEST(Plugin, AnotherBuildIsRefusedWithBothIds) {
  expect_refused(fake("wrong_build"), ErrorCode::kUnsupported, "another build");
  expect_refused(fake("wrong_build"), ErrorCode::kUnsupported, build_id());
}

TEST(Plugin, AnotherInterfaceIsRefused) {
  expect_refused(fake("wrong_version"), ErrorCode::kUnsupported, "interface version 99");
  expect_refused(fake("wrong_size"), ErrorCode::kUnsupported, "8 bytes");
}

TEST(Plugin, WhatIsNoPluginIsCalledSo) {
  expect_refused(fake("no_symbol"), ErrorCode::kCorrupt, "no symbol onelane_cuda_plugin");
  expect_refused(fake("no_table"), ErrorCode::kCorrupt, "no table");
  const fs::path folder = fs::path(::testing::TempDir()) / ("onelane_plugin_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "libonelane_cuda.so") << "not a library";
  expect_refused(folder.string(), ErrorCode::kCorrupt, "cannot be loaded");
  fs::remove_all(folder);
}

TEST(Plugin, FoldersAreTheExecutablesTheLibrarysAndTheNamed) {
  ::setenv("ONELANE_PLUGIN_DIR", "/somewhere", 1);
  const auto folders = plugin_folders();
  ::unsetenv("ONELANE_PLUGIN_DIR");
  const fs::path self = fs::read_symlink("/proc/self/exe").parent_path();
  EXPECT_THAT(folders,
              ::testing::ElementsAre(self.string(), (self.parent_path() / "lib/onelane").string(), "/somewhere"));
  EXPECT_EQ(plugin_folders().size(), 2u);
}

#ifdef ONELANE_BUILT_PLUGIN
// The real one, on whatever machine this is: it loads without a driver and gives its reason.
TEST(Plugin, TheBuiltOneLoadsAndTellsWhatItSees) {
  const auto plugin = load_plugin({ONELANE_BUILT_PLUGIN});
  ASSERT_TRUE(plugin) << plugin.error().message;
  onelane_plugin_probe probe;
  const int usable = plugin->table->probe(&probe);
  EXPECT_GE(probe.runtime_version, 13000);
  EXPECT_EQ(usable == 0, std::string(probe.reason) != "");
  if (probe.driver_version != 0) GTEST_SKIP() << "this machine has a driver: " << probe.reason;
  EXPECT_EQ(std::string(probe.reason), "no NVIDIA driver is installed");
  onelane_attention_device device;
  EXPECT_EQ(plugin->table->attention_describe(&device), ONELANE_ATTENTION_FAILED);
  EXPECT_NE(std::string(plugin->table->attention_message()), "");
}
#endif

}  // namespace
}  // namespace onelane
