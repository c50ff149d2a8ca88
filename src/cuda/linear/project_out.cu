// The attention's output: a low-rank product a group of heads, then one of all.
#include <vector>

#include "base/check.h"
#include "cuda/linear/multiply.h"
#include "cuda/stages.h"

namespace onelane::cuda {

void project_out(const Stage& stage, const ProjectOutArgs& args) {
  const int rows = stage.rows.count;
  const int low_width = args.wo_a.out, o_lora = low_width / args.groups;
  const int row_width = args.heads * kHeadDim, group_width = row_width / args.groups;
  ONELANE_CHECK(args.wo_a.in == group_width, "wo_a must take the heads of one group");
  bf16* low = stage.workspace->take<bf16>(static_cast<size_t>(rows) * low_width);
  std::vector<Product> groups;
  for (int g = 0; g < args.groups; ++g) {
    groups.push_back({.weights = &args.wo_a,
                      .first_out = g * o_lora,
                      .outs = o_lora,
                      .x = args.attended + static_cast<int64_t>(g) * group_width,
                      .x_stride = row_width,
                      .rows = rows,
                      .rounded = low + static_cast<int64_t>(g) * o_lora,
                      .y_stride = low_width});
  }
  multiply_all(stage, groups);
  multiply(stage, {{.weights = &args.wo_b,
                    .x = low,
                    .x_stride = low_width,
                    .rows = rows,
                    .rounded = args.y,
                    .y_stride = args.wo_b.out}});
}

}  // namespace onelane::cuda
