// Plugins that are wrong in one way each, for plugin_test.cc. FAKE_* say how.
#include "device/plugin_interface.h"

#ifndef FAKE_VERSION
#define FAKE_VERSION ONELANE_PLUGIN_VERSION
#endif
#ifndef FAKE_SIZE
#define FAKE_SIZE sizeof(onelane_plugin_table)
#endif
#ifndef FAKE_BUILD_ID
#define FAKE_BUILD_ID ONELANE_BUILD_ID
#endif
#ifndef FAKE_SYMBOL
#define FAKE_SYMBOL onelane_cuda_plugin
#endif

namespace {

int32_t probe(onelane_plugin_probe* probe) {
  *probe = {};
  probe->gpu_count = 1;
  probe->gpus[0] = {.name = "A GPU of cardboard", .arch = 90, .processors = 132, .memory_bytes = 1, .usable = 1};
  return 1;
}

const onelane_plugin_table kTable = {.struct_size = FAKE_SIZE,
                                     .version = FAKE_VERSION,
                                     .build_id = FAKE_BUILD_ID,
                                     .architectures = "90a",
                                     .probe = probe};

}  // namespace

extern "C" __attribute__((visibility("default"))) const onelane_plugin_table* FAKE_SYMBOL() {
#ifdef FAKE_NULL
  return nullptr;
#else
  return &kTable;
#endif
}
