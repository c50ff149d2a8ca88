// Tests on a GPU, where there is one: the CUDA plugin's kernels.
//
// Tests of stages run on every implementation there is. Those of what stands above them (model, cache, engine, api) run
// on one: the CPU's, or with ONELANE_TEST_BACKEND=cuda in the environment the first GPU's, or with
// ONELANE_TEST_BACKEND=deferred the CPU's made to work like a device's (deferred_kernels.h).
#pragma once

#include <memory>

#include "kernels/kernels.h"

namespace onelane::testing {

// Whether the plugin is there and finds a GPU. Without one, tests of stages on it are not made at all. With one, the
// buffers of this process are pinned host memory from the first call on.
bool has_gpu();

// For tests of stages: on GPU 0, every stage a step of its own, over pinned host memory.
std::unique_ptr<Kernels> make_gpu_kernels();

// On GPU 0, as they are.
std::unique_ptr<Kernels> make_device_kernels();

// For tests of what stands above stages. `threads` of the CPU's.
std::unique_ptr<Kernels> make_test_kernels(int threads);
// The same, but the CPU's are always made to work like a device's.
std::unique_ptr<Kernels> make_kernels_beside_host(int threads);
// Whom the models of these tests are loaded for (Model::load); null: the host.
Kernels* model_kernels();

}  // namespace onelane::testing
