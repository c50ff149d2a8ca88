// The stages of the model on a GPU (kernels/kernels.h), as the plugin hands them out.
#pragma once

#include <string>

#include "kernels/kernels.h"

namespace onelane::cuda {

// On GPU number `device`, with a stream of its own. Null, and why, when it cannot be.
Kernels* make_kernels(int device, std::string& reason);

}  // namespace onelane::cuda
