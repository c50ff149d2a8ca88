// The driver's management library (NVML), read only, loaded at run time: without a driver there is just nothing to
// read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace onelane {

struct GpuFacts {
  std::string name, vbios;
  std::optional<bool> ecc;
  std::optional<double> power_limit_w;
};

struct GpuSample {
  std::optional<double> sm_mhz, temperature_c, power_w;
  std::vector<std::string> throttle;  // "idle", "app_clock", "power_cap", "hw_slowdown", "thermal", ...
};

class Nvml {
 public:
  // Nothing where `library` cannot be loaded or does not start.
  static std::unique_ptr<Nvml> open(const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  int gpus() const { return static_cast<int>(devices_.size()); }
  std::string driver() const;
  GpuFacts facts(int gpu) const;
  GpuSample sample(int gpu) const;

 private:
  explicit Nvml(void* library) : library_(library) {}
  // nvmlReturn_t NAME(arguments...); whether it is there and says success.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const;

  void* library_;
  std::vector<void*> devices_;
};

}  // namespace onelane
