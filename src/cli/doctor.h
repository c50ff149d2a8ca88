// `onelane doctor`: what this machine offers the program, and what stands in the way of the rest.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace onelane {

struct DoctorOptions {
  std::string version;
  std::vector<std::string> plugin_folders;  // where libonelane_cuda.so is looked for
};

struct Diagnosis {
  std::string text;     // a line or a few per subject
  bool healthy = true;  // false: something is installed and does not work
};

// Processor, memory, limits, the CUDA plugin with its path or the loader's reason, the GPUs or the plugin's reason.
// A missing plugin, driver or GPU is no illness: everything runs on the CPU.
Diagnosis diagnose(const DoctorOptions& options);

// Prints the diagnosis. Returns the exit code: 0 when healthy, else 1.
int run_doctor(const DoctorOptions& options);

}  // namespace onelane
