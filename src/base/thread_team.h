// ThreadTeam: the threads of the CPU kernels. Work is cut into shares by index alone; who takes which share is open.
//
// That openness is the point. A decode step is some seventy jobs of 5 to 50 us. Were share i bound to thread i, every
// job would wait for all threads, and on a machine that does anything else besides, one of them is often not running:
// the caller then idles for a whole time slice, per job. Here the caller takes what nobody else has begun, so a team
// that is kept from working costs little more than having none. No result depends on who computed it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace onelane {

class ThreadTeam {
 public:
  // `threads` counts the caller; 0 means every processor this process may run on.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(share) once for every share in [0, size()), on any thread; returns when all are done. One caller at a
  // time; body must not throw or call run again.
  template <class Body>
  void run(Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    dispatch([](void* context, int share) { (*static_cast<Plain*>(context))(share); },
             const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* context, int share);

  void dispatch(Call call, void* context);
  // Runs shares of job `number` until none is left to begin; returns how many.
  int take_shares(uint64_t number);
  void work();

  // Written by the caller before the ticket that announces them, and left alone until every share is done.
  Call call_ = nullptr;
  void* context_ = nullptr;
  // Number of the job above, shares not yet begun below: one compare-and-swap takes a share of a job that is still on,
  // and fails for a thread that comes late.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int> done_{0};  // shares finished by workers
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::vector<std::thread> workers_;
};

}  // namespace onelane
