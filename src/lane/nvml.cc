#include "lane/nvml.h"

#include <array>
#include <utility>

#include <dlfcn.h>

namespace onelane {
namespace {

// nvml.h of the CUDA 13 toolkit; the values are part of the library's interface.
constexpr unsigned kSmClock = 1, kGpuSensor = 0;
constexpr std::array<std::pair<unsigned long long, const char*>, 9> kThrottle = {{{0x1, "idle"},
                                                                                  {0x2, "app_clock"},
                                                                                  {0x4, "power_cap"},
                                                                                  {0x8, "hw_slowdown"},
                                                                                  {0x10, "sync_boost"},
                                                                                  {0x20, "thermal"},
                                                                                  {0x40, "hw_thermal"},
                                                                                  {0x80, "power_brake"},
                                                                                  {0x100, "display_clock"}}};

}  // namespace

template <class... Arguments>
bool Nvml::call(const char* name, Arguments... arguments) const {
  const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(library_, name));
  return function != nullptr && function(arguments...) == 0;
}

std::unique_ptr<Nvml> Nvml::open(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  std::unique_ptr<Nvml> nvml(new Nvml(handle));
  unsigned count = 0;
  if (!nvml->call("nvmlInit_v2") || !nvml->call("nvmlDeviceGetCount_v2", &count)) return nullptr;
  for (unsigned i = 0; i < count; ++i) {
    void* device = nullptr;
    if (nvml->call("nvmlDeviceGetHandleByIndex_v2", i, &device)) nvml->devices_.push_back(device);
  }
  return nvml;
}

Nvml::~Nvml() {
  call("nvmlShutdown");
  ::dlclose(library_);
}

std::string Nvml::driver() const {
  std::array<char, 96> text{};
  return call("nvmlSystemGetDriverVersion", text.data(), static_cast<unsigned>(text.size())) ? text.data() : "";
}

GpuFacts Nvml::facts(int gpu) const {
  void* device = devices_.at(static_cast<size_t>(gpu));
  GpuFacts facts;
  std::array<char, 96> text{};
  if (call("nvmlDeviceGetName", device, text.data(), static_cast<unsigned>(text.size()))) facts.name = text.data();
  text = {};
  if (call("nvmlDeviceGetVbiosVersion", device, text.data(), static_cast<unsigned>(text.size())))
    facts.vbios = text.data();
  int now = 0, pending = 0;
  if (call("nvmlDeviceGetEccMode", device, &now, &pending)) facts.ecc = now != 0;
  unsigned milliwatts = 0;
  if (call("nvmlDeviceGetEnforcedPowerLimit", device, &milliwatts)) facts.power_limit_w = milliwatts / 1e3;
  return facts;
}

GpuSample Nvml::sample(int gpu) const {
  void* device = devices_.at(static_cast<size_t>(gpu));
  GpuSample sample;
  unsigned value = 0;
  if (call("nvmlDeviceGetClockInfo", device, kSmClock, &value)) sample.sm_mhz = value;
  if (call("nvmlDeviceGetTemperature", device, kGpuSensor, &value)) sample.temperature_c = value;
  if (call("nvmlDeviceGetPowerUsage", device, &value)) sample.power_w = value / 1e3;
  unsigned long long reasons = 0;
  // The newer name of the same call.
  if (call("nvmlDeviceGetCurrentClocksEventReasons", device, &reasons) ||
      call("nvmlDeviceGetCurrentClocksThrottleReasons", device, &reasons)) {
    for (const auto& [bit, name] : kThrottle) {
      if ((reasons & bit) != 0) sample.throttle.push_back(name);
    }
  }
  return sample;
}

}  // namespace onelane
