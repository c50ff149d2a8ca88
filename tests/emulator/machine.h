// A GPU of fibers: runs the blocks of a CUDA kernel on the host, one cluster at a time, every thread a fiber that
// stops where its instruction waits for others. What an instruction does is in include/; here is what they need of the
// machine: who runs, who waits for whom, shared memory, and what goes on beside the threads.
//
// $ONELANE_EMULATOR says when copies and products that run beside the threads are done, and which thread is next:
//   eager   as soon as they are begun; threads in turns (what it does unless told)
//   lazy    when somebody waits for them, or nobody else can go on
//   N       lazy, threads in the random order of seed N
// A kernel whose threads wait for what never comes, that leaves its shared memory, or whose lanes disagree on what they
// do together ends the process with a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <cuda_runtime_api.h>

// Of the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace onelane::emulator {

inline constexpr uint32_t kAll = 0xffffffffu;

int cluster_index();  // in the grid
int block_rank();     // in the cluster

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

struct Launch {
  dim3 grid, block;
  int cluster;
  size_t shared_bytes;  // dynamic
};
inline constexpr size_t kMostShared = 227 * 1024;
// Returns when all blocks have ended.
void run(const Launch& launch, const std::function<void()>& kernel);

// Shared memory: the low 18 bits of an address are a place in the block's dynamic memory. Others have the rank of
// another block of the cluster, or are of a variable.
std::byte* dynamic_shared();
uint32_t shared_address(const void* p);
uint32_t address_in_block(uint32_t address, int rank);
// Of this thread's block unless the address says another; `bytes` from there have to exist, aligned to their number (16
// at most).
std::byte* shared(uint32_t address, size_t bytes);
template <class T>
T& shared(uint32_t address) {
  return *reinterpret_cast<T*>(shared(address, sizeof(T)));
}

// All lanes of `mask` come here; the last does `together` for all. It gets what each lane brought, null of those that
// have ended or are not in `mask`.
using Together = void (*)(void* const* brought);
void meet_warp(uint32_t mask, void* mine, Together together);
// The same for the four warps of a warpgroup.
void meet_warpgroup(void* mine, Together together);
template <class T, class Function>
void meet_warp(uint32_t mask, T& mine, Function) {
  meet_warp(mask, &mine, [](void* const* brought) { Function()(reinterpret_cast<T* const*>(brought)); });
}
template <class T, class Function>
void meet_warpgroup(T& mine, Function) {
  meet_warpgroup(&mine, [](void* const* brought) { Function()(reinterpret_cast<T* const*>(brought)); });
}

// Barriers of a block, 0 being that of __syncthreads; 0 threads: all that have not ended.
void meet_block(int barrier, int threads);
void arrive_cluster();
void wait_cluster();

// Barriers in shared memory.
void mbarrier_init(uint32_t barrier, int arrivals);
void mbarrier_arrive(uint32_t barrier, uint32_t expected_bytes);
void mbarrier_wait(uint32_t barrier, uint32_t parity);

// Copies of a thread: groups of them end in order.
void copy_later(uint32_t to, const void* from, size_t bytes);
void commit_copies();
void wait_for_copies(int pending);
void arrive_after_copies(uint32_t barrier);
// Copies that a barrier counts, of global memory or of `bytes` (16 at most) at hand.
void copy_bulk_later(uint32_t to, const void* from, size_t bytes, uint32_t barrier);
void store_later(uint32_t to, const void* value, size_t bytes, uint32_t barrier);

// Products of a warpgroup, begun by the last of its threads in meet_warpgroup.
void product_later(const std::function<void()>& product);
void commit_products();
void wait_for_products(int pending);

}  // namespace onelane::emulator
