// Blocks of a cluster: barriers between them and stores into each other's shared memory, one instruction a function.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.h"

namespace onelane::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Which cluster of the grid's first dimension, and which of its blocks.
__device__ __forceinline__ int cluster_index() {
  int v;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(v));
  return v;
}
__device__ __forceinline__ int block_rank() {
  int v;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(v));
  return v;
}

// All threads of all blocks arrive; wait returns when they have. Of what they wrote before, only barriers that were
// initialised are then sure to be seen.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// All threads of all blocks meet; what each wrote before, to any of the blocks, the others see.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  cluster_wait();
}

// The place of `address` (of this block's shared memory) in block `rank`.
__device__ __forceinline__ uint32_t in_block(uint32_t address, int rank) {
  uint32_t out;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(address), "r"(rank));
  return out;
}

// A plain load from, store into, and sum in any block of the cluster; the address from in_block.
__device__ __forceinline__ uint32_t load_in_block(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ void add_in_block(uint32_t address, uint32_t v) {
  asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void store_in_block(uint32_t address, uint2 v) {
  asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_in_block(uint32_t address, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
// Stores into any block of the cluster and counts the bytes on that block's barrier. Both addresses from in_block.
__device__ __forceinline__ void store_async(uint32_t address, float2 v, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
               "f"(v.x), "f"(v.y), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void store_async(uint32_t address, float4 v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}

// A copy of `bytes` (a multiple of 16, as both addresses are) from global memory, counted on the barrier.
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

}  // namespace onelane::ptx
