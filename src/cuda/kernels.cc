// CudaKernels: the stages on one GPU, behind the contract of kernels.h. Stages are enqueued on one stream and return at
// once; what the host gives them (rows, expert tables) is copied to the device here, and nowhere else.
#include "cuda/kernels.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "cuda/stages.h"

namespace onelane::cuda {
namespace {

class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(cudaStream_t stream) : stream_(stream) {}
  std::byte* allocate(size_t bytes) override {
    void* data = nullptr;
    if (cudaMalloc(&data, bytes) == cudaSuccess) return static_cast<std::byte*>(data);
    cudaGetLastError();
    return nullptr;
  }
  void release(std::byte* data) override { cudaFree(data); }
  void copy(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  void fill(void* to, int byte, size_t bytes) override {
    check(cudaMemsetAsync(to, byte, bytes, stream_), "cudaMemsetAsync");
  }
  int64_t available() const override {
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : -1;
  }
  bool on_host() const override { return false; }

 private:
  cudaStream_t stream_;
};

// Pinned: both sides follow the same pointers.
class SharedMemory final : public Memory {
 public:
  std::byte* allocate(size_t bytes) override {
    void* data = nullptr;
    if (cudaHostAlloc(&data, bytes, cudaHostAllocPortable) == cudaSuccess) return static_cast<std::byte*>(data);
    cudaGetLastError();
    return nullptr;
  }
  void release(std::byte* data) override { cudaFreeHost(data); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void fill(void* to, int byte, size_t bytes) override { std::memset(to, byte, bytes); }
  int64_t available() const override { return -1; }
  bool on_host() const override { return true; }
};

// A host array's copy on the device, in memory that grows and stays.
class Mirror {
 public:
  ~Mirror() { cudaFree(data_); }
  template <class T>
  const T* set(const T* from, size_t count, cudaStream_t stream) {
    const size_t bytes = count * sizeof(T);
    if (bytes > size_) {
      check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      check(cudaFree(data_), "cudaFree");
      size_ = 2 * bytes;
      check(cudaMalloc(&data_, size_), "cudaMalloc");
    }
    // From pageable memory: the driver has read `from` when the call returns.
    if (bytes > 0) check(cudaMemcpyAsync(data_, from, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    return static_cast<const T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

ExpertPointers pointers_of(const ExpertWeights& expert) {
  return {expert.w1.data, expert.w2.data, expert.w3.data, expert.w1.scale, expert.w2.scale, expert.w3.scale};
}

class CudaKernels final : public Kernels {
 public:
  CudaKernels(int device, cudaStream_t stream, const cudaDeviceProp& properties)
      : device_(device), stream_(stream), memory_(stream), workspace_(stream) {
    stage_ = {.stream = stream,
              .processors = properties.multiProcessorCount,
              .arch = 10 * properties.major + properties.minor,
              .workspace = &workspace_,
              .row_angles = &row_angles_};
  }
  ~CudaKernels() override {
    cudaStreamSynchronize(stream_);
    cudaFree(confidence_);
    cudaStreamDestroy(stream_);
  }

  std::string_view name() const override { return "cuda"; }
  Memory& memory() override { return memory_; }
  Memory& shared_memory() override { return shared_memory_; }

  void begin(const StepRows& rows) override {
    use_device();
    stage_.rows = rows;
    stage_.rows.token = tokens_.set(rows.token, rows.count, stream_);
    stage_.rows.position = positions_.set(rows.position, rows.count, stream_);
    stage_.rows.run_of = run_of_.set(rows.run_of, rows.count, stream_);
    stage_.rows.runs = runs_.set(rows.runs, rows.run_count, stream_);
    int slots = 0;
    for (int i = 0; i < rows.run_count; ++i) slots = slots > rows.runs[i].slot + 1 ? slots : rows.runs[i].slot + 1;
    const size_t pages = rows.page_table == nullptr ? 0 : static_cast<size_t>(slots) * rows.pages_per_slot;
    stage_.rows.page_table = pages_.set(rows.page_table, pages, stream_);
    row_angles_.begin();
    begun_ = rows.token;
  }
  void finish() override {
    use_device();
    check(cudaStreamSynchronize(stream_), "a kernel of this step");
  }

  void embed(const StepRows& rows, const EmbedArgs& args) override { cuda::embed(stage(rows), args); }
  void mix_streams(const StepRows& rows, const MixArgs& args) override { cuda::mix_streams(stage(rows), args); }
  void expand_streams(const StepRows& rows, const ExpandArgs& args) override {
    cuda::expand_streams(stage(rows), args);
  }
  void tap(const StepRows& rows, const TapArgs& args) override { cuda::tap(stage(rows), args); }
  void project_qkv(const StepRows& rows, const QkvArgs& args) override { cuda::project_qkv(stage(rows), args); }
  void compress(const StepRows& rows, const CompressArgs& args) override { cuda::compress(stage(rows), args); }
  void index(const StepRows& rows, const IndexArgs& args) override { cuda::index(stage(rows), args); }
  void attend(const StepRows& rows, const AttendArgs& args) override { cuda::attend(stage(rows), args); }
  void commit(const StepRows& rows, const CommitArgs& args) override { cuda::commit(stage(rows), args); }
  void project_out(const StepRows& rows, const ProjectOutArgs& args) override { cuda::project_out(stage(rows), args); }
  void route(const StepRows& rows, const RouteArgs& args) override { cuda::route(stage(rows), args); }
  void experts(const StepRows& rows, const ExpertsArgs& args) override {
    cuda::experts(stage(rows), args, table_of(args.experts, args.expert_count));
  }
  void engram(const StepRows& rows, const EngramArgs& args) override { cuda::engram(stage(rows), args); }
  void head(const StepRows& rows, const HeadArgs& args) override {
    for (int i = 0; i < args.count; ++i) {
      ONELANE_CHECK(args.rows[i] >= 0 && args.rows[i] < rows.count, "the head reads a row that is not in the step");
    }
    cuda::head(stage(rows), args, head_rows_.set(args.rows, args.count, stream_));
  }
  void main_input(const StepRows& rows, const MainInputArgs& args) override { cuda::main_input(stage(rows), args); }
  void markov(const MarkovArgs& args) override {
    use_device();
    workspace_.reset();
    if (args.confidence_out != nullptr && confidence_ == nullptr) {
      check(cudaMalloc(reinterpret_cast<void**>(&confidence_), sizeof(float)), "cudaMalloc");
    }
    cuda::markov(stage_, args, args.confidence_out != nullptr ? confidence_ : nullptr);
    if (args.confidence_out != nullptr) memory_.copy(args.confidence_out, confidence_, sizeof(float));
  }

 private:
  struct ExpertTable {
    std::vector<ExpertPointers> pointers;
    Mirror mirror;
    const ExpertPointers* on_device = nullptr;
  };

  void use_device() { check(cudaSetDevice(device_), "cudaSetDevice"); }

  const Stage& stage(const StepRows& rows) {
    ONELANE_CHECK(rows.token == begun_ && rows.count == stage_.rows.count, "a stage of a step that was not begun");
    use_device();
    workspace_.reset();
    return stage_;
  }

  // Tables are made once a layer. Their content is compared, since a caller may put other experts in the same place.
  const ExpertPointers* table_of(const ExpertWeights* experts, int count) {
    ExpertTable& table = tables_[experts];
    std::vector<ExpertPointers>& now = scratch_pointers_;
    now.clear();
    for (int e = 0; e < count; ++e) now.push_back(pointers_of(experts[e]));
    const size_t bytes = now.size() * sizeof(ExpertPointers);
    if (table.on_device == nullptr || table.pointers.size() != now.size() ||
        std::memcmp(table.pointers.data(), now.data(), bytes) != 0) {
      table.pointers = now;
      table.on_device = table.mirror.set(table.pointers.data(), table.pointers.size(), stream_);
    }
    return table.on_device;
  }

  int device_;
  cudaStream_t stream_;
  DeviceMemory memory_;
  SharedMemory shared_memory_;
  Workspace workspace_;
  RowAngles row_angles_;
  Stage stage_;
  const int32_t* begun_ = nullptr;
  Mirror tokens_, positions_, run_of_, runs_, pages_, head_rows_;
  float* confidence_ = nullptr;
  std::unordered_map<const ExpertWeights*, ExpertTable> tables_;
  std::vector<ExpertPointers> scratch_pointers_;
};

}  // namespace

Kernels* make_kernels(int device, std::string& reason) {
  cudaDeviceProp properties;
  cudaStream_t stream = nullptr;
  cudaError_t status = cudaGetDeviceProperties(&properties, device);
  if (status == cudaSuccess) status = cudaSetDevice(device);
  if (status == cudaSuccess) status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (status != cudaSuccess) {
    reason = "GPU " + std::to_string(device) + ": " + cudaGetErrorString(status);
    return nullptr;
  }
  return new CudaKernels(device, stream, properties);
}

}  // namespace onelane::cuda
