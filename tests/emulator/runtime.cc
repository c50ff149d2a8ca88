// The CUDA runtime on the emulator: what src/cuda calls of it. Work is done where it is asked for, so streams are
// always idle; while one is captured its work, and that of streams that wait for it, is written down for the graph
// instead.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "machine.h"

namespace {

struct Node {
  bool kernel;
  std::function<void()> work;
};

std::recursive_mutex mutex;  // one kernel at a time

// Fewer than an H200 has: blocks that stay and take turns are dear here.
int processors() {
  const char* text = std::getenv("ONELANE_EMULATOR_PROCESSORS");
  return text == nullptr ? 16 : std::max(1, std::atoi(text));
}
constexpr size_t kMemory = size_t{16} << 30;

// Allocated through the interface, with its size; what is left of kMemory is free.
std::map<void*, size_t> allocated;
size_t allocated_bytes = 0;

cudaError_t allocate(void** data, size_t bytes) {
  const std::lock_guard lock(mutex);
  *data = allocated_bytes + bytes > kMemory ? nullptr : std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  allocated[*data] = bytes;
  allocated_bytes += bytes;
  return cudaSuccess;
}
cudaError_t release(void* data) {
  const std::lock_guard lock(mutex);
  if (data == nullptr) return cudaSuccess;
  const auto found = allocated.find(data);
  if (found == allocated.end()) return cudaErrorInvalidValue;
  allocated_bytes -= found->second;
  allocated.erase(found);
  std::free(data);
  return cudaSuccess;
}

}  // namespace

struct CUgraph_st {
  std::vector<Node> nodes;
};
struct CUgraphExec_st : CUgraph_st {};
struct CUstream_st {
  CUgraph_st* captured = nullptr;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point at;
  CUgraph_st* captured = nullptr;  // it was recorded in this one
};

namespace {

cudaError_t enqueue(cudaStream_t stream, bool kernel, std::function<void()> work) {
  const std::lock_guard lock(mutex);
  if (stream != nullptr && stream->captured != nullptr) {
    stream->captured->nodes.push_back({kernel, std::move(work)});
  } else {
    work();
  }
  return cudaSuccess;
}

}  // namespace

namespace onelane::emulator {

cudaError_t enqueue(const cudaLaunchConfig_t& config, std::function<void()> kernel) {
  Launch launch = {
      .grid = config.gridDim, .block = config.blockDim, .cluster = 1, .shared_bytes = config.dynamicSmemBytes};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) {
      launch.cluster = static_cast<int>(config.attrs[i].val.clusterDim.x);
    }
  }
  const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
  if (threads == 0 || threads > 1024 || launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0) {
    return cudaErrorInvalidConfiguration;
  }
  if (launch.shared_bytes > kMostShared || launch.cluster > 8) return cudaErrorInvalidValue;
  return ::enqueue(config.stream, true, [launch, work = std::move(kernel)] { run(launch, work); });
}

}  // namespace onelane::emulator

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = processors();
  properties->totalGlobalMem = kMemory;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = processors();
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(onelane::emulator::kMostShared);
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t status) { return status == cudaSuccess ? "cudaSuccess" : "cudaError"; }
const char* cudaGetErrorString(cudaError_t status) {
  static thread_local std::string text;
  text = "emulated error " + std::to_string(static_cast<int>(status));
  return text.c_str();
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

cudaError_t cudaMalloc(void** data, size_t bytes) { return allocate(data, bytes); }
cudaError_t cudaFree(void* data) { return release(data); }
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) { return allocate(data, bytes); }
cudaError_t cudaFreeHost(void* data) { return release(data); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(mutex);
  *free = kMemory - allocated_bytes;
  *total = kMemory;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, false, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, false, [=] { std::memset(to, byte, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return stream->captured == nullptr ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream->captured == nullptr ? cudaStreamCaptureStatusNone : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->captured = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->captured, nullptr);
  return cudaSuccess;
}
// A stream that begins to wait for a captured one is captured, until it waits for another or that capture has ended.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (stream->captured == nullptr || event->captured != nullptr) stream->captured = event->captured;
  return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                unsigned) {
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  event->captured = flags == cudaEventRecordExternal ? nullptr : stream->captured;
  if (event->captured != nullptr) return cudaSuccess;
  return enqueue(stream, false, [event] { event->at = std::chrono::steady_clock::now(); });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  *count = graph->nodes.size();
  for (size_t i = 0; nodes != nullptr && i < *count; ++i)
    nodes[i] = reinterpret_cast<cudaGraphNode_t>(&graph->nodes[i]);
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = reinterpret_cast<const Node*>(node)->kernel ? cudaGraphNodeTypeKernel : cudaGraphNodeTypeMemcpy;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Node& node : exec->nodes) enqueue(stream, node.kernel, node.work);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  const bool fits = attribute != cudaFuncAttributeMaxDynamicSharedMemorySize ||
                    value <= static_cast<int>(onelane::emulator::kMostShared);
  return fits ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* config) {
  *clusters = processors() / static_cast<int>(config->attrs[0].val.clusterDim.x);
  return cudaSuccess;
}

}  // extern "C"
