// The residual stream: embed, mix, expand, tap (spec/model.md 2, 6.3).
#include <algorithm>
#include <cmath>
#include <iterator>

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

// -- Sinkhorn
// ---------------------------------------------------------------------------------------------------------------

// 1 / (1 + e^-x), by the form whose exponential stays below 1.
template <class D>
HWY_INLINE hn::Vec<D> Sigmoids(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0);
  const auto e = Exps(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

// `comb` [4, 4] in place, a matrix per lane: softmax of each row plus eps, then columns and rows in turn (2.2). The
// turns divide whole columns and rows, so only the factor of each is followed: comb[j][k] * by_row[j] * by_column[k].
template <class D>
HWY_INLINE void Sinkhorn(D d, hn::Vec<D> (&comb)[kStreams][kStreams], double eps, int iterations) {
  using V = hn::Vec<D>;
  const V least = hn::Set(d, eps);
  const V one = hn::Set(d, 1.0);
  for (auto& row : comb) {
    const V max = hn::Max(hn::Max(row[0], row[1]), hn::Max(row[2], row[3]));
    for (V& value : row) value = Exps(d, hn::Sub(value, max));
    const V sum = hn::Add(hn::Add(hn::Add(row[0], row[1]), row[2]), row[3]);
    for (V& value : row) value = hn::Add(hn::Div(value, sum), least);
  }
  V by_row[kStreams] = {one, one, one, one};
  V by_column[kStreams] = {one, one, one, one};
  for (int i = 0; i < iterations; ++i) {
    if (i > 0) {
      for (int j = 0; j < kStreams; ++j) {
        V sum = hn::Mul(comb[j][0], by_column[0]);
        for (int k = 1; k < kStreams; ++k) sum = hn::MulAdd(comb[j][k], by_column[k], sum);
        by_row[j] = hn::Div(by_row[j], hn::MulAdd(by_row[j], sum, least));
      }
    }
    for (int k = 0; k < kStreams; ++k) {
      V sum = hn::Mul(comb[0][k], by_row[0]);
      for (int j = 1; j < kStreams; ++j) sum = hn::MulAdd(comb[j][k], by_row[j], sum);
      by_column[k] = hn::Div(by_column[k], hn::MulAdd(by_column[k], sum, least));
    }
  }
  for (int j = 0; j < kStreams; ++j) {
    for (int k = 0; k < kStreams; ++k) comb[j][k] = hn::Mul(comb[j][k], hn::Mul(by_row[j], by_column[k]));
  }
}

// -- mix
// -----------------------------------------------------------------------------------------------------------------

// Coefficients of up to as many rows as `d` has lanes, by their products [rows, kMixes]. `stream`: the rows as doubles.
template <class D>
HWY_INLINE void Coefficients(D d, const MixArgs& args, int64_t row, int count, const double* const* stream,
                             const double* products) {
  const MixWeights& w = args.weights;
  const int width = kStreams * args.dim;
  constexpr size_t kLanes = hn::MaxLanes(D());
  alignas(64) double lanes[kMixes][kLanes] = {};
  for (int r = 0; r < count; ++r) {
    const double root = 1.0 / std::sqrt(SumSquares(stream[r], width) / width + args.norm_eps);
    for (int i = 0; i < kMixes; ++i) {
      const double scale = w.scale[i < kStreams ? 0 : i < 2 * kStreams ? 1 : 2];
      lanes[i][r] = products[offset(r, kMixes) + static_cast<size_t>(i)] * root * scale + w.base[i];
    }
  }
  hn::Vec<D> comb[kStreams][kStreams];
  for (int j = 0; j < kStreams; ++j) {
    const auto post = Sigmoids(d, hn::Load(d, lanes[kStreams + j]));
    hn::Store(hn::Add(Sigmoids(d, hn::Load(d, lanes[j])), hn::Set(d, args.mix_eps)), d, lanes[j]);
    hn::Store(hn::Add(post, post), d, lanes[kStreams + j]);
    for (int k = 0; k < kStreams; ++k) comb[j][k] = hn::Load(d, lanes[(2 + j) * kStreams + k]);
  }
  Sinkhorn(d, comb, args.mix_eps, args.iterations);
  for (int i = 0; i < kStreams * kStreams; ++i) {
    hn::Store(comb[i / kStreams][i % kStreams], d, lanes[2 * kStreams + i]);
  }
  const auto put = [&](float* out, int from, int values) {
    for (int r = 0; r < count; ++r) {
      for (int i = 0; i < values; ++i)
        out[offset(row + r, values) + static_cast<size_t>(i)] = static_cast<float>(lanes[from + i][r]);
    }
  };
  put(args.pre, 0, kStreams);
  put(args.post, kStreams, kStreams);
  put(args.comb, 2 * kStreams, kStreams * kStreams);
}

// Everything after the products of `count` rows: coefficients, collapse, norm. `stream`: the rows as doubles; `x`: a
// padded row of scratch.
void FinishMix(const MixArgs& args, int64_t row, int count, const double* const* stream, const double* products,
               float* x) {
  for (int r = 0; r < count;) {
    const double* of_rows = products + offset(r, kMixes);
    // Lanes that hold no row cost time: a division of eight takes that of four divisions of one.
    if (count - r <= 2) {
      Coefficients(hn::CappedTag<double, 2>(), args, row + r, count - r, stream + r, of_rows);
      break;
    }
    const int together = std::min(L, count - r);
    Coefficients(DD(), args, row + r, together, stream + r, of_rows);
    r += together;
  }
  for (int64_t i = row; i < row + count; ++i) {
    CollapseRow(
        args.stream + offset(i, kStreams * args.dim), args.dim,
        args.collapse_with == nullptr ? args.pre + offset(i, kStreams) : args.collapse_with + offset(i, kStreams), x);
    RmsNormRow(x, args.norm, args.dim, args.norm_eps);
    NarrowRow(x, args.dim, args.x + offset(i, args.dim));
  }
}

void MixStreams(Context& context, const StepRows& rows, const MixArgs& args) {
  const int width = kStreams * args.dim;
  const Activations x = ActivationSpace(context, rows.count, width);
  double* products = context.scratch<double>(kStageSlot, offset(rows.count, kMixes));
  float* collapsed = context.scratch<float>(kStageSlot + 1, offset(context.threads(), padded(args.dim)));
  const auto widen = [&](int64_t row) HWY_ATTR {
    WidenRow(args.stream + offset(row, width), width, x.data + offset(row, padded(width)));
  };
  const auto finish = [&](int64_t row, int count, int share) HWY_ATTR {
    FinishMix(args, row, count, x.row + row, products + offset(row, kMixes),
              collapsed + offset(share, padded(args.dim)));
  };
  const int64_t work = int64_t{rows.count} * width * kMixes;
  if (rows.count == 1) {  // only the products can be shared
    widen(0);
    context.parallel(kMixes, kOutputs, work, [&](int, int64_t begin, int64_t end) HWY_ATTR {
      MixProducts(args.weights.fn, width, static_cast<int>(begin), static_cast<int>(end), x.row, 1, products);
    });
    return finish(0, 1, 0);
  }
  context.parallel(rows.count, 1, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    constexpr int kTogether = std::max(L, kTileRows);
    for (int64_t row = begin; row < end; row += kTogether) {
      const auto count = static_cast<int>(std::min<int64_t>(kTogether, end - row));
      for (int r = 0; r < count; ++r) widen(row + r);
      MixProducts(args.weights.fn, width, 0, kMixes, x.row + row, count, products + offset(row, kMixes));
      finish(row, count, share);
    }
  });
}

// -- expand, tap, embed
// --------------------------------------------------------------------------------------------------

void ExpandRow(const ExpandArgs& args, int64_t row) {
  const DD d;
  const DH dh;
  const int dim = args.dim;
  bf16* stream = args.stream + offset(row, kStreams * dim);
  const bf16* y = args.y + offset(row, dim);
  const float* post = args.post + offset(row, kStreams);
  const float* comb = args.comb + offset(row, kStreams * kStreams);
  int i = 0;
  for (; i + L <= dim; i += L) {
    const VD yv = WidenBf16(y + i);
    VD x[kStreams];
    for (int j = 0; j < kStreams; ++j) x[j] = WidenBf16(stream + offset(j, dim) + i);
    for (int k = 0; k < kStreams; ++k) {
      VD sum = hn::Mul(hn::Set(d, post[k]), yv);
      for (int j = 0; j < kStreams; ++j) sum = hn::MulAdd(hn::Set(d, comb[j * kStreams + k]), x[j], sum);
      StoreBf16(dh, hn::DemoteTo(dh, sum), stream + offset(k, dim) + i);
    }
  }
  for (; i < dim; ++i) {
    double x[kStreams];
    for (int j = 0; j < kStreams; ++j) x[j] = bf16_to_float(stream[offset(j, dim) + i]);
    for (int k = 0; k < kStreams; ++k) {
      double sum = static_cast<double>(post[k]) * bf16_to_float(y[i]);
      for (int j = 0; j < kStreams; ++j) sum += comb[j * kStreams + k] * x[j];
      stream[offset(k, dim) + i] = float_to_bf16(static_cast<float>(sum));
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
  float* spaces = context.scratch<float>(kStageSlot, offset(context.threads(), padded(args.dim)));
  context.parallel(rows.count, 1, int64_t{rows.count} * args.dim * 8,
                   [&](int share, int64_t begin, int64_t end) HWY_ATTR {
                     float* mean = spaces + offset(share, padded(args.dim));
                     for (int64_t row = begin; row < end; ++row) {
                       CollapseRow(args.stream + offset(row, kStreams * args.dim), args.dim, kMean, mean);
                       NarrowRow(mean, args.dim, args.taps + offset(row, args.tap_width) + args.column);
                     }
                   });
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
