// onelane_attention_run_cpu. A library of its own (attention_cpu): its core needs Highway.
#include <onelane/attention.h>

#include "kernels/attention/reference.h"
#include "kernels/attention/status.h"

extern "C" int onelane_attention_run_cpu(const onelane_attention_plan* plan, const onelane_attention_args* args) {
  using namespace onelane::attention;
  if (plan == nullptr || args == nullptr) return fail(ONELANE_ATTENTION_INVALID, "plan and args must not be null");
  return run_reference(*plan, *args);
}
