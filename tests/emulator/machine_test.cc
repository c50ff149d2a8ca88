#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/ptx/cluster.h"
#include "cuda/ptx/memory.h"
#include "cuda/ptx/wgmma.h"

namespace onelane::emulator {
namespace {

constexpr size_t kShared = 4096;

void on_machine(int threads, const std::function<void()>& kernel, int blocks = 1, int cluster = 1) {
  run({.grid = dim3(static_cast<unsigned>(blocks)),
       .block = dim3(static_cast<unsigned>(threads)),
       .cluster = cluster,
       .shared_bytes = kShared},
      kernel);
}

TEST(Emulator, LanesTrade) {
  std::vector<int> sums(96);
  on_machine(96, [&] {
    int v = static_cast<int>(threadIdx.x);
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(kAll, v, distance);
    sums[threadIdx.x] = v;
  });
  for (int i = 0; i < 96; ++i) EXPECT_EQ(sums[static_cast<size_t>(i)], 32 * (i / 32 * 32) + 496);
}

TEST(Emulator, ThreadsMeetAtABarrierThoughSomeHaveEnded) {
  int seen = 0;
  on_machine(128, [&] {
    if (threadIdx.x >= 100) return;
    auto* counts = reinterpret_cast<int*>(dynamic_shared());
    counts[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < 100; ++i) seen += counts[i];
    }
  });
  EXPECT_EQ(seen, 100);
}

TEST(Emulator, BlocksOfAClusterWriteIntoEachOthersMemory) {
  std::array<float, 4> got{};
  on_machine(
      32,
      [&] {
        auto* own = reinterpret_cast<float*>(dynamic_shared());
        const int rank = ptx::block_rank();
        ptx::cluster_barrier();
        if (threadIdx.x == 0)
          ptx::store_in_block(ptx::in_block(ptx::shared_address(own), (rank + 1) % 4), static_cast<float>(rank));
        ptx::cluster_barrier();
        if (threadIdx.x == 0) got[static_cast<size_t>(rank)] = *own;
      },
      4, 4);
  EXPECT_EQ(got, (std::array<float, 4>{3, 0, 1, 2}));
}

TEST(Emulator, AWarpgroupMultipliesSwizzledMatrices) {
  // B[n, k] = n where k is 0: D[row, n] = A[row, 0] n, and A[row, 0] is row.
  std::vector<float> d(64 * 8);
  on_machine(128, [&] {
    const auto bf16 = [](int v) { return uint32_t{float_to_bf16(static_cast<float>(v))}; };
    if (threadIdx.x == 0) {
      std::memset(dynamic_shared(), 0, kShared);
      for (int n = 0; n < 8; ++n) {
        *reinterpret_cast<uint16_t*>(dynamic_shared() + ((n * 128) ^ (n * 16))) = static_cast<uint16_t>(bf16(n));
      }
    }
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / 32, g = static_cast<int>(threadIdx.x) % 32 / 4,
              t = static_cast<int>(threadIdx.x) % 4;
    const int row = 16 * warp + g;
    const uint32_t a[4] = {t == 0 ? bf16(row) : 0, t == 0 ? bf16(row + 8) : 0, 0, 0};
    float of[4] = {};
    multiply<low_bf16, high_bf16, 8, true, true>(of, a, {}, {ptx::swizzled_matrix(0)}, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    for (int i = 0; i < 4; ++i) d[static_cast<size_t>((row + 8 * (i / 2)) * 8 + 2 * t + i % 2)] = of[i];
  });
  for (int row = 0; row < 64; ++row) {
    for (int n = 0; n < 8; ++n) EXPECT_EQ(d[static_cast<size_t>(row * 8 + n)], static_cast<float>(row * n));
  }
}

using EmulatorDeathTest = ::testing::Test;

TEST(EmulatorDeathTest, SaysWhoWaitsForWhatNeverComes) {
  EXPECT_DEATH(on_machine(64, [] { ptx::named_barrier(1, threadIdx.x < 32 ? 64 : 96); }),
               "32 of warp 1 of block 0: its block");
  EXPECT_DEATH(on_machine(32,
                          [] {
                            if (threadIdx.x == 0) ptx::mbarrier_init(0, 33);
                            __syncwarp();
                            ptx::mbarrier_arrive(0);
                            ptx::mbarrier_wait(0, 0);
                          }),
               "32 of warp 0 of block 0: a barrier in shared memory");
}

TEST(EmulatorDeathTest, RefusesWhatIsOutsideOfSharedMemory) {
  EXPECT_DEATH(on_machine(1, [] { ptx::load_shared(kShared); }), "4 bytes at 4096 of shared memory of 4096");
  EXPECT_DEATH(on_machine(1, [] { ptx::load_shared(2); }), "4 bytes of shared memory at 0x2");
  EXPECT_DEATH(on_machine(1, [] { ptx::mbarrier_arrive(8); }), "0x8 that was not initialised");
}

TEST(EmulatorDeathTest, RefusesLanesThatDisagree) {
  EXPECT_DEATH(on_machine(32,
                          [] {
                            if (threadIdx.x < 16) {
                              __syncwarp();
                            } else {
                              __any_sync(kAll, true);
                            }
                          }),
               "different instructions");
  EXPECT_DEATH(on_machine(32, [] { __syncwarp(0xffff); }), "not in its mask");
}

}  // namespace
}  // namespace onelane::emulator
