// What the stages' launchers share: the stream, the step on the device, scratch memory, the launch itself.
//
// Rules for every kernel behind a stage:
// - It is launched with launch(), may start before the kernel ahead of it has ended, and so calls
//   ptx::wait_for_previous_kernel() in every thread before it touches anything but weights, and before any return.
// - For the same reason nothing but weights is read by non-coherent loads (__ldg, ptx::load_stream): they may give what
//   lay there when the kernel started.
// - What is launched depends on counts and shapes alone, never on positions, lengths or values, so that a captured
// graph
//   fits every step of its row count. Bounds that grow with a sequence are read on the device.
// - The bits of a row's results depend on that row's inputs alone: not on the row count, the neighbours, or timing.
//   Sums are taken in an order fixed by the shape; no floating-point atomics.
// - A row's NaN stays in that row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "cuda/ptx/memory.h"
#include "kernels/kernels.h"

namespace onelane::cuda {

// Dies with the sentence: after a failed call the device is of no use to the process.
void check(cudaError_t status, const char* what);

// Scratch of a stage: memory from take() is the stage's until the next stage's first take(), which is safe because
// kernels run one after the other. Grows while nothing is captured; a graph is captured after a step of its size has
// run.
class Workspace {
 public:
  Workspace(cudaStream_t stream, HostCalls& calls) : stream_(stream), calls_(calls) {}
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void reset();
  template <class T>
  T* take(size_t count) {
    return reinterpret_cast<T*>(take_bytes(count * sizeof(T)));
  }
  size_t bytes() const { return size_; }
  int generation() const { return generation_; }  // changes when its memory does

 private:
  std::byte* take_bytes(size_t bytes);
  cudaStream_t stream_;
  HostCalls& calls_;
  std::byte* data_ = nullptr;
  size_t size_ = 0, used_ = 0;
  std::vector<std::byte*> outgrown_;
  int generation_ = 0;
};

// Cosines and sines of the rows' positions, made once a step for each table of frequencies that is asked for.
class RowAngles;

// What launch() keeps from one call to the next.
struct LaunchState {
  int64_t count = 0;
  bool apart = false;  // the next kernel waits for all before it to have ended, as if it were the first
};

struct Stage {
  cudaStream_t stream = nullptr;
  int processors = 0;  // multiprocessors
  int arch = 0;        // 10 * major + minor
  StepRows rows;       // its arrays on the device
  Workspace* workspace = nullptr;
  Workspace* pairs = nullptr;  // of experts in steps that are recorded: stays while other stages take scratch
  RowAngles* row_angles = nullptr;
  LaunchState* launches = nullptr;
  HostCalls* calls = nullptr;  // every call that allocates or waits is counted where it stands
  // Between what runs beside each other in a recorded step (lanes.h), null otherwise.
  cudaEvent_t reached = nullptr;  // recorded by reach()
  cudaEvent_t awaited = nullptr;  // waited for by await()

  // Others may go on with what there is up to here: project_qkv's low-rank queries and records, attend's lists.
  void reach() const;
  // What comes next needs what others make: index the compressor's keys, attention its lists.
  void await() const;

  // float [rows, 64]: 32 cosines, then 32 sines of a row's position.
  const float* angles(const RopeFrequencies& rope) const;
};

inline cudaLaunchAttribute cluster_of(int blocks) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return attribute;
}

// Shared memory of a kernel's blocks: belongs to the kernel on the current device, not to a launch.
template <class... Params>
void allow_shared(const char* name, void (*kernel)(Params...), size_t bytes) {
  if (bytes <= 48 * 1024) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), name);
}

// kernel<<<grid, block, shared_bytes>>>(args...) in clusters of so many blocks along x, with programmatic dependent
// launch where the device has it.
template <class... Params, class... Args>
void launch_clusters(const Stage& stage, const char* name, void (*kernel)(Params...), int cluster, dim3 grid,
                     dim3 block, size_t shared_bytes, Args&&... args) {
  allow_shared(name, kernel, shared_bytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stage.stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (stage.arch >= 90 && !stage.launches->apart) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) attributes[config.numAttrs++] = cluster_of(cluster);
  stage.launches->apart = false;
  ++stage.launches->count;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), name);
}
template <class... Params, class... Args>
void launch(const Stage& stage, const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            Args&&... args) {
  launch_clusters(stage, name, kernel, 1, grid, block, shared_bytes, std::forward<Args>(args)...);
}

// How many such clusters the current device has room for at once.
template <class... Params>
int clusters_at_once(const char* name, void (*kernel)(Params...), int cluster, dim3 block, size_t shared_bytes) {
  allow_shared(name, kernel, shared_bytes);
  cudaLaunchAttribute attribute = cluster_of(cluster);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), name);
  return clusters;
}

class RowAngles {
 public:
  RowAngles() = default;
  ~RowAngles();
  RowAngles(const RowAngles&) = delete;
  RowAngles& operator=(const RowAngles&) = delete;

  // A new step: what was made belongs to the one before.
  void begin();
  const float* get(const Stage& stage, const RopeFrequencies& rope);
  int generation() const { return generation_; }  // changes when its memory does

 private:
  struct Table {
    RopeFrequencies rope;
    float* angles = nullptr;  // [capacity, 64]
    int capacity = 0;
    bool current = false;
  };
  std::vector<Table> tables_;
  int generation_ = 0;
};

inline void Stage::reach() const {
  if (reached != nullptr) check(cudaEventRecord(reached, stream), "cudaEventRecord");
}
inline void Stage::await() const {
  if (awaited != nullptr) check(cudaStreamWaitEvent(stream, awaited), "cudaStreamWaitEvent");
}

inline const float* Stage::angles(const RopeFrequencies& rope) const { return row_angles->get(*this, rope); }

}  // namespace onelane::cuda
