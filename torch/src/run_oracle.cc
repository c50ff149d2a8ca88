// onelane_attention_run_cpu where Highway is not installed (build.sh): the library's oracle stands in, right and slow.
#include <onelane/attention.h>

#include "kernels/attention/reference.h"
#include "kernels/attention/status.h"

extern "C" int onelane_attention_run_cpu(const onelane_attention_plan* plan, const onelane_attention_args* args) {
  using namespace onelane::attention;
  if (plan == nullptr || args == nullptr) return fail(ONELANE_ATTENTION_INVALID, "plan and args must not be null");
  return run_reference(*plan, *args);
}
