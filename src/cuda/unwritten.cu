// Stages that are not there yet. This file goes before anything is merged.
#include "base/check.h"
#include "cuda/linear/multiply.h"
#include "cuda/stages.h"

namespace onelane::cuda {
#define UNWRITTEN(name, ...) \
  void name(const Stage&, __VA_ARGS__) { ONELANE_CHECK(false, #name " is not written yet"); }
// linear/
UNWRITTEN(multiply, std::initializer_list<Product>)
UNWRITTEN(project_qkv, const QkvArgs&)
UNWRITTEN(project_out, const ProjectOutArgs&)
UNWRITTEN(head, const HeadArgs&, const int32_t*)
UNWRITTEN(main_input, const MainInputArgs&)
UNWRITTEN(markov, const MarkovArgs&, float*)
// moe/
}  // namespace onelane::cuda
