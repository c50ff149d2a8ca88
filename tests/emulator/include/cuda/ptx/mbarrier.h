// See src/cuda/ptx/mbarrier.h.
#pragma once

#include <cuda_runtime.h>

namespace onelane::ptx {

inline void mbarrier_init(uint32_t barrier, int arrivals) { emulator::mbarrier_init(barrier, arrivals); }
inline void mbarrier_expect(uint32_t barrier, uint32_t bytes) { emulator::mbarrier_arrive(barrier, bytes); }
inline void mbarrier_arrive(uint32_t barrier) { emulator::mbarrier_arrive(barrier, 0); }
inline void mbarrier_arrive_after_copies(uint32_t barrier) { emulator::arrive_after_copies(barrier); }
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) { emulator::mbarrier_wait(barrier, parity); }
inline void mbarrier_wait_in_block(uint32_t barrier, uint32_t parity) { emulator::mbarrier_wait(barrier, parity); }

}  // namespace onelane::ptx
