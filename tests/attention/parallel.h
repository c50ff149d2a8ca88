// Loops of the test programs over all processors. Not the engine's thread team: these programs also run where only a
// compiler and a driver are.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace onelane::attention_test {

// body(i) for i in [0, count), `grain` at a time, on every processor.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  const auto processors = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  const int64_t threads = std::min(processors, (count + grain - 1) / grain);
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t begin; (begin = next.fetch_add(grain)) < count;) {
      const int64_t end = std::min(count, begin + grain);
      for (int64_t i = begin; i < end; ++i) body(i);
    }
  };
  std::vector<std::thread> team;
  for (int64_t i = 1; i < threads; ++i) team.emplace_back(work);
  work();
  for (std::thread& thread : team) thread.join();
}

}  // namespace onelane::attention_test
