#include "base/thread_team.h"

#include <chrono>
#include <numeric>

#include <gtest/gtest.h>

namespace onelane {
namespace {

TEST(ThreadTeam, CoversEveryIndexOnceWhateverTheSizes) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadTeam team(threads);
    EXPECT_EQ(team.size(), threads);
    for (const int64_t count : {0, 1, 2, 5, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64}) {
        std::vector<int> hits(static_cast<size_t>(count), 0);
        team.run(count, grain, [&](int64_t begin, int64_t end) {
          EXPECT_EQ(begin % grain, 0);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), int64_t{0}), count);
        for (const int hit : hits) EXPECT_EQ(hit, 1);
      }
    }
  }
}

TEST(ThreadTeam, WakesWorkersThatFellAsleep) {
  ThreadTeam team(2);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 200; ++round) {
    if (round % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    team.run(10, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  }
  EXPECT_EQ(sum.load(), 2000);
}

}  // namespace
}  // namespace onelane
