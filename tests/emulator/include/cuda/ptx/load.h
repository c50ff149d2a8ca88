// See src/cuda/ptx/load.h.
#pragma once

#include <cuda_runtime.h>

namespace onelane::ptx {

template <class T>
T load_once_or_zero(const T* p, bool wanted) {
  return wanted ? *p : T{};
}

}  // namespace onelane::ptx
