// Barriers in shared memory that who arrives does not wait at, one instruction a function. What is not said to be
// Hopper's, every device has.
#pragma once

#include <cstdint>

namespace onelane::ptx {

// For this block's threads when they have met; for others of a cluster, on Hopper, when the clusters' have.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and makes it wait for so many bytes too. Hopper.
__device__ __forceinline__ void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// When this thread's asynchronous copies so far are done; one of the arrivals that the barrier was made for.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Until the phase of `parity` is over: 1 of a barrier that has had none. Hopper.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// The same where nothing is expected that other blocks' threads wrote: it leaves the first-level cache as it is.
__device__ __forceinline__ void mbarrier_wait_in_block(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
#define ONELANE_WAIT "try_wait"
#else
#define ONELANE_WAIT "test_wait"
#endif
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier." ONELANE_WAIT
      ".parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#undef ONELANE_WAIT
}

}  // namespace onelane::ptx
