// Engram: table lookup, projection, gated write into the stream (spec/model.md 7.1).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/engram.cc"
#include "kernels/cpu/targets.h"
//
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/records-inl.h"
#include "kernels/cpu/stages.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

enum : size_t { kValueSlot = kStageSlot, kProjectedSlot };

constexpr int kTableBlock = 32;

// sigmoid of the signed root of the normalised product of copy and key; a product of exactly 0 gives 0.5.
float Gate(const EngramArgs& args, int copy, const bf16* x, const float* key) {
  const DD d;
  const bf16* q_weight = args.q_weight + offset(copy, args.dim);
  const bf16* k_weight = args.k_weight + offset(copy, args.dim);
  VD x_squares = hn::Zero(d);
  VD key_squares = hn::Zero(d);
  VD product = hn::Zero(d);
  for (int i = 0; i < args.dim; i += L) {
    const VD xv = WidenBf16(x + i);
    const VD kv = WidenFloats(key + i);
    x_squares = hn::MulAdd(xv, xv, x_squares);
    key_squares = hn::MulAdd(kv, kv, key_squares);
    const VD weights = hn::Mul(WidenBf16(q_weight + i), WidenBf16(k_weight + i));
    product = hn::MulAdd(hn::Mul(xv, weights), kv, product);
  }
  const double norms =
      std::sqrt(Sum(x_squares) / args.dim + args.norm_eps) * std::sqrt(Sum(key_squares) / args.dim + args.norm_eps);
  const double dot = Sum(product) / norms / std::sqrt(static_cast<double>(args.dim));
  if (dot == 0) return 0.5f;
  const double root = std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6)), dot);
  return static_cast<float>(1.0 / (1.0 + std::exp(-root)));
}

void WriteRow(const EngramArgs& args, int64_t row, const float* projected) {
  const DF d;
  const float* value = projected + offset(kStreams, args.dim);
  for (int j = 0; j < kStreams; ++j) {
    bf16* x = args.stream + offset(row * kStreams + j, args.dim);
    const VF gate = hn::Set(d, Gate(args, j, x, projected + offset(j, args.dim)));
    for (int i = 0; i < args.dim; i += N) {
      // Product and sum are each rounded to float, as everywhere.
      StoreBf16(d, hn::Add(LoadBf16(d, x + i), hn::Mul(gate, hn::LoadU(d, value + i))), x + i);
    }
  }
}

void Engram(Context& context, const StepRows& rows, const EngramArgs& args) {
  const int inputs = args.columns * args.width;
  const int outputs = (kStreams + 1) * args.dim;
  ONELANE_CHECK(args.wkv.in == inputs && args.wkv.out == outputs,
                "wkv takes the looked-up row, gives 4 keys and a value");
  ONELANE_CHECK(args.width % kTableBlock == 0 && args.dim % kPad == 0, "widths must be whole vectors");
  bf16* values = context.scratch<bf16>(kValueSlot, offset(rows.count, inputs));
  const Activations x = ActivationSpace(context, rows.count, inputs);
  context.parallel(rows.count, 1, int64_t{rows.count} * inputs * 6, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) {
      bf16* looked_up = values + offset(row, inputs);
      for (int column = 0; column < args.columns; ++column) {
        const int64_t number = args.table_rows[offset(row, args.columns) + static_cast<size_t>(column)];
        DecodeFp8(args.table + offset(number, args.width), args.table_scale + offset(number, args.width / kTableBlock),
                  args.width, kTableBlock, looked_up + offset(column, args.width));
      }
      ActivationRow(looked_up, inputs, args.wkv.act_block, x.data + offset(row, padded(inputs)));
    }
  });
  float* projected = context.scratch<float>(kProjectedSlot, offset(rows.count, outputs));
  const Panels panels = MakePanels(context, inputs);
  context.parallel(outputs, kOutputs, ProductWork(args.wkv, rows.count),
                   [&](int share, int64_t begin, int64_t end) HWY_ATTR {
                     ProductBf16(args.wkv, static_cast<int>(begin), static_cast<int>(end), x.row, rows.count,
                                 panels.of(share), ToFloat{projected, static_cast<size_t>(outputs)});
                   });
  context.parallel(rows.count, 1, int64_t{rows.count} * args.dim * 40, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) WriteRow(args, row, projected + offset(row, outputs));
  });
}

}  // namespace
}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onelane::cpu {

HWY_EXPORT(Engram);

void engram(Context& context, const StepRows& rows, const EngramArgs& args) {
  HWY_DYNAMIC_DISPATCH(Engram)(context, rows, args);
}

}  // namespace onelane::cpu
#endif
