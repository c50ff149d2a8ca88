// The residual stream: embed, mix, expand, tap (spec/model.md 2, 6.3).
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/streams.cc"
#include "kernels/cpu/targets.h"
//
#include <hwy/foreach_target.h>

#include "kernels/cpu/stages.h"
#include "kernels/cpu/streams-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

// -- Sinkhorn: 4 rows of 4 values in 4 vectors
// ---------------------------------------------------------------------------

struct Square {
  V4 row[kStreams];
};

HWY_INLINE Square Transposed(const Square& s) {
  const D4 d;
  const hn::Repartition<uint64_t, D4> d64;
  const auto pair = [&](V4 v) HWY_ATTR { return hn::BitCast(d64, v); };
  const auto low01 = pair(hn::InterleaveLower(d, s.row[0], s.row[1]));
  const auto low23 = pair(hn::InterleaveLower(d, s.row[2], s.row[3]));
  const auto high01 = pair(hn::InterleaveUpper(d, s.row[0], s.row[1]));
  const auto high23 = pair(hn::InterleaveUpper(d, s.row[2], s.row[3]));
  return {{hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)),
           hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)),
           hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)),
           hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23))}};
}

HWY_INLINE void DivideByColumnSums(Square& s, V4 eps) {
  const V4 sum = hn::Add(hn::Add(hn::Add(hn::Add(s.row[0], s.row[1]), s.row[2]), s.row[3]), eps);
  for (V4& row : s.row) row = hn::Div(row, sum);
}

// `comb` [4, 4] in place: softmax of each row plus eps, then columns and rows in turn (2.2).
HWY_INLINE void Sinkhorn(float* comb, float eps, int iterations) {
  const D4 d;
  for (int j = 0; j < kStreams; ++j) {
    float* row = comb + j * kStreams;
    float max = row[0];
    for (int k = 1; k < kStreams; ++k) max = std::max(max, row[k]);
    float sum = 0;
    for (int k = 0; k < kStreams; ++k) sum += row[k] = std::exp(row[k] - max);
    for (int k = 0; k < kStreams; ++k) row[k] = row[k] / sum + eps;
  }
  Square s;
  for (int j = 0; j < kStreams; ++j) s.row[j] = hn::LoadU(d, comb + j * kStreams);
  const V4 veps = hn::Set(d, eps);
  DivideByColumnSums(s, veps);
  for (int i = 1; i < iterations; ++i) {
    s = Transposed(s);
    DivideByColumnSums(s, veps);
    s = Transposed(s);
    DivideByColumnSums(s, veps);
  }
  for (int j = 0; j < kStreams; ++j) hn::StoreU(s.row[j], d, comb + j * kStreams);
}

// -- mix
// -----------------------------------------------------------------------------------------------------------------

// Everything after the products: coefficients, collapse, norm. `x`: the row's stream as floats, then scratch.
void FinishMix(const MixArgs& args, int64_t row, float* x, const float* products) {
  const MixWeights& w = args.weights;
  const int width = kStreams * args.dim;
  const float r = 1.0f / std::sqrt(SumSquares(x, width) / static_cast<float>(width) + args.norm_eps);
  float m[kMixes];
  for (int i = 0; i < kMixes; ++i) {
    const float scale = w.scale[i < kStreams ? 0 : i < 2 * kStreams ? 1 : 2];
    m[i] = products[i] * r * scale + w.base[i];
  }
  float* pre = args.pre + offset(row, kStreams);
  float* post = args.post + offset(row, kStreams);
  float* comb = args.comb + offset(row, kStreams * kStreams);
  for (int j = 0; j < kStreams; ++j) {
    pre[j] = Sigmoid(m[j]) + args.mix_eps;
    post[j] = 2.0f * Sigmoid(m[kStreams + j]);
  }
  std::memcpy(comb, m + 2 * kStreams, sizeof(float) * kStreams * kStreams);
  Sinkhorn(comb, args.mix_eps, args.iterations);
  CollapseRow(args.stream + offset(row, width), args.dim,
              args.collapse_with == nullptr ? pre : args.collapse_with + offset(row, kStreams), x);
  RmsNormRow(x, args.norm, args.dim, args.norm_eps);
  NarrowRow(x, args.dim, args.x + offset(row, args.dim));
}

void MixStreams(Context& context, const StepRows& rows, const MixArgs& args) {
  const int width = kStreams * args.dim;
  const Activations x = ActivationSpace(context, rows.count, width);
  float* products = context.scratch<float>(kStageSlot, offset(rows.count, kMixes));
  const auto widen = [&](int64_t row) HWY_ATTR {
    WidenRow(args.stream + offset(row, width), width, x.data + offset(row, padded(width)));
  };
  const auto finish = [&](int64_t row) HWY_ATTR {
    FinishMix(args, row, x.data + offset(row, padded(width)), products + offset(row, kMixes));
  };
  const int64_t work = int64_t{rows.count} * width * (kMixes + 8);
  if (rows.count == 1) {  // only the products can be shared
    widen(0);
    context.parallel(kMixes, kOutputs, work, [&](int, int64_t begin, int64_t end) HWY_ATTR {
      MixProducts(args.weights.fn, width, static_cast<int>(begin), static_cast<int>(end), x.row, 1, products);
    });
    return finish(0);
  }
  context.parallel(rows.count, 1, work, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t row = begin; row < end; row += kTileRows) {
      const auto tile = static_cast<int>(std::min<int64_t>(kTileRows, end - row));
      for (int r = 0; r < tile; ++r) widen(row + r);
      MixProducts(args.weights.fn, width, 0, kMixes, x.row + row, tile, products + offset(row, kMixes));
      for (int r = 0; r < tile; ++r) finish(row + r);
    }
  });
}

// -- expand, tap, embed
// --------------------------------------------------------------------------------------------------

void ExpandRow(const ExpandArgs& args, int64_t row) {
  const DF d;
  const int dim = args.dim;
  bf16* stream = args.stream + offset(row, kStreams * dim);
  const bf16* y = args.y + offset(row, dim);
  const float* post = args.post + offset(row, kStreams);
  const float* comb = args.comb + offset(row, kStreams * kStreams);
  int i = 0;
  for (; i + N <= dim; i += N) {
    const VF yv = LoadBf16(d, y + i);
    VF x[kStreams];
    for (int j = 0; j < kStreams; ++j) x[j] = LoadBf16(d, stream + offset(j, dim) + i);
    for (int k = 0; k < kStreams; ++k) {
      VF sum = hn::Mul(hn::Set(d, post[k]), yv);
      for (int j = 0; j < kStreams; ++j) sum = hn::MulAdd(hn::Set(d, comb[j * kStreams + k]), x[j], sum);
      StoreBf16(d, sum, stream + offset(k, dim) + i);
    }
  }
  for (; i < dim; ++i) {
    float x[kStreams];
    for (int j = 0; j < kStreams; ++j) x[j] = bf16_to_float(stream[offset(j, dim) + i]);
    for (int k = 0; k < kStreams; ++k) {
      float sum = post[k] * bf16_to_float(y[i]);
      for (int j = 0; j < kStreams; ++j) sum = std::fma(comb[j * kStreams + k], x[j], sum);
      stream[offset(k, dim) + i] = float_to_bf16(sum);
    }
  }
}

void ExpandStreams(Context& context, const StepRows& rows, const ExpandArgs& args) {
  context.parallel(rows.count, 1, int64_t{rows.count} * args.dim * 20, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) ExpandRow(args, row);
  });
}

void Tap(Context& context, const StepRows& rows, const TapArgs& args) {
  constexpr float kMean[kStreams] = {0.25f, 0.25f, 0.25f, 0.25f};
  float* scratch = context.scratch<float>(kStageSlot, static_cast<size_t>(padded(args.dim)));
  for (int row = 0; row < rows.count; ++row) {
    CollapseRow(args.stream + offset(row, kStreams * args.dim), args.dim, kMean, scratch);
    NarrowRow(scratch, args.dim, args.taps + offset(row, args.tap_width) + args.column);
  }
}

}  // namespace
}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onelane::cpu {

HWY_EXPORT(MixStreams);
HWY_EXPORT(ExpandStreams);
HWY_EXPORT(Tap);

void embed(Context&, const StepRows& rows, const EmbedArgs& args) {
  for (int row = 0; row < rows.count; ++row) {
    const bf16* source = args.table + offset(rows.token[row], args.dim);
    for (int j = 0; j < kStreams; ++j) {
      std::memcpy(args.stream + offset(int64_t{row} * kStreams + j, args.dim), source,
                  static_cast<size_t>(args.dim) * sizeof(bf16));
    }
  }
}

void mix_streams(Context& context, const StepRows& rows, const MixArgs& args) {
  HWY_DYNAMIC_DISPATCH(MixStreams)(context, rows, args);
}
void expand_streams(Context& context, const StepRows& rows, const ExpandArgs& args) {
  HWY_DYNAMIC_DISPATCH(ExpandStreams)(context, rows, args);
}
void tap(Context& context, const StepRows& rows, const TapArgs& args) {
  HWY_DYNAMIC_DISPATCH(Tap)(context, rows, args);
}

}  // namespace onelane::cpu
#endif
