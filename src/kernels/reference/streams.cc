// The residual stream: embed, mix, expand, tap (spec/model.md sections 2 and 6.3).
#include "kernels/reference/mix.h"
#include "kernels/reference/stages.h"
#include "kernels/reference/vector_ops.h"
#include "numerics/formats.h"

namespace onelane::reference {

void embed(const StepRows& rows, const EmbedArgs& args) {
  for (int row = 0; row < rows.count; ++row) {
    const bf16* source = args.table + offset(rows.token[row], args.dim);
    for (int j = 0; j < kStreams; ++j) {
      bf16* copy = args.stream + offset(row * kStreams + j, args.dim);
      for (int d = 0; d < args.dim; ++d) copy[d] = source[d];
    }
  }
}

void mix_streams(const StepRows& rows, const MixArgs& args) {
  const MixWeights& w = args.weights;
  for (int row = 0; row < rows.count; ++row) {
    const bf16* stream = args.stream + offset(row, kStreams * args.dim);
    const std::vector<double> m = mix_products(stream, args.dim, w.fn, kMixes, args.norm_eps);
    float* pre = args.pre + offset(row, kStreams);
    float* post = args.post + offset(row, kStreams);
    double comb[kStreams][kStreams];
    for (int j = 0; j < kStreams; ++j) {
      const int at_post = kStreams + j;
      pre[j] = static_cast<float>(sigmoid(m[j] * w.scale[0] + w.base[j]) + args.mix_eps);
      post[j] = static_cast<float>(2 * sigmoid(m[at_post] * w.scale[1] + w.base[at_post]));
      for (int k = 0; k < kStreams; ++k) {
        const int at_comb = 2 * kStreams + j * kStreams + k;
        comb[j][k] = m[at_comb] * w.scale[2] + w.base[at_comb];
      }
    }
    sinkhorn(comb, args.mix_eps, args.iterations);
    float* comb_out = args.comb + offset(row, kStreams * kStreams);
    for (int j = 0; j < kStreams; ++j) {
      for (int k = 0; k < kStreams; ++k) comb_out[j * kStreams + k] = static_cast<float>(comb[j][k]);
    }
    bf16* x = args.x + offset(row, args.dim);
    const float* weights = args.collapse_with == nullptr ? pre : args.collapse_with + offset(row, kStreams);
    collapse(stream, args.dim, weights, x);
    rms_norm(x, args.norm, args.dim, args.norm_eps, x);
  }
}

void expand_streams(const StepRows& rows, const ExpandArgs& args) {
  for (int row = 0; row < rows.count; ++row) {
    bf16* stream = args.stream + offset(row, kStreams * args.dim);
    const bf16* y = args.y + offset(row, args.dim);
    const float* post = args.post + offset(row, kStreams);
    const float* comb = args.comb + offset(row, kStreams * kStreams);
    for (int d = 0; d < args.dim; ++d) {
      bf16 out[kStreams];
      for (int k = 0; k < kStreams; ++k) {
        double sum = static_cast<double>(post[k]) * bf16_to_float(y[d]);
        for (int j = 0; j < kStreams; ++j) {
          sum += static_cast<double>(comb[j * kStreams + k]) * bf16_to_float(stream[offset(j, args.dim) + d]);
        }
        out[k] = float_to_bf16(static_cast<float>(sum));
      }
      for (int k = 0; k < kStreams; ++k) stream[offset(k, args.dim) + d] = out[k];
    }
  }
}

void tap(const StepRows& rows, const TapArgs& args) {
  const float mean[kStreams] = {0.25f, 0.25f, 0.25f, 0.25f};
  for (int row = 0; row < rows.count; ++row) {
    collapse(args.stream + offset(row, kStreams * args.dim), args.dim, mean,
             args.taps + offset(row, args.tap_width) + args.column);
  }
}

}  // namespace onelane::reference
