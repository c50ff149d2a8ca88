#include "lane/environment.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/mapped_file.h"

namespace onelane {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
namespace fs = std::filesystem;

class EnvironmentTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / (std::to_string(::getpid()) + "_environment");
    fs::create_directories(root_ / "proc");
    fs::create_directories(root_ / "sys/class/thermal/thermal_zone0");
    fs::create_directories(root_ / "sys/class/thermal/thermal_zone1");
    write("proc/cpuinfo",
          "processor\t: 0\nmodel name\t: A slow one\ncpu MHz\t\t: 2000.5\n\nprocessor\t: 1\ncpu MHz\t\t: 2001.5\n");
    write("proc/meminfo", "MemTotal:       2048 kB\nMemTotalish: 1 kB\n");
    write("sys/class/thermal/thermal_zone0/temp", "41500\n");
    write("sys/class/thermal/thermal_zone1/temp", "39000\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file((root_ / name).string(), text));
  }

  fs::path root_;
};

TEST_F(EnvironmentTest, AMachineWithoutAGpu) {
  EnvironmentWatch watch({.gpu = true, .root = root_.string(), .nvml = "libno-such-library.so"});
  const ReceiptMachine machine = watch.machine();
  EXPECT_EQ(machine.cpu, "A slow one");
  EXPECT_EQ(machine.memory_bytes, 2048 * 1024);
  EXPECT_GE(*machine.processors, 1);
  EXPECT_FALSE(machine.gpu || machine.driver || machine.power_limit_w || machine.ecc);
  const ReceiptEnvironment seen = watch.stop();  // one sample is taken at once
  EXPECT_DOUBLE_EQ(*seen.clock_mhz_p5, 2001);
  EXPECT_DOUBLE_EQ(*seen.clock_mhz_p50, 2001);
  EXPECT_DOUBLE_EQ(*seen.temp_c_start, 41.5);
  EXPECT_FALSE(seen.power_w_mean);
  EXPECT_THAT(seen.throttle, IsEmpty());
  EXPECT_EQ(watch.stop().clock_mhz_p50, seen.clock_mhz_p50);
}

TEST_F(EnvironmentTest, WhatIsNotKnownIsNull) {
  fs::remove_all(root_ / "proc");
  fs::remove_all(root_ / "sys");
  EnvironmentWatch watch({.gpu = false, .root = root_.string()});
  EXPECT_FALSE(watch.machine().cpu || watch.machine().memory_bytes);
  const ReceiptEnvironment seen = watch.stop();
  EXPECT_FALSE(seen.clock_mhz_p50 || seen.temp_c_start || seen.temp_c_max);
}

TEST_F(EnvironmentTest, GpusThroughTheDriversLibrary) {
  EnvironmentWatch watch({.gpu = true, .samples_hz = 500, .root = root_.string(), .nvml = ONELANE_FAKE_NVML});
  const ReceiptMachine machine = watch.machine();
  EXPECT_EQ(machine.gpu, "A GPU of cardboard and 1 more");
  EXPECT_EQ(machine.driver, "580.65.06");
  EXPECT_EQ(machine.vbios, "96.00");
  EXPECT_EQ(machine.ecc, true);
  EXPECT_EQ(machine.power_limit_w, 700.0);
  const ReceiptEnvironment seen = watch.stop();
  EXPECT_EQ(seen.clock_mhz_p50, 1500.0);
  EXPECT_EQ(seen.temp_c_max, 61.0);
  EXPECT_FALSE(seen.power_w_mean);
  EXPECT_THAT(seen.throttle, ElementsAre("idle", "power_cap", "thermal"));
}

// This machine: whatever it has, reading it works.
TEST(Environment, ThisMachine) {
  EnvironmentWatch watch({.gpu = false});
  EXPECT_GE(*watch.machine().processors, 1);
  EXPECT_GT(*watch.machine().memory_bytes, 1 << 20);
  EXPECT_EQ(watch.stop().samples_hz, 2.0);
}

}  // namespace
}  // namespace onelane
