// Finding and loading the CUDA plugin. The same program runs with or without it, and with or without a driver.
//
// A plugin that is found but does not fit (another build, another interface version) is refused, not passed over: it is
// what the user installed. What was loaded stays loaded until the process ends.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "device/plugin_interface.h"

namespace onelane {

struct Plugin {
  std::string path;
  const onelane_plugin_table* table = nullptr;
};

// Where libonelane_cuda.so is looked for: beside the executable, in the library folder beside its own, and in
// $ONELANE_PLUGIN_DIR.
std::vector<std::string> plugin_folders();

// The build id that a plugin must have.
const char* build_id();

// Loads the plugin from the first of `folders` that has one. kNotFound: none has; kUnsupported: it does not fit;
// kCorrupt: it cannot be loaded or is no plugin. The message names the file.
Result<Plugin> load_plugin(const std::vector<std::string>& folders);

}  // namespace onelane
