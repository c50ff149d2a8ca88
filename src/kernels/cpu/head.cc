// Logits and the drafter's Markov chain (spec/model.md 2.3, 2.4, 6.4).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/head.cc"
#include "kernels/cpu/targets.h"
//
#include <cmath>

#include <hwy/foreach_target.h>

#include "kernels/cpu/stages.h"
#include "kernels/cpu/streams-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

// V4's learned merge of the copies: a sigmoid mix with one scale for all four. `stream`: 4 * dim doubles.
void HeadMix(const HeadArgs& args, const double* stream, float* weights) {
  const int width = kStreams * args.dim;
  double products[kMixes];
  MixProducts(args.mix.fn, width, 0, kStreams, &stream, 1, products);
  const double r = 1.0 / std::sqrt(SumSquares(stream, width) / width + args.norm_eps);
  for (int j = 0; j < kStreams; ++j) {
    weights[j] = static_cast<float>(Sigmoid(products[j] * r * args.mix.scale[0] + args.mix.base[j]) + args.mix_eps);
  }
}

void Head(Context& context, const StepRows& rows, const HeadArgs& args) {
  const int dim = args.dim;
  ONELANE_CHECK(args.head.in == dim, "the head reads the hidden state");
  const Activations h = ActivationSpace(context, args.count, dim);
  const size_t stream_doubles = offset(1, padded(kStreams * dim));
  double* streams = context.scratch<double>(kStageSlot, stream_doubles * static_cast<size_t>(context.threads()));
  float* hiddens = context.scratch<float>(kStageSlot + 1, offset(context.threads(), padded(dim)));
  const int64_t work = int64_t{args.count} * dim * kStreams * 2;
  context.parallel(args.count, 1, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    double* stream = streams + stream_doubles * static_cast<size_t>(share);
    float* hidden = hiddens + offset(share, padded(dim));
    for (int64_t i = begin; i < end; ++i) {
      const int row = args.rows[i];
      ONELANE_CHECK(row >= 0 && row < rows.count, "the head reads a row that is not in the step");
      const bf16* source = args.stream + offset(row, int64_t{kStreams} * dim);
      float weights[kStreams];
      if (args.collapse_with != nullptr) {
        std::memcpy(weights, args.collapse_with + offset(row, kStreams), sizeof(weights));
      } else {
        WidenRow(source, kStreams * dim, stream);
        HeadMix(args, stream, weights);
      }
      CollapseRow(source, dim, weights, hidden);
      if (args.hidden != nullptr) NarrowRow(hidden, dim, args.hidden + offset(i, dim));
      RmsNormRow(hidden, args.norm, dim, args.norm_eps);
      WidenRow(hidden, dim, h.data + offset(i, padded(dim)));
    }
  });
  SharedProduct(context, args.head, h, args.count, ToFloat{args.logits, static_cast<size_t>(args.head.out)});
}

void Markov(Context& context, const StepRows& rows, const MarkovArgs& args) {
  ONELANE_CHECK(args.w2.in == args.rank, "w2 reads the embedding");
  const int32_t previous = args.prev != nullptr ? *args.prev : rows.token[args.row];
  const std::vector<bf16> none(previous < 0 ? static_cast<size_t>(args.rank) : 0);
  const bf16* embedded = previous < 0 ? none.data() : args.w1 + offset(previous, args.rank);
  const Activations x = MakeActivations(context, embedded, 1, args.rank, 0);
  SharedProduct(context, args.w2, x, 1, [&](int, int output, int valid, auto sums) HWY_ATTR {
    const hn::DFromV<decltype(sums)> d;
    float* logits = args.logits + output;
    if (valid == hn::MaxLanes(d)) return hn::StoreU(hn::Add(hn::LoadU(d, logits), sums), d, logits);
    alignas(64) float lanes[hn::MaxLanes(d)];
    hn::Store(sums, d, lanes);
    for (int c = 0; c < valid; ++c) logits[c] += lanes[c];
  });
  if (args.confidence_out == nullptr) return;
  ONELANE_CHECK(args.confidence.in == args.dim + args.rank && args.confidence.out == 1,
                "the confidence head reads hidden and embedding");
  const Activations joined = ActivationSpace(context, 1, args.dim + args.rank, kRow2Slot);
  bf16* both = context.scratch<bf16>(kStageSlot, static_cast<size_t>(args.dim + args.rank));
  std::memcpy(both, args.hidden, static_cast<size_t>(args.dim) * sizeof(bf16));
  std::memcpy(both + args.dim, embedded, static_cast<size_t>(args.rank) * sizeof(bf16));
  WidenRow(both, args.dim + args.rank, joined.data);
  const Panels panels = MakePanels(context, joined.width);
  Product(args.confidence, 0, 1, joined.row, 1, panels.of(0), ToFloat{args.confidence_out, 1});
}

}  // namespace
}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onelane::cpu {

HWY_EXPORT(Head);
HWY_EXPORT(Markov);

void head(Context& context, const StepRows& rows, const HeadArgs& args) {
  HWY_DYNAMIC_DISPATCH(Head)(context, rows, args);
}
void markov(Context& context, const StepRows& rows, const MarkovArgs& args) {
  HWY_DYNAMIC_DISPATCH(Markov)(context, rows, args);
}

void choose(Context& context, const ChooseArgs& args) {
  context.take(args.count, int64_t{args.count} * args.vocab, [&](int, int64_t i) {
    const float* logits = args.logits + static_cast<size_t>(i) * static_cast<size_t>(args.vocab);
    int32_t best = 0;
    bool finite = true;
    for (int32_t id = 0; id < args.vocab; ++id) {
      finite &= std::isfinite(logits[id]);
      if (logits[id] > logits[best]) best = id;
    }
    args.best[i] = finite ? best : -1;
  });
}

}  // namespace onelane::cpu
#endif
