#include "attention/receipt.h"

#include <cstdio>

#include <dlfcn.h>

#include "attention/inputs.h"
#include "attention/timing.h"

namespace onelane::bench {
namespace {

// The few calls of NVML that are used, by their documented signatures; the library comes with the driver.
struct Nvml {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  template <class Function>
  Function find(const char* name) const {
    return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
  }
};

void print_clocks(std::FILE* file, const char* name, const Clocks& clocks) {
  std::fprintf(file, "  \"%s\": {\"sm_mhz\": %u, \"memory_mhz\": %u, \"temperature_c\": %u, \"power_mw\": %u},\n", name,
               clocks.sm_mhz, clocks.memory_mhz, clocks.temperature_c, clocks.power_mw);
}

void print_time(std::FILE* file, const char* name, double us) {
  if (us < 0) {
    std::fprintf(file, ", \"%s\": null", name);
  } else {
    std::fprintf(file, ", \"%s\": %.4f", name, us);
  }
}

}  // namespace

DeviceFacts read_device() {
  DeviceFacts facts;
  int device = 0;
  cudaDeviceProp properties{};
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
  CHECK_CUDA(cudaDriverGetVersion(&facts.driver));
  CHECK_CUDA(cudaRuntimeGetVersion(&facts.runtime));
  facts.name = properties.name;
  facts.arch = 10 * properties.major + properties.minor;
  facts.processors = properties.multiProcessorCount;
  facts.l2_bytes = properties.l2CacheSize;
  facts.memory_bytes = properties.totalGlobalMem;
  return facts;
}

Clocks read_clocks() {
  static const Nvml nvml;
  Clocks clocks;
  const auto init = nvml.find<int (*)()>("nvmlInit_v2");
  const auto by_bus = nvml.find<int (*)(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
  const auto clock = nvml.find<int (*)(void*, unsigned, unsigned*)>("nvmlDeviceGetClockInfo");
  const auto temperature = nvml.find<int (*)(void*, unsigned, unsigned*)>("nvmlDeviceGetTemperature");
  const auto power = nvml.find<int (*)(void*, unsigned*)>("nvmlDeviceGetPowerUsage");
  if (init == nullptr || by_bus == nullptr || init() != 0) return clocks;
  int device = 0;
  char bus[32] = {};
  void* handle = nullptr;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetPCIBusId(bus, sizeof(bus), device));
  if (by_bus(bus, &handle) != 0) return clocks;
  constexpr unsigned kSm = 1, kMemory = 2, kGpuSensor = 0;
  if (clock != nullptr) {
    clock(handle, kSm, &clocks.sm_mhz);
    clock(handle, kMemory, &clocks.memory_mhz);
  }
  if (temperature != nullptr) temperature(handle, kGpuSensor, &clocks.temperature_c);
  if (power != nullptr) power(handle, &clocks.power_mw);
  return clocks;
}

std::string widths_name(const onelane_attention_shape& shape) {
  return std::to_string(shape.window_width) + "+" + std::to_string(shape.extra_width);
}

std::string formats_name(const onelane_attention_shape& shape) {
  if (shape.window_format == ONELANE_KV_V41_FP8 && shape.extra_format == ONELANE_KV_V41_FP4) return "v41";
  const std::string window = attention_test::format_name(shape.window_format);
  if (shape.window_format == shape.extra_format) return window;
  return window + "/" + attention_test::format_name(shape.extra_format);
}

const char* output_name(onelane_attention_output output) {
  constexpr const char* kNames[] = {"bf16", "fp8", "fp8g"};
  return kNames[output];
}

const char* path_name(onelane_attention_path path) {
  constexpr const char* kNames[] = {"cpu", "cluster", "combine"};
  return kNames[path];
}

bool write_receipt(const Receipt& receipt, const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const DeviceFacts& device = receipt.device;
  std::fprintf(
      file,
      "{\n  \"tool\": \"attention_bench\",\n  \"device\": {\"name\": \"%s\", \"arch\": %d, \"processors\": %d, "
      "\"memory_bytes\": %zu, \"l2_bytes\": %d, \"driver\": %d, \"runtime\": %d},\n",
      device.name.c_str(), device.arch, device.processors, device.memory_bytes, device.l2_bytes, device.driver,
      device.runtime);
  print_clocks(file, "clocks_before", receipt.before);
  print_clocks(file, "clocks_after", receipt.after);
  std::fprintf(file, "  \"empty_node_us\": %.4f,\n  \"copy_bytes_per_second\": %.4e,\n  \"lines\": [\n",
               receipt.empty_node_us, receipt.copy_bytes_per_second);
  for (size_t i = 0; i < receipt.lines.size(); ++i) {
    const Line& line = receipt.lines[i];
    std::fprintf(file,
                 "    {\"rows\": %d, \"heads\": %d, \"widths\": \"%s\", \"format\": \"%s\", \"output\": \"%s\", "
                 "\"path\": \"%s\", \"splits\": %d, \"block_heads\": %d, \"sets\": %d, \"nodes\": %d, \"bytes\": %.0f, "
                 "\"floor_us\": %.4f",
                 line.shape.rows, line.shape.heads, widths_name(line.shape).c_str(), formats_name(line.shape).c_str(),
                 output_name(line.shape.output), path_name(line.plan.path), line.plan.splits, line.plan.block_heads,
                 line.sets, line.nodes, line.bytes, line.floor_us);
    print_time(file, "warm_us", line.warm_us);
    print_time(file, "warm_unsplit_us", line.warm_unsplit_us);
    print_time(file, "cold_us", line.cold_us);
    print_time(file, "cold_unsplit_us", line.cold_unsplit_us);
    print_time(file, "baseline_us", line.baseline_us);
    std::fprintf(file, "}%s\n", i + 1 < receipt.lines.size() ? "," : "");
  }
  std::fprintf(file, "  ]\n}\n");
  return std::fclose(file) == 0;
}

}  // namespace onelane::bench
