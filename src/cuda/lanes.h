// Lanes: stages of a layer that need not wait for each other run beside each other, where a step is recorded.
//
// compress and what project_qkv makes for it need the layer's input alone, index its own queries, which project_qkv has
// before the others, attend's lists the picks or the window records, and commit no more than those lists. So they run
// in lanes: streams that leave the step's where what they need is there, and that are joined by attend, or whatever
// stage comes.
// A kernel that waits for kernels of two streams starts early like any other: in a recording all of its dependencies
// are programmatic.
//
// Who may leave follows from the arguments: a stage runs in a lane if it reads arrays that the project_qkv just called
// wrote. Outside of a recording lanes are the step's own stream; where the step may be recorded they
// have scratch memory of their own all the same, so that a recording finds it grown.
#pragma once

#include "cuda/stage.h"

namespace onelane::cuda {

inline constexpr int kMostRecordedRows = 64;  // steps of more have much to do and come in all sizes

// One stream beside the step's.
class Lane {
 public:
  Lane(cudaStream_t main, HostCalls& calls);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Recordings begin and end while nobody uses the lane.
  void record(bool on);
  // The stage in this lane, behind `after` and with scratch of its own; outside of a recording behind all of `main`.
  Stage leave(const Stage& main, cudaEvent_t after);
  // Where the lane has come to.
  Stage go_on(const Stage& main);
  bool is_open() const { return open_; }
  // An event of all that the lane was asked for; it is closed by that.
  cudaEvent_t close();
  int generation() const { return workspace_.generation(); }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t end_ = nullptr;
  Workspace workspace_;
  LaunchState launches_;
  bool recording_ = false, has_left_ = false, open_ = false;
};

class Lanes {
 public:
  Lanes(cudaStream_t main, HostCalls& calls);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  void record(bool on);
  // How each stage is to be run, `main` being the step's stream with all before it.
  struct Project {
    Stage main, beside;
  };
  Project project_qkv(const Stage& main, const QkvArgs& args);
  Stage compress(const Stage& main, const CompressArgs& args);
  Stage index(const Stage& main, const IndexArgs& args);
  struct Attend {
    Stage lists, attention;
  };
  Attend attend(const Stage& main, const AttendArgs& args);
  Stage commit(const Stage& main, const CommitArgs& args);
  // `main` waits for all lanes.
  void join(const Stage& main);
  int generation() const { return compress_.generation() + index_.generation(); }

 private:
  // `main` waits for the lane, if anybody is in it.
  void join(const Stage& main, Lane& lane);

  bool recording_ = false;
  // Of the last project_qkv, null when a stage has come that has nothing to do with it; and of the attend after it.
  const void* pooled_ = nullptr;
  const bf16* index_queries_ = nullptr;
  const std::byte *records_ = nullptr, *listed_ = nullptr;
  Lane compress_, index_;
  cudaEvent_t input_ = nullptr, sides_ = nullptr, low_ = nullptr, lists_ = nullptr;
};

}  // namespace onelane::cuda
