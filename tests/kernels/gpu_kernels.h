// The CUDA plugin's kernels as the tests of the stages use them: every stage is a step of its own, over buffers that
// the host and the GPU share.
#pragma once

#include <memory>

#include "kernels/kernels.h"

namespace onelane::testing {

// Whether the plugin is there and finds a GPU. Without one, tests on it are not made at all.
bool has_gpu();

// On GPU 0. From the first call on, buffers of this process are pinned host memory.
std::unique_ptr<Kernels> make_gpu_kernels();

}  // namespace onelane::testing
