// The CUDA side of backend.h: plain memory or fenced memory, one stream, graphs.
#include <cstdio>
#include <cstring>
#include <map>

#include <cuda.h>  // types of the virtual-memory calls; the calls themselves are asked of the driver at run time
#include <cuda_runtime.h>

#include "attention/backend.h"

namespace onelane::attention_test {
namespace {

void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::string hint;
  if (error == cudaErrorIllegalAddress) hint = " (an operand was touched past its end, or a wild pointer followed)";
  die(std::string(call) + ": " + cudaGetErrorString(error) + hint);
}
#define CHECK_CUDA(call) check_cuda(call, #call)

// A function of the driver, without linking libcuda.
template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  CHECK_CUDA(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) die(std::string("this driver has no ") + name);
  return reinterpret_cast<Function>(function);
}

// Memory that ends at an unmapped page: a reserved range of addresses of which only the first part is mapped.
class FencedMemory {
 public:
  FencedMemory() {
    CHECK_CUDA(cudaGetDevice(&device_));
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_};
    check(granularity_of_(&page_, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "cuMemGetAllocationGranularity");
  }
  void* allocate(size_t bytes) {
    Mapping mapping;
    mapping.mapped = (bytes + page_ - 1) / page_ * page_;
    check(reserve_(&mapping.address, mapping.mapped + page_, 0, 0, 0), "cuMemAddressReserve");
    check(create_(&mapping.handle, mapping.mapped, &properties_, 0), "cuMemCreate");
    check(map_(mapping.address, mapping.mapped, 0, mapping.handle, 0), "cuMemMap");
    const CUmemAccessDesc access = {.location = properties_.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(set_access_(mapping.address, mapping.mapped, &access, 1), "cuMemSetAccess");
    void* memory = reinterpret_cast<void*>(mapping.address + mapping.mapped - (bytes + 15) / 16 * 16);
    mappings_[memory] = mapping;
    return memory;
  }
  bool release(void* memory) {
    const auto found = mappings_.find(memory);
    if (found == mappings_.end()) return false;
    const Mapping& mapping = found->second;
    check(unmap_(mapping.address, mapping.mapped), "cuMemUnmap");
    check(destroy_(mapping.handle), "cuMemRelease");
    check(free_(mapping.address, mapping.mapped + page_), "cuMemAddressFree");
    mappings_.erase(found);
    return true;
  }

 private:
  struct Mapping {
    CUdeviceptr address = 0;
    size_t mapped = 0;
    CUmemGenericAllocationHandle handle = 0;
  };
  static void check(CUresult result, const char* call) {
    if (result != CUDA_SUCCESS) die(std::string(call) + " failed with " + std::to_string(static_cast<int>(result)));
  }

  int device_ = 0;
  size_t page_ = 0;
  CUmemAllocationProp properties_{};
  std::map<void*, Mapping> mappings_;
  decltype(&cuMemGetAllocationGranularity) granularity_of_ =
      driver_function<decltype(granularity_of_)>("cuMemGetAllocationGranularity");
  decltype(&cuMemAddressReserve) reserve_ = driver_function<decltype(reserve_)>("cuMemAddressReserve");
  decltype(&cuMemAddressFree) free_ = driver_function<decltype(free_)>("cuMemAddressFree");
  decltype(&cuMemCreate) create_ = driver_function<decltype(create_)>("cuMemCreate");
  decltype(&cuMemRelease) destroy_ = driver_function<decltype(destroy_)>("cuMemRelease");
  decltype(&cuMemMap) map_ = driver_function<decltype(map_)>("cuMemMap");
  decltype(&cuMemUnmap) unmap_ = driver_function<decltype(unmap_)>("cuMemUnmap");
  decltype(&cuMemSetAccess) set_access_ = driver_function<decltype(set_access_)>("cuMemSetAccess");
};

// Grid (parts, rows). What the harness plants a fault with: right only if somebody zeroes `counter` before each run.
__global__ void count_and_sum_kernel(const float* in, int parts, float* out, float* scratch, unsigned* counter) {
  const int row = blockIdx.y;
  scratch[row * parts + blockIdx.x] = in[row * parts + blockIdx.x];
  __threadfence();
  if (atomicAdd(counter + row, 1u) != static_cast<unsigned>(parts) - 1) return;
  __threadfence();
  float sum = 0;
  for (int i = 0; i < parts; ++i) sum += *static_cast<volatile float*>(scratch + row * parts + i);
  out[row] = sum;
}

class CudaBackend : public Backend {
 public:
  CudaBackend() {
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check_status(onelane_attention_describe_cuda(&device_), "onelane_attention_describe_cuda");
    CHECK_CUDA(cudaMalloc(&scratch_, kScratchFloats * sizeof(float)));
  }
  ~CudaBackend() override {
    CHECK_CUDA(cudaFree(scratch_));
    CHECK_CUDA(cudaStreamDestroy(stream_));
  }

  std::string name() const override {
    int device = 0;
    CHECK_CUDA(cudaGetDevice(&device));
    cudaDeviceProp properties{};
    CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
    return std::string(properties.name) + ", sm_" + std::to_string(device_.arch) + ", " +
           std::to_string(device_.processors) + " multiprocessors";
  }
  onelane_attention_device device() const override { return device_; }

  void* allocate(size_t bytes, bool fenced) override {
    if (fenced && !fenced_) fenced_ = std::make_unique<FencedMemory>();
    if (fenced) return fenced_->allocate(bytes);
    void* memory = nullptr;
    CHECK_CUDA(cudaMalloc(&memory, bytes));
    return memory;
  }
  void release(void* memory) override {
    synchronize();
    if (!fenced_ || !fenced_->release(memory)) CHECK_CUDA(cudaFree(memory));
  }
  // From pageable memory: the copy has left `from` when the call returns.
  void upload(void* to, const void* from, size_t bytes) override {
    CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
  }
  void download(void* to, const void* from, size_t bytes) override {
    CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
    synchronize();
  }
  void fill(void* memory, int byte, size_t bytes) override {
    if (bytes > 0) CHECK_CUDA(cudaMemsetAsync(memory, byte, bytes, stream_));
  }
  void synchronize() override { CHECK_CUDA(cudaStreamSynchronize(stream_)); }

  int run(const onelane_attention_plan& plan, const onelane_attention_args& args) override {
    return onelane_attention_run_cuda(&plan, &args, stream_);
  }
  void count_and_sum(const float* in, int rows, int parts, float* out, unsigned* counter) override {
    if (rows * parts > kScratchFloats) die("count_and_sum: too many rows");
    count_and_sum_kernel<<<dim3(static_cast<unsigned>(parts), static_cast<unsigned>(rows)), 1, 0, stream_>>>(
        in, parts, out, scratch_, counter);
    CHECK_CUDA(cudaGetLastError());
  }

  std::unique_ptr<Recording> record(const std::function<void()>& enqueue) override {
    auto recording = std::make_unique<CudaGraph>();
    recording->stream = stream_;
    cudaGraph_t graph = nullptr;
    CHECK_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CHECK_CUDA(cudaStreamEndCapture(stream_, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&recording->graph, graph, 0));
    CHECK_CUDA(cudaGraphDestroy(graph));
    return recording;
  }

 private:
  struct CudaGraph : Recording {
    cudaGraphExec_t graph = nullptr;
    cudaStream_t stream = nullptr;
    ~CudaGraph() override { CHECK_CUDA(cudaGraphExecDestroy(graph)); }
    void replay() override { CHECK_CUDA(cudaGraphLaunch(graph, stream)); }
  };
  static constexpr int kScratchFloats = 4096;

  cudaStream_t stream_ = nullptr;
  onelane_attention_device device_{};
  std::unique_ptr<FencedMemory> fenced_;
  float* scratch_ = nullptr;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(std::string* why_not) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    *why_not = error != cudaSuccess ? cudaGetErrorString(error) : "none found";
    return nullptr;
  }
  return std::make_unique<CudaBackend>();
}

}  // namespace onelane::attention_test
