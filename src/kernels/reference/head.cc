// Logits, and the drafter's input and Markov chain (spec/model.md 2.3, 2.4, 6.3, 6.4).
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/reference/linear.h"
#include "kernels/reference/mix.h"
#include "kernels/reference/stages.h"
#include "kernels/reference/vector_ops.h"
#include "numerics/formats.h"

namespace onelane::reference {
namespace {

// V4's learned merge of the copies: sigmoid mix with one scale for all four.
void head_mix(const HeadArgs& args, const bf16* stream, float* weights) {
  const std::vector<double> m = mix_products(stream, args.dim, args.mix.fn, kStreams, args.norm_eps);
  for (int j = 0; j < kStreams; ++j) {
    weights[j] = static_cast<float>(sigmoid(m[j] * args.mix.scale[0] + args.mix.base[j]) + args.mix_eps);
  }
}

}  // namespace

void head(const StepRows& rows, const HeadArgs& args) {
  std::vector<bf16> normed(offset(args.count, args.dim));
  for (int i = 0; i < args.count; ++i) {
    const int row = args.rows[i];
    ONELANE_CHECK(row >= 0 && row < rows.count, "the head reads a row that is not in the step");
    const bf16* stream = args.stream + offset(row, kStreams * args.dim);
    float weights[kStreams];
    if (args.collapse_with != nullptr) {
      std::copy_n(args.collapse_with + offset(row, kStreams), kStreams, weights);
    } else {
      head_mix(args, stream, weights);
    }
    bf16* h = normed.data() + offset(i, args.dim);
    collapse(stream, args.dim, weights, h);
    if (args.hidden != nullptr) std::copy_n(h, args.dim, args.hidden + offset(i, args.dim));
    rms_norm(h, args.norm, args.dim, args.norm_eps, h);
  }
  const std::vector<float> logits = multiply(args.head, normed.data(), args.count);
  std::copy(logits.begin(), logits.end(), args.logits);
}

void main_input(const StepRows& rows, const MainInputArgs& args) {
  const int dim = args.main_proj.out;
  const std::vector<bf16> projected = multiply_rounded(args.main_proj, args.taps, rows.count);
  for (int row = 0; row < rows.count; ++row) {
    rms_norm(projected.data() + offset(row, dim), args.norm, dim, args.norm_eps, args.main_x + offset(row, dim));
  }
}

void markov(const StepRows& rows, const MarkovArgs& args) {
  const int32_t previous = args.prev != nullptr ? *args.prev : rows.token[args.row];
  const std::vector<bf16> none(static_cast<size_t>(args.rank));
  const bf16* embedded = previous < 0 ? none.data() : args.w1 + offset(previous, args.rank);
  const std::vector<float> bias = multiply(args.w2, embedded, 1);
  for (size_t v = 0; v < bias.size(); ++v) args.logits[v] += bias[v];
  if (args.confidence_out == nullptr) return;
  ONELANE_CHECK(args.confidence.in == args.dim + args.rank, "the confidence head reads hidden and embedding");
  std::vector<bf16> joined(args.hidden, args.hidden + args.dim);
  joined.insert(joined.end(), embedded, embedded + args.rank);
  *args.confidence_out = multiply(args.confidence, joined.data(), 1)[0];
}

void choose(const ChooseArgs& args) {
  for (int i = 0; i < args.count; ++i) {
    const float* logits = args.logits + offset(i, args.vocab);
    const auto finite = [](float value) { return std::isfinite(value); };
    const bool sound = std::all_of(logits, logits + args.vocab, finite);
    args.best[i] = sound ? static_cast<int32_t>(std::max_element(logits, logits + args.vocab) - logits) : -1;
  }
}

}  // namespace onelane::reference
