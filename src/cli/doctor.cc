#include "cli/doctor.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/format.h"
#include "base/proc_file.h"
#include "device/buffer.h"
#include "device/plugin.h"

namespace onelane {
namespace {

void line(std::string& out, const char* subject, const std::string& text) {
  out += format("{:<9} {}\n", subject, text);
}

// The first value of `key` in a file under /proc; empty when there is none.
std::string proc_value(const char* path, const char* key) {
  const auto values = proc_values(path, key);
  return values.empty() ? "" : values.front();
}

std::string gigabytes(double bytes) { return format("{:.1f} GB", bytes / 1e9); }

double meminfo_bytes(const char* key) {
  const std::string text = proc_value("/proc/meminfo", key);  // "16318480 kB"
  return std::strtod(text.c_str(), nullptr) * 1024;
}

// Those that the CPU kernels have code for.
std::string cpu_features() {
#if defined(__x86_64__)
  std::string features;
  const auto add = [&](const char* name, bool there) {
    if (there) features += features.empty() ? name : std::string(" ") + name;
  };
  add("sse4.2", __builtin_cpu_supports("sse4.2"));
  add("avx2", __builtin_cpu_supports("avx2"));
  add("fma", __builtin_cpu_supports("fma"));
  add("avx512f", __builtin_cpu_supports("avx512f"));
  add("avx512bw", __builtin_cpu_supports("avx512bw"));
  return features.empty() ? "no SSE 4.2: too old for the cpu kernels" : features;
#elif defined(__aarch64__)
  return "neon";
#else
  return "unknown";
#endif
}

void describe_cpu(std::string& out) {
  const std::string model = proc_value("/proc/cpuinfo", "model name");
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int usable = ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
  line(out, "cpu", format("{}; {}", model.empty() ? "unnamed" : model, cpu_features()));
  line(out, "threads", format("{} of {} processors may be used", usable, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

std::string limit_text(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit;
  if (::getrlimit(resource, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

void describe_memory(std::string& out) {
  line(out, "memory",
       format("{}, {} available", gigabytes(meminfo_bytes("MemTotal")), gigabytes(meminfo_bytes("MemAvailable"))));
  std::string mappings = "unknown";
  std::ifstream("/proc/sys/vm/max_map_count") >> mappings;
  line(out, "limits",
       format("open files {}, locked memory {}, mappings {}", limit_text(RLIMIT_NOFILE), limit_text(RLIMIT_MEMLOCK),
              mappings));
  if (fences_on()) line(out, "fences", "on (ONELANE_FENCE): slower, every overrun is a fault");
}

std::string cuda_version(int version) { return format("{}.{}", version / 1000, version % 1000 / 10); }

void describe_gpus(std::string& out, const onelane_plugin_probe& probe) {
  const std::string driver = probe.driver_version == 0 ? "none" : "CUDA " + cuda_version(probe.driver_version);
  line(out, "driver", format("{}; the plugin is of CUDA {}", driver, cuda_version(probe.runtime_version)));
  for (int i = 0; i < probe.gpu_count; ++i) {
    const onelane_plugin_gpu& gpu = probe.gpus[i];
    line(out, "gpu",
         format("{}: {}, compute capability {}.{}, {} multiprocessors, {}{}", i, gpu.name, gpu.arch / 10, gpu.arch % 10,
                gpu.processors, gigabytes(static_cast<double>(gpu.memory_bytes)),
                gpu.usable != 0 ? "" : format("; cannot be used: {}", gpu.reason)));
  }
  if (probe.reason[0] != '\0') line(out, "gpu", format("none to run on: {}", probe.reason));
}

}  // namespace

Diagnosis diagnose(const DoctorOptions& options) {
  Diagnosis diagnosis;
  std::string& out = diagnosis.text;
  line(out, "onelane", format("{}, build {}", options.version, build_id()));
  describe_cpu(out);
  describe_memory(out);
  const auto plugin = load_plugin(options.plugin_folders);
  if (!plugin) {
    diagnosis.healthy = plugin.error().code == ErrorCode::kNotFound;
    line(out, "plugin", format("{}: {}", diagnosis.healthy ? "none" : "refused", plugin.error().message));
    return diagnosis;
  }
  line(out, "plugin", format("{}, for {}", plugin->path, plugin->table->architectures));
  onelane_plugin_probe probe;
  plugin->table->probe(&probe);
  describe_gpus(out, probe);
  return diagnosis;
}

int run_doctor(const DoctorOptions& options) {
  const Diagnosis diagnosis = diagnose(options);
  std::fwrite(diagnosis.text.data(), 1, diagnosis.text.size(), stdout);
  return diagnosis.healthy ? 0 : 1;
}

}  // namespace onelane
