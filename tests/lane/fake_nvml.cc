// A libnvidia-ml with two GPUs, for environment_test.cc.
#include <cstring>

#define NVML extern "C" __attribute__((visibility("default")))

namespace {
char gpus[2];  // a handle is the address of one
bool second(const void* device) { return device == &gpus[1]; }
int copy(char* out, unsigned size, const char* text) {
  std::strncpy(out, text, size);
  return 0;
}
}  // namespace

NVML int nvmlInit_v2() { return 0; }
NVML int nvmlShutdown() { return 0; }
NVML int nvmlDeviceGetCount_v2(unsigned* count) { return *count = 2, 0; }
NVML int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { return *device = &gpus[index], 0; }
NVML int nvmlSystemGetDriverVersion(char* text, unsigned size) { return copy(text, size, "580.65.06"); }
NVML int nvmlDeviceGetName(void*, char* text, unsigned size) { return copy(text, size, "A GPU of cardboard"); }
NVML int nvmlDeviceGetVbiosVersion(void*, char* text, unsigned size) { return copy(text, size, "96.00"); }
NVML int nvmlDeviceGetEccMode(void*, int* now, int* pending) { return *now = *pending = 1, 0; }
NVML int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) { return *milliwatts = 700'000, 0; }
NVML int nvmlDeviceGetClockInfo(void* device, unsigned domain, unsigned* mhz) {
  return *mhz = domain == 1 ? (second(device) ? 1500 : 1980) : 0, 0;
}
NVML int nvmlDeviceGetTemperature(void* device, unsigned, unsigned* degrees) {
  return *degrees = second(device) ? 61 : 45, 0;
}
NVML int nvmlDeviceGetPowerUsage(void*, unsigned*) { return 3; }  // not supported
NVML int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  return *reasons = second(device) ? 0x24 : 0x1, 0;
}
