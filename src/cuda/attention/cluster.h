// The Hopper kernel: its arguments and its launch. The idea is told in cluster.cu.
#pragma once

#include <cuda_runtime.h>

#include "cuda/attention/records.h"

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
};

// Enqueues the call on `stream`. Formats, heads of a block and splits are those of a plan for ONELANE_PATH_CLUSTER.
cudaError_t launch_cluster(const onelane_attention_plan& plan, const AttentionParams& params, cudaStream_t stream);

}  // namespace onelane::cuda
