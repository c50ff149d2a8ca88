// Router and experts (spec/model.md section 5).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/experts.cc"
#include "kernels/cpu/targets.h"
//
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/stages.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

enum : size_t {
  kScoreSlot = kStageSlot,
  kBiasedSlot,
  kBucketSlot,
  kPairSlot,
  kPairRowSlot,
  kInnerSlot,
  kSpaceSlot,
  kOutputSlot,
};

// -- router
// --------------------------------------------------------------------------------------------------------------

float RouterScore(float z) {
  const double softplus = z > 20.0f ? z : std::log1p(std::exp(static_cast<double>(z)));
  return static_cast<float>(std::sqrt(softplus));
}

// topk largest biased scores, best first, ties to the lower number; a NaN counts as -inf, so that the choice stays a
// choice of experts. `biased` [experts]: scratch.
void Choose(const float* scores, const RouteArgs& args, float* biased, int32_t* ids) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (int e = 0; e < args.experts; ++e) {
    const float value = scores[e] + args.bias[e];
    biased[e] = std::isnan(value) ? kNone : value;
  }
  for (int k = 0; k < args.topk; ++k) {
    int best = -1;
    for (int e = 0; e < args.experts; ++e) {
      if (!std::isnan(biased[e]) && (best < 0 || biased[e] > biased[best])) best = e;
    }
    ids[k] = best;
    biased[best] = std::numeric_limits<float>::quiet_NaN();  // taken
  }
}

void WeighChoice(const float* scores, const RouteArgs& args, const int32_t* ids, float* weights) {
  double sum = 0;
  for (int k = 0; k < args.topk; ++k) sum += scores[ids[k]];
  for (int k = 0; k < args.topk; ++k) {
    double weight = scores[ids[k]];
    if (args.normalise) weight = sum == 0 ? 1.0 / args.topk : weight / (sum + args.norm_eps);
    weights[k] = static_cast<float>(weight * args.scale);
  }
}

void Route(Context& context, const StepRows& rows, const RouteArgs& args) {
  ONELANE_CHECK((args.bias == nullptr) != (args.tid2eid == nullptr), "a router scores or looks up, one of the two");
  ONELANE_CHECK(args.topk <= args.experts, "more experts chosen than there are");
  const int experts = args.experts;
  float* scores = context.scratch<float>(kScoreSlot, offset(rows.count, experts));
  float* biased = context.scratch<float>(kBiasedSlot, offset(context.threads(), experts));
  const Activations x = MakeActivations(context, args.x, rows.count, args.dim, args.gate.act_block);
  SharedProduct(context, args.gate, x, rows.count, ToFloat{scores, static_cast<size_t>(experts)});
  const int64_t work = int64_t{rows.count} * experts * (40 + args.topk);
  context.parallel(rows.count, 1, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) {
      float* s = scores + offset(row, experts);
      for (int e = 0; e < experts; ++e) s[e] = RouterScore(s[e]);
      int32_t* ids = args.ids + offset(row, args.topk);
      if (args.tid2eid == nullptr) {
        Choose(s, args, biased + offset(share, experts), ids);
      } else {
        for (int k = 0; k < args.topk; ++k) {
          ids[k] = static_cast<int32_t>(args.tid2eid[offset(rows.token[row], args.topk) + static_cast<size_t>(k)]);
          ONELANE_CHECK(ids[k] >= 0 && ids[k] < experts, "tid2eid names an expert that does not exist");
        }
      }
      WeighChoice(s, args, ids, args.weights + offset(row, args.topk));
    }
  });
}

// -- experts
// -------------------------------------------------------------------------------------------------------------

// The (row, slot) pairs of the step, those of an expert together; the shared expert comes last, with every row.
struct Bucket {
  const ExpertWeights* expert;
  int begin;
  int end;
};
struct Pairs {
  Bucket* bucket;
  int buckets;
  float* weight;     // [pairs]
  int32_t* of_slot;  // [rows, topk + 1] the pair of a row's slot
  const double** x;  // [pairs] activations of the pair's row
  int count;
};

Pairs SortPairs(Context& context, int rows, const ExpertsArgs& args, const Activations& x, const Activations& shared) {
  const int slots = args.topk + 1;
  const auto count = static_cast<size_t>(rows * slots);
  const auto experts = static_cast<size_t>(args.expert_count);
  Pairs pairs{};
  pairs.bucket = context.scratch<Bucket>(kBucketSlot, experts + 1);
  auto* integers = context.scratch<int32_t>(kPairSlot, 2 * count + experts + 1);
  pairs.of_slot = integers;
  pairs.weight = reinterpret_cast<float*>(integers + count);
  int32_t* next = integers + 2 * count;  // [experts + 1] where the expert's next pair goes
  pairs.x = context.scratch<const double*>(kPairRowSlot, count);

  std::fill(next, next + experts + 1, 0);
  for (int i = 0; i < rows * args.topk; ++i) {
    ONELANE_CHECK(args.ids[i] >= 0 && args.ids[i] < args.expert_count, "no such expert");
    ++next[args.ids[i]];
  }
  next[experts] = rows;
  for (int e = 0; e <= args.expert_count; ++e) {
    const int size = next[e];
    next[e] = pairs.count;
    if (size == 0) continue;
    pairs.bucket[pairs.buckets++] = {e == args.expert_count ? &args.shared : &args.experts[e], pairs.count,
                                     pairs.count + size};
    pairs.count += size;
  }
  for (int row = 0; row < rows; ++row) {
    for (int slot = 0; slot < slots; ++slot) {
      const bool is_shared = slot == args.topk;
      const size_t at = offset(row, args.topk) + static_cast<size_t>(slot);
      const int pair = next[is_shared ? args.expert_count : args.ids[at]]++;
      pairs.of_slot[offset(row, slots) + static_cast<size_t>(slot)] = pair;
      pairs.weight[pair] = is_shared ? 1.0f : args.weights[at];
      pairs.x[pair] = is_shared ? shared.row[row] : x.row[row];
    }
  }
  return pairs;
}

// out[i] = round(weight * (silu(g[i]) * u[i])), clamped as in 5.2. A NaN stays.
HWY_INLINE void Activate(const float* g, const float* u, int count, float weight, float limit, bf16* out) {
  const DH d;
  const DD dd;
  const VH most = hn::Set(d, limit);
  const VH least = hn::Set(d, -limit);
  const VD one = hn::Set(dd, 1.0);
  const auto activate = [&](VH gate, VH up) HWY_ATTR {
    gate = hn::IfThenElse(hn::Gt(gate, most), most, gate);
    up = hn::IfThenElse(hn::Gt(up, most), most, hn::IfThenElse(hn::Lt(up, least), least, up));
    // Of the two forms of the logistic function the one whose exponential stays below 1.
    const VD wide = hn::PromoteTo(dd, gate);
    const VD e = Exp(hn::Neg(hn::Abs(wide)));
    const VD numerator = hn::IfThenElse(hn::Lt(wide, hn::Zero(dd)), e, one);
    const VH silu = hn::DemoteTo(d, hn::Div(hn::Mul(wide, numerator), hn::Add(one, e)));
    return hn::Mul(hn::Set(d, weight), hn::Mul(silu, up));
  };
  int i = 0;
  for (; i + L <= count; i += L) StoreBf16(d, activate(hn::LoadU(d, g + i), hn::LoadU(d, u + i)), out + i);
  if (i == count) return;
  alignas(64) float tail_g[L] = {};
  alignas(64) float tail_u[L] = {};
  alignas(64) bf16 tail[L];
  std::memcpy(tail_g, g + i, static_cast<size_t>(count - i) * sizeof(float));
  std::memcpy(tail_u, u + i, static_cast<size_t>(count - i) * sizeof(float));
  StoreBf16(d, activate(hn::Load(d, tail_g), hn::Load(d, tail_u)), tail);
  std::memcpy(out + i, tail, static_cast<size_t>(count - i) * sizeof(bf16));
}

constexpr int kChunk = 64;  // inner values computed, then activated, at a time

// Inner values [begin, end) of every pair: a [pairs, inter].
void InnerValues(const ExpertsArgs& args, const Pairs& pairs, int begin, int end, double* panel, float* space,
                 bf16* a) {
  for (int b = 0; b < pairs.buckets; ++b) {
    const Bucket& bucket = pairs.bucket[b];
    const int count = bucket.end - bucket.begin;
    float* gate = space;
    float* up = space + offset(count, kChunk);
    for (int from = begin; from < end; from += kChunk) {
      const int to = std::min(from + kChunk, end);
      const auto into = [&](float* out) HWY_ATTR {
        return [=](int row, int output, int, auto sums) HWY_ATTR {
          hn::StoreU(sums, hn::DFromV<decltype(sums)>(), out + offset(row, kChunk) + output - from);
        };
      };
      ProductBf16(bucket.expert->w1, from, to, pairs.x + bucket.begin, count, panel, into(gate));
      ProductBf16(bucket.expert->w3, from, to, pairs.x + bucket.begin, count, panel, into(up));
      for (int i = 0; i < count; ++i) {
        const int pair = bucket.begin + i;
        Activate(gate + offset(i, kChunk), up + offset(i, kChunk), to - from, pairs.weight[pair], args.limit,
                 a + offset(pair, args.inter) + from);
      }
    }
  }
}

void Experts(Context& context, const StepRows& rows, const ExpertsArgs& args) {
  ONELANE_CHECK(args.expert_count > 0 && args.shared.w1.out == args.inter, "experts share the inner width");
  ONELANE_CHECK(args.inter % kOutputs == 0 && args.dim % kOutputs == 0, "widths must be whole tiles");
  const int block = args.experts[0].w1.act_block;
  const Activations x = MakeActivations(context, args.x, rows.count, args.dim, block);
  Activations x_shared = x;
  if (args.shared.w1.act_block != block) {
    x_shared = MakeActivations(context, args.x, rows.count, args.dim, args.shared.w1.act_block, kRow2Slot);
  }
  const Pairs pairs = SortPairs(context, rows.count, args, x, x_shared);

  bf16* inner = context.scratch<bf16>(kInnerSlot, offset(pairs.count, args.inter));
  const Panels panels = MakePanels(context, std::max(args.dim, args.inter));
  const size_t space = offset(2 * std::max(rows.count * args.topk, rows.count), kChunk);
  float* spaces = context.scratch<float>(kSpaceSlot, space * static_cast<size_t>(context.threads()));
  const int64_t work = int64_t{pairs.count} * args.dim * args.inter;
  // Every thread takes its share of every expert's outputs, so that an expert with many rows burdens all alike.
  context.parallel(args.inter, kOutputs, 2 * work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    InnerValues(args, pairs, static_cast<int>(begin), static_cast<int>(end), panels.of(share),
                spaces + space * static_cast<size_t>(share), inner);
  });

  const Activations a = ActivationSpace(context, pairs.count, args.inter, kRow2Slot);
  context.parallel(pairs.count, 1, int64_t{pairs.count} * args.inter * kQuantiseWork,
                   [&](int, int64_t begin, int64_t end) HWY_ATTR {
                     const int shared_from = pairs.bucket[pairs.buckets - 1].begin;
                     for (int64_t pair = begin; pair < end; ++pair) {
                       const Matrix& w2 = pair >= shared_from ? args.shared.w2 : args.experts[0].w2;
                       ActivationRow(inner + offset(pair, args.inter), args.inter, w2.act_block,
                                     a.data + offset(pair, padded(args.inter)));
                     }
                   });

  float* y = context.scratch<float>(kOutputSlot, offset(pairs.count, args.dim));
  context.parallel(args.dim, kOutputs, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    const D4 d4;
    for (int b = 0; b < pairs.buckets; ++b) {
      const Bucket& bucket = pairs.bucket[b];
      ProductBf16(bucket.expert->w2, static_cast<int>(begin), static_cast<int>(end), a.row + bucket.begin,
                  bucket.end - bucket.begin, panels.of(share), [&](int row, int output, int, auto sums) HWY_ATTR {
                    hn::StoreU(sums, hn::DFromV<decltype(sums)>(), y + offset(bucket.begin + row, args.dim) + output);
                  });
    }
    for (int row = 0; row < rows.count; ++row) {
      const int32_t* slots = pairs.of_slot + offset(row, args.topk + 1);
      for (int64_t i = begin; i < end; i += kOutputs) {
        double sum[kOutputs] = {};
        for (int slot = 0; slot <= args.topk; ++slot) {
          const float* part = y + offset(slots[slot], args.dim) + i;
          for (int c = 0; c < kOutputs; ++c) sum[c] += part[c];
        }
        StoreBf16(d4, Narrow4(sum), args.y + offset(row, args.dim) + i);
      }
    }
  });
}

}  // namespace
}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onelane::cpu {

HWY_EXPORT(Route);
HWY_EXPORT(Experts);

void route(Context& context, const StepRows& rows, const RouteArgs& args) {
  HWY_DYNAMIC_DISPATCH(Route)(context, rows, args);
}
void experts(Context& context, const StepRows& rows, const ExpertsArgs& args) {
  HWY_DYNAMIC_DISPATCH(Experts)(context, rows, args);
}

}  // namespace onelane::cpu
#endif
