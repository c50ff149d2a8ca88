// The plugin's one exported symbol and its probe. Compiled by the host compiler; the CUDA runtime inside is static and
// fetches the driver by query, so that the library loads on a machine that has none.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <cuda_runtime_api.h>

#include "cuda/kernels.h"
#include "device/plugin_interface.h"

namespace onelane::cuda {
namespace {

void write(char* to, size_t size, const std::string& text) { std::snprintf(to, size, "%s", text.c_str()); }

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string arch_text(int arch) { return std::to_string(arch / 10) + "." + std::to_string(arch % 10); }

// Code for 90a runs on 9.0 alone; code for 80 on every 8.x.
bool has_code_for(int arch) {
  const char* at = ONELANE_CUDA_ARCHITECTURES;
  while (*at != '\0') {
    char* end;
    const int built = static_cast<int>(std::strtol(at, &end, 10));
    const bool exact = *end == 'a';
    if (built == arch || (!exact && built / 10 == arch / 10 && built < arch)) return true;
    at = end + std::strcspn(end, " ");
    at += std::strspn(at, " ");
  }
  return false;
}

bool describe(int device, onelane_plugin_gpu& gpu) {
  cudaDeviceProp properties;
  const cudaError_t status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) {
    write(gpu.reason, sizeof(gpu.reason), std::string("it cannot be asked: ") + cudaGetErrorString(status));
    return false;
  }
  write(gpu.name, sizeof(gpu.name), properties.name);
  gpu.arch = 10 * properties.major + properties.minor;
  gpu.processors = properties.multiProcessorCount;
  gpu.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  gpu.usable = has_code_for(gpu.arch) ? 1 : 0;
  if (gpu.usable == 0) {
    write(gpu.reason, sizeof(gpu.reason),
          "this build has code for " ONELANE_CUDA_ARCHITECTURES ", the device is " + arch_text(gpu.arch));
  }
  return gpu.usable != 0;
}

std::string count_devices(onelane_plugin_probe& probe) {
  cudaDriverGetVersion(&probe.driver_version);
  cudaRuntimeGetVersion(&probe.runtime_version);
  if (probe.driver_version == 0) return "no NVIDIA driver is installed";
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    return "the driver speaks CUDA " + version_text(probe.driver_version) + ", this build needs " +
           version_text(probe.runtime_version) + ": a newer driver is needed";
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) return "the driver sees no GPU";
  if (status != cudaSuccess) return std::string("the driver said: ") + cudaGetErrorString(status);
  probe.gpu_count = count < ONELANE_PLUGIN_MAX_DEVICES ? count : ONELANE_PLUGIN_MAX_DEVICES;
  return "";
}

int32_t probe(onelane_plugin_probe* probe) {
  try {
    std::memset(probe, 0, sizeof(*probe));
    std::string reason = count_devices(*probe);
    int usable = 0;
    for (int i = 0; i < probe->gpu_count; ++i) usable += describe(i, probe->gpus[i]) ? 1 : 0;
    if (usable == 0 && reason.empty()) reason = std::string("no GPU is usable: ") + probe->gpus[0].reason;
    write(probe->reason, sizeof(probe->reason), reason);
    return usable;
  } catch (...) {  // nothing is thrown across
    return 0;
  }
}

void* make_kernels(int32_t device, char* reason) {
  onelane_plugin_probe found;
  probe(&found);
  std::string why = found.reason;
  if (why.empty() && (device < 0 || device >= found.gpu_count)) {
    why = "there is no GPU " + std::to_string(device) + ": the driver sees " + std::to_string(found.gpu_count);
  }
  if (why.empty() && found.gpus[device].usable == 0) why = found.gpus[device].reason;
  Kernels* kernels = why.empty() ? cuda::make_kernels(device, why) : nullptr;
  write(reason, sizeof(found.reason), why);
  return kernels;
}

constexpr onelane_plugin_table kTable = {
    .struct_size = sizeof(onelane_plugin_table),
    .version = ONELANE_PLUGIN_VERSION,
    .build_id = ONELANE_BUILD_ID,
    .architectures = ONELANE_CUDA_ARCHITECTURES,
    .probe = probe,
    .attention_message = onelane_attention_message,
    .attention_describe = onelane_attention_describe_cuda,
    .attention_run = onelane_attention_run_cuda,
    .make_kernels = make_kernels,
};

}  // namespace
}  // namespace onelane::cuda

extern "C" __attribute__((visibility("default"))) const onelane_plugin_table* onelane_cuda_plugin(void) {
  return &onelane::cuda::kTable;
}
