// See src/cuda/ptx/memory.h.
#pragma once

#include <cstring>

#include <cuda_runtime.h>

#include "float16.h"

namespace onelane::ptx {

template <class T>
T load_stream(const T* p) {
  return *p;
}
inline uint32_t load_byte(const uint8_t* p) { return *p; }
template <class T>
T load_once(const T* p) {
  return *p;
}
inline uint32_t load_byte_once(const uint8_t* p) { return *p; }
inline void prefetch(const void*) {}

template <int kBytes = 16>
void copy_async(uint32_t to, const void* from) {
  emulator::copy_later(to, from, kBytes);
}
template <int kTo, int kFrom>
void copy_async_at(uint32_t to, const void* from) {
  copy_async(to + kTo, static_cast<const std::byte*>(from) + kFrom);
}
inline void copies_commit() { emulator::commit_copies(); }
template <int kPending = 0>
void copies_wait() {
  emulator::wait_for_copies(kPending);
}

#define ONELANE_DYNAMIC_SHARED(type, name) type* const name = reinterpret_cast<type*>(emulator::dynamic_shared())

inline uint32_t hold(uint32_t v) { return v; }
inline const void* hold_address(const void* of) { return of; }

inline void named_barrier(int id, int threads) { emulator::meet_block(id, threads); }
template <int kCount>
void take_registers() {}
template <int kCount>
void give_registers() {}
inline void fence_async_proxy() {}
inline void wait_for_previous_kernel() {}
inline void let_next_kernel_start() {}

template <class T>
void store_shared(uint32_t address, T v) {
  emulator::shared<T>(address) = v;
}
inline uint4 load_shared_four(uint32_t address) { return emulator::shared<uint4>(address); }
inline uint32_t load_shared(uint32_t address) { return emulator::shared<uint32_t>(address); }
inline uint2 load_shared_two(uint32_t address) { return emulator::shared<uint2>(address); }
inline float2 load_shared_floats(uint32_t address) { return emulator::shared<float2>(address); }

inline float exp2_approx(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }

inline uint32_t pack_bf16(float low, float high) {
  return emulator::nearest_bf16(low) | emulator::nearest_bf16(high) << 16;
}
inline uint32_t mul_bf16(uint32_t a, uint32_t b) {
  return pack_bf16(emulator::low_bf16(a) * emulator::low_bf16(b), emulator::high_bf16(a) * emulator::high_bf16(b));
}

inline uint32_t pack_e4m3(float low, float high) { return float_to_e4m3(low) | float_to_e4m3(high) << 8; }
inline void e4m3_to_f16(uint32_t bytes, uint32_t (&out)[2]) {
  const auto code = [&](int i) { return uint32_t{emulator::kF16OfE4m3[bytes >> (8 * i) & 0xff]}; };
  out[0] = code(0) | code(1) << 16;
  out[1] = code(2) | code(3) << 16;
}

}  // namespace onelane::ptx
