// Whether a run's plan and arguments hold together. Called by the CPU and the CUDA run before anything is touched; it
// looks at pointers and numbers only and follows no pointer.
#pragma once

#include <onelane/attention.h>

#include "base/result.h"

namespace onelane::attention {

// Whether the plan could have come from make_plan, or from a tuner that changed its splits or block_heads: within the
// shape's and the path's limits, with the workspace that goes with it.
Result<void> check_plan(const onelane_attention_plan& plan);

// check_plan, that the plan is for `cpu` or for a GPU, and every argument: a sentence that names the argument.
Result<void> check_run(const onelane_attention_plan& plan, const onelane_attention_args& args, bool cpu);

}  // namespace onelane::attention
