// ThreadTeam: a fixed set of threads that run one static partition at a time.
//
// The CPU backend's only source of parallelism. Work is cut by index, never by who is free, and no result may depend on
// which thread computed it; so a run gives the same bits with 1 thread and with 64. Workers spin for a short while
// between jobs (a decode step issues hundreds of jobs a few microseconds apart) and then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace onelane {

class ThreadTeam {
 public:
  // `threads` counts the caller; 0 means every processor this process may run on.
  explicit ThreadTeam(int threads = 0);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) on every thread with its share of [0, count), shares being whole multiples of `grain` apart
  // from the last. Returns when all are done. One caller at a time; body must not throw or call run again.
  template <class Body>
  void run(int64_t count, int64_t grain, Body&& body) {
    if (count <= 0) return;
    if (workers_.empty() || count <= grain) return body(int64_t{0}, count);
    using Plain = std::remove_reference_t<Body>;
    dispatch(
        count, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<Plain*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* context, int64_t begin, int64_t end);
  struct Job {
    Call call = nullptr;
    void* context = nullptr;
    int64_t count = 0;
    int64_t grain = 1;
  };

  void dispatch(int64_t count, int64_t grain, Call call, void* context);
  void run_share(int member) const;
  void work(int member);

  Job job_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::vector<std::thread> workers_;
};

}  // namespace onelane
