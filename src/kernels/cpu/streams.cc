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

// `comb` [4, 4] in place: softmax of each row plus eps, then columns and rows in turn (2.2). The turns divide whole
// columns and rows, so only the factor of each is followed: comb[j][k] * by_row[j] * by_column[k].
void Sinkhorn(double (&comb)[kStreams][kStreams], double eps, int iterations) {
  for (auto& row : comb) {
    const double max = *std::max_element(std::begin(row), std::end(row));
    double sum = 0;
    for (double& value : row) sum += value = std::exp(value - max);
    for (double& value : row) value = value / sum + eps;
  }
  double by_row[kStreams] = {1, 1, 1, 1};
  double by_column[kStreams] = {1, 1, 1, 1};
  for (int i = 0; i < iterations; ++i) {
    if (i > 0) {
      for (int j = 0; j < kStreams; ++j) {
        double sum = 0;
        for (int k = 0; k < kStreams; ++k) sum += comb[j][k] * by_column[k];
        by_row[j] /= by_row[j] * sum + eps;
      }
    }
    double sums[kStreams] = {};
    for (int j = 0; j < kStreams; ++j) {
      for (int k = 0; k < kStreams; ++k) sums[k] += comb[j][k] * by_row[j];
    }
    for (int k = 0; k < kStreams; ++k) by_column[k] /= by_column[k] * sums[k] + eps;
  }
  for (int j = 0; j < kStreams; ++j) {
    for (int k = 0; k < kStreams; ++k) comb[j][k] *= by_row[j] * by_column[k];
  }
}

// -- mix
// -----------------------------------------------------------------------------------------------------------------

// Everything after the products: coefficients, collapse, norm. `stream`: the row's, as doubles; `x`: a padded row of
// scratch.
void FinishMix(const MixArgs& args, int64_t row, const double* stream, const double* products, float* x) {
  const MixWeights& w = args.weights;
  const int width = kStreams * args.dim;
  const double r = 1.0 / std::sqrt(SumSquares(stream, width) / width + args.norm_eps);
  double m[kMixes];
  for (int i = 0; i < kMixes; ++i) {
    const double scale = w.scale[i < kStreams ? 0 : i < 2 * kStreams ? 1 : 2];
    m[i] = products[i] * r * scale + w.base[i];
  }
  float* pre = args.pre + offset(row, kStreams);
  float* post = args.post + offset(row, kStreams);
  float* comb = args.comb + offset(row, kStreams * kStreams);
  for (int j = 0; j < kStreams; ++j) {
    pre[j] = static_cast<float>(Sigmoid(m[j]) + args.mix_eps);
    post[j] = static_cast<float>(2 * Sigmoid(m[kStreams + j]));
  }
  double square[kStreams][kStreams];
  std::memcpy(square, m + 2 * kStreams, sizeof(square));
  Sinkhorn(square, args.mix_eps, args.iterations);
  for (int i = 0; i < kStreams * kStreams; ++i) comb[i] = static_cast<float>(square[i / kStreams][i % kStreams]);
  CollapseRow(args.stream + offset(row, width), args.dim,
              args.collapse_with == nullptr ? pre : args.collapse_with + offset(row, kStreams), x);
  RmsNormRow(x, args.norm, args.dim, args.norm_eps);
  NarrowRow(x, args.dim, args.x + offset(row, args.dim));
}

void MixStreams(Context& context, const StepRows& rows, const MixArgs& args) {
  const int width = kStreams * args.dim;
  const Activations x = ActivationSpace(context, rows.count, width);
  double* products = context.scratch<double>(kStageSlot, offset(rows.count, kMixes));
  float* collapsed = context.scratch<float>(kStageSlot + 1, offset(context.threads(), padded(args.dim)));
  const auto widen = [&](int64_t row) HWY_ATTR {
    WidenRow(args.stream + offset(row, width), width, x.data + offset(row, padded(width)));
  };
  const auto finish = [&](int64_t row, int share) HWY_ATTR {
    FinishMix(args, row, x.data + offset(row, padded(width)), products + offset(row, kMixes),
              collapsed + offset(share, padded(args.dim)));
  };
  const int64_t work = int64_t{rows.count} * width * kMixes;
  if (rows.count == 1) {  // only the products can be shared
    widen(0);
    context.parallel(kMixes, kOutputs, work, [&](int, int64_t begin, int64_t end) HWY_ATTR {
      MixProducts(args.weights.fn, width, static_cast<int>(begin), static_cast<int>(end), x.row, 1, products);
    });
    return finish(0, 0);
  }
  context.parallel(rows.count, 1, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t row = begin; row < end; row += kTileRows) {
      const auto tile = static_cast<int>(std::min<int64_t>(kTileRows, end - row));
      for (int r = 0; r < tile; ++r) widen(row + r);
      MixProducts(args.weights.fn, width, 0, kMixes, x.row + row, tile, products + offset(row, kMixes));
      for (int r = 0; r < tile; ++r) finish(row + r, share);
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
