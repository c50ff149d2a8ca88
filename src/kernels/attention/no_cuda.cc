// The CUDA functions of a library that was built without CUDA: its symbols are the same, they say no.
#include <onelane/attention.h>

#include "kernels/attention/status.h"

namespace {

int no_cuda() { return onelane::attention::fail(ONELANE_ATTENTION_UNSUPPORTED, "this library was built without CUDA"); }

}  // namespace

extern "C" {

int onelane_attention_describe_cuda(onelane_attention_device*) { return no_cuda(); }

int onelane_attention_run_cuda(const onelane_attention_plan*, const onelane_attention_args*, void*) {
  return no_cuda();
}

}  // extern "C"
