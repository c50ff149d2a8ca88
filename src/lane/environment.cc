#include "lane/environment.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include <sys/utsname.h>
#include <unistd.h>

#include "base/format.h"
#include "base/proc_file.h"
#include "lane/stats.h"

namespace onelane {
namespace {

namespace fs = std::filesystem;

std::optional<double> processor_mhz(const std::string& root) {
  std::vector<double> mhz;
  for (const std::string& value : proc_values(root + "/proc/cpuinfo", "cpu MHz")) {
    mhz.push_back(std::strtod(value.c_str(), nullptr));
  }
  if (mhz.empty()) return std::nullopt;
  return mean(mhz);
}

std::optional<double> hottest_zone_c(const std::string& root) {
  std::optional<double> hottest;
  std::error_code ignored;
  for (const auto& zone : fs::directory_iterator(root + "/sys/class/thermal", ignored)) {
    double millidegrees = 0;
    if (std::ifstream(zone.path() / "temp") >> millidegrees) {
      hottest = std::max(hottest.value_or(millidegrees / 1e3), millidegrees / 1e3);
    }
  }
  return hottest;
}

}  // namespace

EnvironmentWatch::EnvironmentWatch(EnvironmentOptions options) : options_(std::move(options)) {
  ONELANE_CHECK(options_.samples_hz > 0, "an environment watch that never looks");
  if (options_.gpu) nvml_ = Nvml::open(options_.nvml);
  if (nvml_ && nvml_->gpus() == 0) nvml_.reset();
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    do {
      sample();
    } while (!ended_.wait_for(lock, std::chrono::duration<double>(1 / options_.samples_hz), [this] { return end_; }));
  });
}

EnvironmentWatch::~EnvironmentWatch() { stop(); }

void EnvironmentWatch::sample() {
  if (!nvml_) {
    if (const auto mhz = processor_mhz(options_.root)) clocks_mhz_.push_back(*mhz);
    if (const auto degrees = hottest_zone_c(options_.root)) temperatures_c_.push_back(*degrees);
    return;
  }
  std::optional<double> slowest, hottest, power;
  for (int gpu = 0; gpu < nvml_->gpus(); ++gpu) {
    const GpuSample now = nvml_->sample(gpu);
    if (now.sm_mhz) slowest = std::min(slowest.value_or(*now.sm_mhz), *now.sm_mhz);
    if (now.temperature_c) hottest = std::max(hottest.value_or(*now.temperature_c), *now.temperature_c);
    if (now.power_w) power = power.value_or(0) + *now.power_w;
    throttle_.insert(now.throttle.begin(), now.throttle.end());
  }
  if (slowest) clocks_mhz_.push_back(*slowest);
  if (hottest) temperatures_c_.push_back(*hottest);
  if (power) power_w_.push_back(*power);
}

ReceiptMachine EnvironmentWatch::machine() const {
  ReceiptMachine machine;
  const std::string cpuinfo = options_.root + "/proc/cpuinfo";
  const auto models = proc_values(cpuinfo, "model name");
  if (!models.empty()) machine.cpu = models.front();
  const auto memory = proc_values(options_.root + "/proc/meminfo", "MemTotal");  // "16318480 kB"
  if (!memory.empty()) machine.memory_bytes = std::strtoll(memory.front().c_str(), nullptr, 10) * 1024;
  machine.processors = ::sysconf(_SC_NPROCESSORS_ONLN);
  utsname system{};
  if (::uname(&system) == 0) machine.kernel = format("{} {}", system.sysname, system.release);
  if (!nvml_) return machine;
  const GpuFacts facts = nvml_->facts(0);
  machine.gpu = nvml_->gpus() == 1 ? facts.name : format("{} and {} more", facts.name, nvml_->gpus() - 1);
  machine.vbios = facts.vbios;
  machine.driver = nvml_->driver();
  machine.ecc = facts.ecc;
  machine.power_limit_w = facts.power_limit_w;
  return machine;
}

ReceiptEnvironment EnvironmentWatch::stop() {
  {
    const std::scoped_lock lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
  ReceiptEnvironment environment;
  environment.samples_hz = options_.samples_hz;
  if (!clocks_mhz_.empty()) {
    environment.clock_mhz_p5 = percentile(clocks_mhz_, 0.05);
    environment.clock_mhz_p50 = percentile(clocks_mhz_, 0.5);
  }
  if (!temperatures_c_.empty()) {
    environment.temp_c_start = temperatures_c_.front();
    environment.temp_c_max = *std::max_element(temperatures_c_.begin(), temperatures_c_.end());
  }
  if (!power_w_.empty()) environment.power_w_mean = mean(power_w_);
  environment.throttle.assign(throttle_.begin(), throttle_.end());
  return environment;
}

}  // namespace onelane
