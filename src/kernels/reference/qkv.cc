// Projections around the attention: queries and window records, their commit, the output (spec/model.md 3.1).
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/reference/linear.h"
#include "kernels/reference/stages.h"
#include "kernels/reference/vector_ops.h"
#include "numerics/formats.h"

namespace onelane::reference {
namespace {

void project_queries(const StepRows& rows, const QkvArgs& args) {
  const int q_lora = args.wq_a.out;
  const std::vector<bf16> low = multiply_rounded(args.wq_a, args.x, rows.count);
  for (int row = 0; row < rows.count; ++row) {
    rms_norm(low.data() + offset(row, q_lora), args.q_norm, q_lora, args.norm_eps, args.qr + offset(row, q_lora));
  }
  const std::vector<bf16> q = multiply_rounded(args.wq_b, args.qr, rows.count);
  std::copy(q.begin(), q.end(), args.q);
  for (int row = 0; row < rows.count; ++row) {
    const RopeAngles angles = rope_angles(*args.rope, rows.position[row]);
    for (int h = 0; h < args.heads; ++h) {
      bf16* head = args.q + offset(row * args.heads + h, kHeadDim);
      if (args.q_head_norm) rms_norm(head, nullptr, kHeadDim, args.norm_eps, head);
      rope_tail(head, kHeadDim, angles);
    }
  }
}

void project_side(const SideProduct& side, const bf16* x, int rows) {
  if (!side.weights) return;
  const std::vector<float> sums = multiply(side.weights, x, rows);
  if (side.exact != nullptr) std::copy(sums.begin(), sums.end(), side.exact);
  if (side.rounded != nullptr) std::transform(sums.begin(), sums.end(), side.rounded, float_to_bf16);
}

}  // namespace

void project_qkv(const StepRows& rows, const QkvArgs& args) {
  ONELANE_CHECK(args.wkv || !args.wq_a, "queries come with records");
  for (const SideProduct& side : args.of_x) project_side(side, args.x, rows.count);
  if (args.wq_a) {
    ONELANE_CHECK(args.wq_b.out == args.heads * kHeadDim, "wq_b must give 512 values per head");
    project_queries(rows, args);
  }
  project_side(args.of_qr, args.qr, rows.count);
  if (!args.wkv) return;
  std::vector<bf16> kv = multiply_rounded(args.wkv, args.x, rows.count);
  for (int row = 0; row < rows.count; ++row) {
    bf16* values = kv.data() + offset(row, kHeadDim);
    rms_norm(values, args.kv_norm, kHeadDim, args.norm_eps, values);
    rope_tail(values, kHeadDim, rope_angles(*args.rope, rows.position[row]));
    store_record(args.kv, row, values);
  }
}

void commit(const StepRows& rows, const CommitArgs& args) {
  ONELANE_CHECK(args.kv.format == args.ring.format, "a ring keeps records of its own format");
  const int data_bytes = record_data_bytes(args.kv.format);
  const int scale_bytes = record_scale_bytes(args.kv.format);
  for (int i = 0; i < rows.run_count; ++i) {
    const RowRun& run = rows.runs[i];
    const RecordBlock ring = args.ring.block(run.slot);
    for (int step = std::max(0, run.count - ring.capacity); step < run.count; ++step) {
      const int row = run.first_row + step;
      const int record = (run.first_position + step) % ring.capacity;
      std::memcpy(ring.data(record), args.kv.data(row), static_cast<size_t>(data_bytes));
      std::memcpy(ring.scales(record), args.kv.scales(row), static_cast<size_t>(scale_bytes));
    }
  }
}

void project_out(const StepRows& rows, const ProjectOutArgs& args) {
  const int low_width = args.wo_a.out;
  const int o_lora = low_width / args.groups;
  const int row_width = args.heads * kHeadDim;
  const int group_width = row_width / args.groups;
  ONELANE_CHECK(args.wo_a.in == group_width, "wo_a must take the heads of one group");
  std::vector<bf16> low(offset(rows.count, low_width));
  for (int g = 0; g < args.groups; ++g) {
    const ActivationRows heads{args.attended + offset(g, group_width), rows.count, static_cast<size_t>(row_width)};
    const std::vector<float> part = multiply(args.wo_a, heads, g * o_lora, o_lora);
    for (int row = 0; row < rows.count; ++row) {
      for (int i = 0; i < o_lora; ++i) {
        low[offset(row, low_width) + offset(g, o_lora) + i] = float_to_bf16(part[offset(row, o_lora) + i]);
      }
    }
  }
  const std::vector<bf16> y = multiply_rounded(args.wo_b, low.data(), rows.count);
  std::copy(y.begin(), y.end(), args.y);
}

}  // namespace onelane::reference
