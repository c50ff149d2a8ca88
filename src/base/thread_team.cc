#include "base/thread_team.h"

#include <algorithm>

#include <sched.h>

namespace onelane {
namespace {

constexpr int kShareBits = 16;
constexpr uint64_t kShareMask = (uint64_t{1} << kShareBits) - 1;
constexpr int kMostThreads = 1024;

// Long enough to bridge the gap between two stages of a step, short enough not to burn a core while nothing runs.
constexpr int kIdleSpins = 20000;
// Shares are alike, so the others are nearly done when the caller is; a thread that is not running by then needs the
// processor more than the caller does.
constexpr int kJoinSpins = 2000;

int available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadTeam::ThreadTeam(int threads) {
  const int total = std::min(threads > 0 ? threads : available_processors(), kMostThreads);
  workers_.reserve(static_cast<size_t>(total - 1));
  for (int i = 1; i < total; ++i) workers_.emplace_back([this] { work(); });
}

ThreadTeam::~ThreadTeam() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
    ticket_.fetch_add(uint64_t{1} << kShareBits);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::dispatch(Call call, void* context) {
  call_ = call;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t number = (ticket_.load(std::memory_order_relaxed) >> kShareBits) + 1;
  // seq_cst on both sides: either the worker sees the new job before it sleeps, or we see the sleeper.
  ticket_.store(number << kShareBits | static_cast<uint64_t>(size()), std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    {
      const std::lock_guard lock(mutex_);
    }
    wake_.notify_all();
  }
  const int others = size() - take_shares(number);
  for (int spins = 0; done_.load(std::memory_order_acquire) != others; ++spins) {
    if (spins < kJoinSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

int ThreadTeam::take_shares(uint64_t number) {
  int taken = 0;
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (ticket >> kShareBits == number && (ticket & kShareMask) != 0) {
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    call_(context_, size() - static_cast<int>(ticket & kShareMask));
    ++taken;
    ticket = ticket_.load(std::memory_order_acquire);
  }
  return taken;
}

void ThreadTeam::work() {
  uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    const auto number = [&] { return ticket_.load(std::memory_order_seq_cst) >> kShareBits; };
    while (number() == seen) {
      if (++spins < kIdleSpins) {
        relax();
        continue;
      }
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return number() != seen; });
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    seen = number();  // before the flag: whoever has seen the last number sees the flag too
    if (stopping_.load()) return;
    const int taken = take_shares(seen);
    if (taken > 0) done_.fetch_add(taken, std::memory_order_release);
  }
}

}  // namespace onelane
