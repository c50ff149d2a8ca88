#include "kernels/cpu/crew.h"

#include <array>
#include <chrono>
#include <numeric>

#include <gtest/gtest.h>

namespace onelane::cpu {
namespace {

TEST(Crew, RunsEveryShareOnce) {
  for (const int threads : {1, 2, 3, 16}) {
    Crew crew(threads);
    ASSERT_EQ(crew.size(), threads);
    std::vector<int> runs(static_cast<size_t>(threads));
    for (int job = 1; job <= 5000; ++job) {
      crew.run([&](int share) { ++runs[static_cast<size_t>(share)]; });
      for (const int count : runs) ASSERT_EQ(count, job) << threads << " threads";
    }
  }
}

TEST(Crew, SeesWhatTheCallerWroteAndShowsWhatSharesWrote) {
  Crew crew(4);
  std::array<int, 4> values{};
  for (int job = 0; job < 5000; ++job) {
    int expected = 0;
    for (int i = 0; i < 4; ++i) expected += values[static_cast<size_t>(i)] = job * 7 + i;
    std::array<int, 4> doubled{};
    crew.run([&](int share) { doubled[static_cast<size_t>(share)] = 2 * values[static_cast<size_t>(share)]; });
    ASSERT_EQ(std::accumulate(doubled.begin(), doubled.end(), 0), 2 * expected);
  }
}

TEST(Crew, WakesThreadsThatWentToSleep) {
  Crew crew(3);
  std::array<int, 3> runs{};
  for (int job = 1; job <= 5; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    crew.run([&](int share) { ++runs[static_cast<size_t>(share)]; });
    for (const int count : runs) EXPECT_EQ(count, job);
  }
}

TEST(Crew, EndsWhetherItsThreadsSleepOrWait) {
  for (int i = 0; i < 20; ++i) {
    Crew crew(4);
    if (i % 2 == 0) crew.run([](int) {});
    if (i % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace
}  // namespace onelane::cpu
