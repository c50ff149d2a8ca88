// CUDA C++ for the host's compiler, on the emulator: the qualifiers, the built-in variables and functions that src/cuda
// uses, and launches. The rest of the runtime's interface is that of NVIDIA's own header.
#pragma once

#include <bit>
#include <cmath>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include "machine.h"

#define __CUDA_ARCH__ 900
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __host__
#define __host__
#undef __forceinline__
#define __forceinline__ inline
// Blocks that run at once have no variables of this kind.
#undef __shared__
#define __shared__ static

using std::isfinite;
using std::isinf;
using std::isnan;

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  return y < x ? y : x;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  return x < y ? y : x;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __clz(uint32_t x) { return std::countl_zero(x); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }
inline uint32_t __vmaxu2(uint32_t a, uint32_t b) { return max(a & 0xffff, b & 0xffff) | max(a >> 16, b >> 16) << 16; }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> (4 * i) & 15;
    uint32_t byte = static_cast<uint32_t>(both >> (nibble & 7) * 8) & 0xff;
    if ((nibble & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    out |= byte << (8 * i);
  }
  return out;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline size_t __cvta_generic_to_shared(const void* p) { return onelane::emulator::shared_address(p); }

// One thread runs at a time.
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  return std::exchange(*p, *p + v);
}
template <class T>
T atomicSub(T* p, std::type_identity_t<T> v) {
  return std::exchange(*p, *p - v);
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> v) {
  return std::exchange(*p, min(*p, v));
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v) {
  return std::exchange(*p, max(*p, v));
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> v) {
  return std::exchange(*p, *p | v);
}

inline void __syncthreads() { onelane::emulator::meet_block(0, 0); }
inline void __syncwarp(uint32_t mask = onelane::emulator::kAll) {
  onelane::emulator::meet_warp(mask, nullptr, nullptr);
}

namespace onelane::emulator {

// Each lane gets what `source` of its number says.
template <class T>
struct Shuffled {
  T value;
  int source;
};
template <class T>
T shuffle(uint32_t mask, T value, int source) {
  Shuffled<T> mine = {value, source};
  meet_warp(mask, mine, [](Shuffled<T>* const* lanes) {
    T values[32] = {};
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) values[i] = lanes[i]->value;
    }
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) lanes[i]->value = values[lanes[i]->source];
    }
  });
  return mine.value;
}
inline int lane() { return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32; }

template <class T, class Function>
T reduce(uint32_t mask, T value, Function) {
  T mine = value;
  meet_warp(mask, mine, [](T* const* lanes) {
    bool begun = false;
    T all = {};
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] == nullptr) continue;
      all = begun ? Function()(all, *lanes[i]) : *lanes[i];
      begun = true;
    }
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) *lanes[i] = all;
    }
  });
  return mine;
}

}  // namespace onelane::emulator

template <class T>
T __shfl_sync(uint32_t mask, T v, int source, int width = 32) {
  const int lane = onelane::emulator::lane();
  return onelane::emulator::shuffle(mask, v, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T v, int other) {
  return onelane::emulator::shuffle(mask, v, onelane::emulator::lane() ^ other);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T v, int distance) {
  const int lane = onelane::emulator::lane();
  return onelane::emulator::shuffle(mask, v, lane >= distance ? lane - distance : lane);
}
template <class T>
T __reduce_add_sync(uint32_t mask, T v) {
  return onelane::emulator::reduce(mask, v, [](T a, T b) { return static_cast<T>(a + b); });
}
template <class T>
T __reduce_max_sync(uint32_t mask, T v) {
  return onelane::emulator::reduce(mask, v, [](T a, T b) { return max(a, b); });
}
template <class T>
T __reduce_min_sync(uint32_t mask, T v) {
  return onelane::emulator::reduce(mask, v, [](T a, T b) { return min(a, b); });
}
inline uint32_t __ballot_sync(uint32_t mask, bool v) {
  return onelane::emulator::reduce(mask, v ? 1u << onelane::emulator::lane() : 0u,
                                   [](uint32_t a, uint32_t b) { return a | b; });
}
inline bool __any_sync(uint32_t mask, bool v) { return __ballot_sync(mask, v) != 0; }
inline bool __all_sync(uint32_t mask, bool v) { return __ballot_sync(mask, !v) == 0; }

// Of the runtime's C++ interface.
namespace onelane::emulator {
cudaError_t enqueue(const cudaLaunchConfig_t& config, std::function<void()> kernel);
}
template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  return onelane::emulator::enqueue(
      *config, [kernel, values = std::tuple<std::remove_cv_t<Params>...>(std::forward<Args>(args)...)] {
        std::apply(kernel, values);
      });
}
template <class... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... Params>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*kernel)(Params...), const cudaLaunchConfig_t* config) {
  return cudaOccupancyMaxActiveClusters(clusters, reinterpret_cast<const void*>(kernel), config);
}
