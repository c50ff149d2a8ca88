// See src/cuda/ptx/cluster.h.
#pragma once

#include <cuda_runtime.h>

#include "cuda/ptx/mbarrier.h"

namespace onelane::ptx {

inline uint32_t shared_address(const void* p) { return emulator::shared_address(p); }
inline int cluster_index() { return emulator::cluster_index(); }
inline int block_rank() { return emulator::block_rank(); }
inline void cluster_arrive() { emulator::arrive_cluster(); }
inline void cluster_wait() { emulator::wait_cluster(); }
inline void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}
inline uint32_t in_block(uint32_t address, int rank) { return emulator::address_in_block(address, rank); }

inline uint32_t load_in_block(uint32_t address) { return emulator::shared<uint32_t>(address); }
inline void add_in_block(uint32_t address, uint32_t v) { emulator::shared<uint32_t>(address) += v; }
template <class T>
void store_in_block(uint32_t address, T v) {
  emulator::shared<T>(address) = v;
}
template <class T>
void store_async(uint32_t address, T v, uint32_t barrier) {
  emulator::store_later(address, &v, sizeof(v), barrier);
}
inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  emulator::copy_bulk_later(to, from, bytes, barrier);
}

}  // namespace onelane::ptx
