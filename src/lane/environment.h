// The machine that is measured on, and its clocks, temperatures and throttling while it is measured.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lane/nvml.h"
#include "lane/receipt.h"

namespace onelane {

struct EnvironmentOptions {
  // GPUs too; without it, or without a driver, the clocks are the processors'.
  bool gpu = true;
  double samples_hz = 2;
  std::string root;  // in front of /proc and /sys
  std::string nvml = "libnvidia-ml.so.1";
};

// Samples from construction to stop(), on a thread of its own. Reads files and calls NVML; forks nothing, sets nothing.
// With several GPUs the machine names the first and their number, the clock is the slowest's and the temperature the
// hottest's.
class EnvironmentWatch {
 public:
  explicit EnvironmentWatch(EnvironmentOptions options);
  ~EnvironmentWatch();
  EnvironmentWatch(const EnvironmentWatch&) = delete;
  EnvironmentWatch& operator=(const EnvironmentWatch&) = delete;

  ReceiptMachine machine() const;
  // Ends the sampling; the same at every further call.
  ReceiptEnvironment stop();

 private:
  void sample();

  EnvironmentOptions options_;
  std::unique_ptr<Nvml> nvml_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::vector<double> clocks_mhz_, temperatures_c_, power_w_;
  std::set<std::string> throttle_;
  std::thread thread_;
};

}  // namespace onelane
