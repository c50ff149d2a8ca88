/* What the program and its CUDA plugin (libonelane_cuda.so) say to each other. C: no exceptions, and no memory that one
 * side allocates and the other frees. One C++ object crosses, a Kernels (kernels/kernels.h), whose header is part of
 * the build id.
 *
 * The plugin exports one symbol, onelane_cuda_plugin. Its table lives as long as the process: a plugin is never
 * unloaded. The program reads `struct_size`, `version` and `build_id` first, and nothing else unless all three are its
 * own.
 */
#pragma once

#include <onelane/attention.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONELANE_PLUGIN_VERSION 2
#define ONELANE_PLUGIN_FILE "libonelane_cuda.so"
#define ONELANE_PLUGIN_SYMBOL "onelane_cuda_plugin"
#define ONELANE_PLUGIN_MAX_DEVICES 16

typedef struct {
  char name[128];
  int32_t arch;       /* 10 * major + minor of the compute capability */
  int32_t processors; /* multiprocessors */
  int64_t memory_bytes;
  int32_t usable;   /* whether this build has code for it */
  char reason[256]; /* if not usable: why, as a sentence */
} onelane_plugin_gpu;

typedef struct {
  int32_t runtime_version; /* of the CUDA runtime inside, as CUDA writes it: 13000 is 13.0 */
  int32_t driver_version;  /* the newest CUDA that the driver speaks; 0: no driver */
  int32_t gpu_count;
  onelane_plugin_gpu gpus[ONELANE_PLUGIN_MAX_DEVICES];
  char reason[256]; /* if no GPU is usable: why, as a sentence; else empty */
} onelane_plugin_probe;

typedef struct {
  int32_t struct_size;       /* of this struct */
  int32_t version;           /* ONELANE_PLUGIN_VERSION */
  const char* build_id;      /* of the build it belongs to */
  const char* architectures; /* what it is compiled for: "90a 120a" */

  /* What there is to run on. Returns the number of usable GPUs. */
  int32_t (*probe)(onelane_plugin_probe* probe);

  /* As in onelane/attention.h. The message is that of the plugin's own copy of the library. */
  const char* (*attention_message)(void);
  int (*attention_describe)(onelane_attention_device* device);
  int (*attention_run)(const onelane_attention_plan* plan, const onelane_attention_args* args, void* stream);

  /* The stages of the model on GPU number `device`: an onelane::Kernels, deleted by whoever gets it. Null with a
   * sentence in `reason` (256 bytes) when it cannot be. */
  void* (*make_kernels)(int32_t device, char* reason);
} onelane_plugin_table;

typedef const onelane_plugin_table* (*onelane_plugin_entry)(void);

#ifdef __cplusplus
} /* extern "C" */
#endif
