// The CUDA half of the C interface (onelane/attention.h).
#include <cuda_runtime.h>
#include <onelane/attention.h>

#include "cuda/attention/cluster.h"
#include "cuda/attention/combine.h"
#include "kernels/attention/layout.h"
#include "kernels/attention/message.h"
#include "kernels/attention/plan.h"
#include "kernels/attention/status.h"
#include "kernels/attention/validate.h"

namespace onelane::cuda {
namespace {

using attention::error;

Result<void> check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return {};
  cudaGetLastError();  // the failure is reported here, once
  return error(ErrorCode::kIo, "%s: %s (%s)", what, cudaGetErrorName(status), cudaGetErrorString(status));
}

EntryList entry_list(const onelane_attention_list& list, int width) {
  if (width == 0) return {};
  EntryList out = {};
  out.pages = static_cast<const uint8_t*>(list.pages);
  out.indices = list.indices;
  out.lengths = list.lengths;
  out.page_bytes = list.page_bytes;
  out.index_stride = list.index_stride;
  out.width = width;
  out.page_records = list.page_records;
  out.records = list.page_records * list.pages_count;
  // Exact for every index below 2^31: with 2^(s-1) < d <= 2^s the multiplier 2^(31+s) / d + 1 fits 32 bits.
  int shift = 0;
  while ((int64_t{1} << shift) < list.page_records) ++shift;
  out.page_shift = 31 + shift;
  out.page_magic =
      static_cast<uint32_t>((uint64_t{1} << out.page_shift) / static_cast<uint32_t>(list.page_records) + 1);
  return out;
}

Result<void> run(const onelane_attention_plan& plan, const onelane_attention_args& args, cudaStream_t stream) {
  ONELANE_TRY(attention::check_run(plan, args, /*cpu=*/false));
  const onelane_attention_shape& shape = plan.shape;
  AttentionParams params = {};
  params.q = static_cast<const uint16_t*>(args.q);
  params.window = entry_list(args.window, shape.window_width);
  params.extra = entry_list(args.extra, shape.extra_width);
  params.scale_log2 = args.scale * 1.4426950408889634f;
  params.sink = args.sink;
  params.positions = args.positions;
  params.angles = args.angles;
  params.angles_count = args.angles_count;
  params.out = static_cast<uint8_t*>(args.out);
  params.out_scales = static_cast<uint8_t*>(args.out_scales);
  params.lse = args.lse;
  params.output = shape.output;
  params.rows = shape.rows;
  params.heads = shape.heads;
  params.splits = plan.splits;
  params.chunks_as_few = plan.chunks_as_few;
  switch (plan.path) {
    case ONELANE_PATH_CLUSTER: {
      const attention::ListFormats formats = attention::formats_of(shape);
      if (attention::is_wide(shape, plan.block_heads, plan.splits)) {
        return check(launch_wide(formats, plan.block_heads, params, stream), "the launch of wide_attention");
      }
      return check(launch_cluster(formats, plan.block_heads, params, stream), "the launch of cluster_attention");
    }
    case ONELANE_PATH_COMBINE:
      return check(launch_combine(plan, params, args.workspace, stream), "the launch of attend_part and merge_parts");
    default:
      return error(ErrorCode::kUnsupported, "plan.path %d has no kernel in this build", static_cast<int>(plan.path));
  }
}

Result<void> describe(onelane_attention_device& device) {
  int id = 0;
  ONELANE_TRY(check(cudaGetDevice(&id), "cudaGetDevice"));
  const auto attribute = [&](cudaDeviceAttr which, int32_t& value) {
    return check(cudaDeviceGetAttribute(&value, which, id), "cudaDeviceGetAttribute");
  };
  int32_t major = 0;
  int32_t minor = 0;
  ONELANE_TRY(attribute(cudaDevAttrComputeCapabilityMajor, major));
  ONELANE_TRY(attribute(cudaDevAttrComputeCapabilityMinor, minor));
  ONELANE_TRY(attribute(cudaDevAttrMultiProcessorCount, device.processors));
  ONELANE_TRY(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device.shared_bytes));
  device.arch = 10 * major + minor;
  device.cluster_blocks = major >= 9 ? 8 : 1;  // what every such device can launch
  // The kernels that use clusters are for Hopper.
  if (device.arch == 90)
    ONELANE_TRY(check(count_cluster_places(device.cluster_places), "cudaOccupancyMaxActiveClusters"));
  return {};
}

}  // namespace
}  // namespace onelane::cuda

extern "C" {

int onelane_attention_describe_cuda(onelane_attention_device* device) {
  return onelane::attention::guarded([&]() -> onelane::Result<void> {
    if (device == nullptr) return onelane::Error{onelane::ErrorCode::kInvalidArgument, "device must not be null"};
    *device = {};
    return onelane::cuda::describe(*device);
  });
}

int onelane_attention_run_cuda(const onelane_attention_plan* plan, const onelane_attention_args* args, void* stream) {
  return onelane::attention::guarded([&]() -> onelane::Result<void> {
    if (plan == nullptr || args == nullptr) {
      return onelane::Error{onelane::ErrorCode::kInvalidArgument, "plan and args must not be null"};
    }
    return onelane::cuda::run(*plan, *args, static_cast<cudaStream_t>(stream));
  });
}

}  // extern "C"
