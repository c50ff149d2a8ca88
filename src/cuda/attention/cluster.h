// The Hopper kernels: their arguments and their launches. The ideas are told in cluster.cu and wide.cu.
#pragma once

#include <cuda_runtime.h>

#include "cuda/attention/records.h"
#include "kernels/attention/plan.h"

namespace onelane::cuda {

struct AttentionParams {
  const uint16_t* q;  // bf16 [rows, heads, 512]
  EntryList window, extra;
  float scale_log2;  // of scores, times log2(e)
  const float* sink;
  const int32_t* positions;
  const float* angles;
  int32_t angles_count;
  uint8_t* out;
  uint8_t* out_scales;
  float* lse;
  int32_t output;  // onelane_attention_output
  int32_t rows;
  int32_t heads;
  int32_t splits;
  int32_t chunks_as_few;  // of the plan
  uint32_t splits_magic;  // n / splits = (n * splits_magic) >> 32, for n below 2^20: units and items, times 8
  int32_t groups_log2;    // of heads / the heads of a block
};

// Enqueue the call on `stream`, for a plan of ONELANE_PATH_CLUSTER: with 8, 16 or 32 heads a block (cluster.cu), or 64
// (wide.cu). `formats` are what attention::formats_of says.
cudaError_t launch_cluster(const attention::ListFormats& formats, int block_heads, const AttentionParams& params,
                           cudaStream_t stream);
cudaError_t launch_wide(const attention::ListFormats& formats, int block_heads, const AttentionParams& params,
                        cudaStream_t stream);

// Clusters of 1, 2, .. 8 blocks of launch_cluster that run at once on the current device.
cudaError_t count_cluster_places(int32_t (&places)[8]);

}  // namespace onelane::cuda
