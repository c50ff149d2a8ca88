// Projections around attention: queries and window records, output projection, drafter input (spec/model.md 3.1, 6.3).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/project.cc"
#include "kernels/cpu/targets.h"
//
#include <algorithm>
#include <span>

#include <hwy/foreach_target.h>

#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/stages.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

enum : size_t { kLatentSlot = kStageSlot, kKvSlot, kHeadSlot, kGroupSlot };

// qr and the raw kv of all rows, in one pass over both matrices: qr [rows, q_lora] and kv [rows, 512], floats that hold
// rounded bf16.
void ProjectDown(Context& context, int rows, const QkvArgs& args, float* qr, float* kv) {
  const bool queries = static_cast<bool>(args.wq_a);
  const Activations for_kv = MakeActivations(context, args.x, rows, args.dim, args.wkv.act_block);
  Activations for_q = for_kv;
  if (queries && args.wq_a.act_block != args.wkv.act_block) {
    for_q = MakeActivations(context, args.x, rows, args.dim, args.wq_a.act_block, kRow2Slot);
  }
  const Panels panels = MakePanels(context, args.dim);
  const int kv_outputs = args.wkv.out;
  const int q_outputs = queries ? args.wq_a.out : 0;
  const auto put = [](float* out, int width) HWY_ATTR { return ToFloat{out, static_cast<size_t>(padded(width))}; };
  const int64_t work = ProductWork(args.wkv, rows) * (kv_outputs + q_outputs) / kv_outputs;
  context.parallel(kv_outputs + q_outputs, kOutputs, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    const int from = static_cast<int>(begin);
    const int to = static_cast<int>(end);
    double* panel = panels.of(share);
    if (from < kv_outputs) {
      ProductBf16(args.wkv, from, std::min(to, kv_outputs), for_kv.row, rows, panel, put(kv, kv_outputs));
    }
    if (to > kv_outputs) {
      ProductBf16(args.wq_a, std::max(from, kv_outputs) - kv_outputs, to - kv_outputs, for_q.row, rows, panel,
                  put(qr, q_outputs));
    }
  });
}

// Widths in which the activations of a side product are quantised, or how else they are taken.
int ActBlock(const SideProduct& side, int rows) {
  if (side.weights.kind != Matrix::Kind::kBf16) return side.weights.act_block;
  // Where a product is rounded, sums in float and a bound do.
  const bool as_floats = side.rounded != nullptr && side.weights.in % kWeightBlock == 0 && rows >= kPanelRows;
  return as_floats ? kAsFloats : 0;
}

// Those that take their activations alike are one range of outputs.
void ProjectSides(Context& context, std::span<const SideProduct> sides, const bf16* from, int rows) {
  for (const SideProduct& first : sides) {
    if (!first.weights) continue;
    const int block = ActBlock(first, rows), width = first.weights.in;
    const auto alike = [&](const SideProduct& side) { return side.weights && ActBlock(side, rows) == block; };
    if (&*std::find_if(sides.begin(), sides.end(), alike) != &first) continue;  // made with an earlier one
    int64_t outputs = 0;
    for (const SideProduct& side : sides) outputs += alike(side) ? side.weights.out : 0;
    const Activations x = MakeActivations(context, from, rows, width, block);
    const Panels panels = MakePanels(context, width);
    context.parallel(outputs, kOutputs, outputs * width * rows, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
      int64_t before = 0;  // outputs of the sides ahead
      for (const SideProduct& side : sides) {
        if (!alike(side)) continue;
        Matrix matrix = side.weights;
        matrix.act_block = block;
        const auto stride = static_cast<size_t>(matrix.out);
        const auto from_output = static_cast<int>(std::max(begin - before, int64_t{0}));
        const auto to_output = static_cast<int>(std::min(end - before, int64_t{matrix.out}));
        ONELANE_CHECK(before % kOutputs == 0, "outputs of a side product are whole tiles, but for the last one's");
        before += matrix.out;
        if (from_output >= to_output) continue;
        if (side.exact != nullptr) {
          Product(matrix, from_output, to_output, x.row, rows, panels.of(share), ToFloat{side.exact, stride});
        } else {
          Product(matrix, from_output, to_output, x.row, rows, panels.of(share), ToBf16{side.rounded, stride});
        }
      }
    });
  }
}

void ClearPadding(float* row, int width) {
  for (int i = width; i < padded(width); ++i) row[i] = 0;
}

void ProjectRecordsAndQueries(Context& context, const StepRows& rows, const QkvArgs& args) {
  ONELANE_CHECK(args.wkv.out == kHeadDim, "wkv must give 512 values");
  const int q_lora = args.wq_a ? args.wq_a.out : 0;
  float* kv = context.scratch<float>(kKvSlot, offset(rows.count, kHeadDim));
  float* qr = context.scratch<float>(kLatentSlot, offset(rows.count, padded(q_lora)));
  ProjectDown(context, rows.count, args, qr, kv);

  const RopeAngles* angles = context.row_angles(*args.rope, rows);
  Activations latents;
  if (q_lora > 0) latents = ActivationSpace(context, rows.count, q_lora);
  context.parallel(rows.count, 1, int64_t{rows.count} * 20'000, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) {
      float* kv_row = kv + offset(row, kHeadDim);
      RmsNormRow(kv_row, args.kv_norm, kHeadDim, args.norm_eps);
      RopeRow(kv_row, kHeadDim, angles[row]);
      const int record = static_cast<int>(row);
      EncodeRecord(args.kv.format, kv_row, args.kv.data(record), args.kv.scales(record));
      if (q_lora == 0) continue;
      float* qr_row = qr + offset(row, padded(q_lora));
      ClearPadding(qr_row, q_lora);
      RmsNormRow(qr_row, args.q_norm, q_lora, args.norm_eps);
      bf16* out = args.qr + offset(row, q_lora);
      NarrowRow(qr_row, q_lora, out);
      ActivationRow(out, q_lora, args.wq_b.act_block, latents.data + offset(row, padded(q_lora)));
    }
  });
  if (q_lora == 0) return;

  // A head is 512 outputs: normed and turned by the thread that computed it.
  ONELANE_CHECK(args.wq_b.out == args.heads * kHeadDim, "wq_b must give 512 values per head");
  const Panels panels = MakePanels(context, q_lora);
  const size_t head_floats = offset(rows.count, kHeadDim);
  float* head_space = context.scratch<float>(kHeadSlot, head_floats * static_cast<size_t>(context.threads()));
  const int64_t work = ProductWork(args.wq_b, rows.count);
  context.parallel(args.heads, 1, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    float* space = head_space + head_floats * static_cast<size_t>(share);
    for (int64_t head = begin; head < end; ++head) {
      const int first = static_cast<int>(head) * kHeadDim;
      ProductBf16(args.wq_b, first, first + kHeadDim, latents.row, rows.count, panels.of(share),
                  [&](int row, int output, int, auto sums) HWY_ATTR {
                    hn::StoreU(sums, hn::DFromV<decltype(sums)>(), space + offset(row, kHeadDim) + output - first);
                  });
      for (int row = 0; row < rows.count; ++row) {
        float* q = space + offset(row, kHeadDim);
        if (args.q_head_norm) RmsNormRow(q, nullptr, kHeadDim, args.norm_eps);
        RopeRow(q, kHeadDim, angles[row]);
        NarrowRow(q, kHeadDim, args.q + offset(row, int64_t{args.heads} * kHeadDim) + first);
      }
    }
  });
}

void ProjectQkv(Context& context, const StepRows& rows, const QkvArgs& args) {
  ONELANE_CHECK(args.wkv || !args.wq_a, "queries come with records");
  ProjectSides(context, args.of_x, args.x, rows.count);
  if (args.wkv) ProjectRecordsAndQueries(context, rows, args);
  ProjectSides(context, {&args.of_qr, 1}, args.qr, rows.count);
}

void ProjectOut(Context& context, const StepRows& rows, const ProjectOutArgs& args) {
  const int width = args.heads / args.groups * kHeadDim;
  const int latent = args.wo_a.out / args.groups;
  ONELANE_CHECK(args.wo_a.in == width && args.wo_b.in == args.wo_a.out, "wo_a takes a group's heads, wo_b all groups");
  ONELANE_CHECK(latent % kOutputs == 0, "a group's outputs must be whole tiles");

  // With many rows sums in float and a bound are cheaper, though the bound of sums this long leaves some open.
  Matrix wo_a = args.wo_a;
  if (wo_a.kind == Matrix::Kind::kFp8 && wo_a.act_block == 0 && rows.count >= kPanelRows) wo_a.act_block = kAsFloats;
  // [rows * groups] activation rows; those of a group are gathered by pointer.
  const Activations x = MakeActivations(context, args.attended, rows.count * args.groups, width, wo_a.act_block);
  const double** by_group =
      context.scratch<const double*>(kGroupSlot, static_cast<size_t>(rows.count) * static_cast<size_t>(args.groups));
  for (int group = 0; group < args.groups; ++group) {
    for (int row = 0; row < rows.count; ++row) {
      by_group[offset(group, rows.count) + static_cast<size_t>(row)] = x.row[row * args.groups + group];
    }
  }
  bf16* latents = context.scratch<bf16>(kLatentSlot, offset(rows.count, args.wo_a.out));
  const Panels panels = MakePanels(context, std::max(width, args.wo_b.in));
  const ToBf16 store{latents, static_cast<size_t>(args.wo_a.out)};
  const int64_t work = ProductWork(args.wo_a, rows.count);
  context.parallel(args.wo_a.out, kOutputs, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t from = begin; from < end;) {
      const int64_t group = from / latent;
      const int64_t to = std::min<int64_t>(end, (group + 1) * latent);
      Product(wo_a, static_cast<int>(from), static_cast<int>(to), by_group + offset(group, rows.count), rows.count,
              panels.of(share), store);
      from = to;
    }
  });
  const Activations y = MakeActivations(context, latents, rows.count, args.wo_b.in, args.wo_b.act_block, kRow2Slot);
  SharedProduct(context, args.wo_b, y, rows.count, ToBf16{args.y, static_cast<size_t>(args.wo_b.out)});
}

void MainInput(Context& context, const StepRows& rows, const MainInputArgs& args) {
  const int dim = args.main_proj.out;
  const Activations x = MakeActivations(context, args.taps, rows.count, args.main_proj.in, args.main_proj.act_block);
  SharedProduct(context, args.main_proj, x, rows.count, ToBf16{args.main_x, static_cast<size_t>(dim)});
  float* scratch = context.scratch<float>(kLatentSlot, static_cast<size_t>(padded(dim)));
  for (int row = 0; row < rows.count; ++row) {
    WidenRow(args.main_x + offset(row, dim), dim, scratch);
    RmsNormRow(scratch, args.norm, dim, args.norm_eps);
    NarrowRow(scratch, dim, args.main_x + offset(row, dim));
  }
}

}  // namespace
}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onelane::cpu {

HWY_EXPORT(ProjectQkv);
HWY_EXPORT(ProjectOut);
HWY_EXPORT(MainInput);

void project_qkv(Context& context, const StepRows& rows, const QkvArgs& args) {
  HWY_DYNAMIC_DISPATCH(ProjectQkv)(context, rows, args);
}
void project_out(Context& context, const StepRows& rows, const ProjectOutArgs& args) {
  HWY_DYNAMIC_DISPATCH(ProjectOut)(context, rows, args);
}
void main_input(Context& context, const StepRows& rows, const MainInputArgs& args) {
  HWY_DYNAMIC_DISPATCH(MainInput)(context, rows, args);
}

}  // namespace onelane::cpu
#endif
