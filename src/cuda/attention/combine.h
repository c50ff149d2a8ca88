// The portable path: its launch. The idea is told in combine.cu.
#pragma once

#include <cuda_runtime.h>

#include "cuda/attention/cluster.h"

namespace onelane::cuda {

// Enqueues the call on `stream`: one kernel, and a second if the plan splits. Splits and heads of a block are those of
// a plan for ONELANE_PATH_COMBINE, `workspace` has its workspace_bytes.
cudaError_t launch_combine(const onelane_attention_plan& plan, const AttentionParams& params, void* workspace,
                           cudaStream_t stream);

}  // namespace onelane::cuda
