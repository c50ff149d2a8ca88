#include "base/thread_team.h"

#include <algorithm>

#include <sched.h>

namespace onelane {
namespace {

// Long enough to bridge the gap between two stages of a step, short enough not to burn a core while nothing runs.
constexpr int kSpins = 20000;

int available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadTeam::ThreadTeam(int threads) {
  const int total = threads > 0 ? threads : available_processors();
  workers_.reserve(static_cast<size_t>(total - 1));
  for (int member = 1; member < total; ++member) workers_.emplace_back([this, member] { work(member); });
}

ThreadTeam::~ThreadTeam() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::dispatch(int64_t count, int64_t grain, Call call, void* context) {
  job_ = {call, context, count, std::max<int64_t>(1, grain)};
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  // seq_cst on both sides: either the worker sees the new generation before it sleeps, or we see the sleeper.
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    {
      const std::lock_guard lock(mutex_);
    }
    wake_.notify_all();
  }
  run_share(0);
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadTeam::run_share(int member) const {
  const int64_t members = size();
  const int64_t grains = (job_.count + job_.grain - 1) / job_.grain;
  const int64_t begin = std::min(job_.count, grains * member / members * job_.grain);
  const int64_t end = std::min(job_.count, grains * (member + 1) / members * job_.grain);
  if (begin < end) job_.call(job_.context, begin, end);
}

void ThreadTeam::work(int member) {
  uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_seq_cst) == seen) {
      if (++spins < kSpins) {
        relax();
        continue;
      }
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    ++seen;
    if (stopping_.load()) return;
    run_share(member);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace onelane
