// See src/cuda/ptx/cached_load.h: there are no caches here.
#pragma once

#include <cstring>

#include <cuda_runtime.h>

namespace onelane::ptx {

inline uint64_t evict_first() { return 0; }
inline uint64_t evict_normal() { return 0; }

template <int kWords>
void load_stream(uint32_t (&v)[kWords], const void* p, uint64_t) {
  std::memcpy(v, __builtin_assume_aligned(p, 4 * kWords), sizeof(v));
}

}  // namespace onelane::ptx
