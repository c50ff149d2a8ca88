#include "base/thread_team.h"

#include <array>
#include <chrono>
#include <numeric>

#include <gtest/gtest.h>

namespace onelane {
namespace {

TEST(ThreadTeam, RunsEveryShareOnce) {
  for (const int threads : {1, 2, 3, 16}) {
    ThreadTeam team(threads);
    ASSERT_EQ(team.size(), threads);
    std::vector<int> runs(static_cast<size_t>(threads));
    for (int job = 1; job <= 5000; ++job) {
      team.run([&](int share) { ++runs[static_cast<size_t>(share)]; });
      for (const int count : runs) ASSERT_EQ(count, job) << threads << " threads";
    }
  }
}

TEST(ThreadTeam, SeesWhatTheCallerWroteAndShowsWhatSharesWrote) {
  ThreadTeam team(4);
  std::array<int, 4> values{};
  for (int job = 0; job < 5000; ++job) {
    int expected = 0;
    for (int i = 0; i < 4; ++i) expected += values[static_cast<size_t>(i)] = job * 7 + i;
    std::array<int, 4> doubled{};
    team.run([&](int share) { doubled[static_cast<size_t>(share)] = 2 * values[static_cast<size_t>(share)]; });
    ASSERT_EQ(std::accumulate(doubled.begin(), doubled.end(), 0), 2 * expected);
  }
}

TEST(ThreadTeam, WakesThreadsThatWentToSleep) {
  ThreadTeam team(3);
  std::array<int, 3> runs{};
  for (int job = 1; job <= 5; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    team.run([&](int share) { ++runs[static_cast<size_t>(share)]; });
    for (const int count : runs) EXPECT_EQ(count, job);
  }
}

TEST(ThreadTeam, EndsWhetherItsThreadsSleepOrWait) {
  for (int i = 0; i < 20; ++i) {
    ThreadTeam team(4);
    if (i % 2 == 0) team.run([](int) {});
    if (i % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// The caller may have taken all shares itself, so threads may be on their way to a job that is over when the end comes.
TEST(ThreadTeam, EndsRightAfterAJob) {
  for (int i = 0; i < 20000; ++i) {
    ThreadTeam team(4);
    team.run([](int) {});
  }
}

}  // namespace
}  // namespace onelane
