// Attention of four heads over one row's list of entries: scores, their weights, the weighted sums of the values.
//
// Scores and denominators are sums in double: they go into an exponential, where an error in the last place of a float
// would show. The weighted sums are rounded to bf16 at once; they run in float over chunks of entries, with a bound on
// their error, and only outputs with a rounding boundary within the bound are taken again in double.
#include "kernels/cpu/targets.h"
//
#include "kernels/cpu/records-inl.h"
#include "kernels/cpu/simd-inl.h"

#if defined(ONELANE_CPU_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_ATTEND_INL_H_
#undef ONELANE_CPU_ATTEND_INL_H_
#else
#define ONELANE_CPU_ATTEND_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

inline constexpr int kHeads = 4;      // share every load of an entry
inline constexpr int kEntries = 4;    // scored at a time
inline constexpr int kSumChunk = 16;  // entries summed in registers before the sum is added to that of their block
inline constexpr int kHalf =
    kHeadDim / 2;  // channels of a score that are summed on their own, so that two can share it
static_assert(kAttendBlock % kSumChunk == 0 && kHalf % kChannels == 0);

// What four heads make of a list of `count` entries, in scratch of weight_doubles(count) doubles.
struct HeadWeights {
  int count;
  int stride;           // padded(count)
  int blocks;           // of kAttendBlock entries
  double* denominator;  // [kHeads]
  double* total;        // [kHeads] the denominator without the sink: at least 1
  double* rescale;      // [kHeads, blocks] exp(running maximum - final maximum)
  double* dots;         // [2, kHeads, stride] q . entry, over either half of the channels; then the first of them
                        // hold p times the block's rescale
  float* scores;        // [kHeads, stride]
  float* p;             // [kHeads, stride] probabilities against the running maximum, rounded to bf16
  float* most;  // [stride] the largest of the heads' rescaled probabilities over their totals, or a little more,
                // times the entry's kRoundings

  HeadWeights(int entries, double* space)
      : count(entries), stride(padded(entries)), blocks((entries + kAttendBlock - 1) / kAttendBlock) {
    denominator = space;
    total = denominator + kHeads;
    rescale = total + kHeads;
    dots = rescale + kHeads * blocks;
    scores = reinterpret_cast<float*>(dots + 2 * kHeads * stride);
    p = scores + kHeads * stride;
    most = p + kHeads * stride;
  }
};
inline size_t weight_doubles(int count) {
  const int blocks = (count + kAttendBlock - 1) / kAttendBlock;
  return offset(kHeads, 2 + blocks + 2 * padded(count)) + offset(2 * kHeads + 1, padded(count)) / 2;
}

// -- scores
// --------------------------------------------------------------------------------------------------------

// The entries of a list as floats: half of the channels in its order, or all wherever the list says, kChannels of every
// record together, because that is how outputs walk them.
struct DecodedHalf {
  const float* values;  // [count, kHalf]
  int first;            // channel
  HWY_INLINE const float* at(int t, int channel) const { return values + offset(t, kHalf) + channel - first; }
};
struct ListedRow {
  const float* values;  // [kHeadDim / kChannels, records, kChannels]
  int records;
  const int32_t* list;
  // `channel` begins such a part, or a vector inside.
  HWY_INLINE const float* at(int t, int channel) const {
    const int part = channel / kChannels;
    return values + offset(int64_t{part} * records + list[t], kChannels) + channel % kChannels;
  }
};

// Dot products of the entries [t, t + kEntries) with the queries, over the channels [kHalf * half, ... + kHalf). `q`
// has kHeads rows of 512.
template <class Values>
HWY_INLINE void Dots(const Values& values, const double* q, int half, int t, const HeadWeights& weights) {
  const DD d;
  constexpr int kTogether = HWY_TARGET == HWY_AVX3 ? kEntries : 2;  // kHeads * kTogether sums in registers
  double* dots = weights.dots + half * kHeads * weights.stride + t;
  for (int first = 0; first < kEntries; first += kTogether) {
    VD acc[kHeads][kTogether];
    for (auto& head : acc) {
      for (VD& sum : head) sum = hn::Zero(d);
    }
    for (int at = kHalf * half; at < kHalf * (half + 1); at += kChannels) {
      const float* entries[kTogether];
      for (int e = 0; e < kTogether; ++e) entries[e] = values.at(std::min(t + first + e, weights.count - 1), at);
      for (int i = 0; i < kChannels; i += L) {
        VD entry[kTogether];
        for (int e = 0; e < kTogether; ++e) entry[e] = WidenFloats(entries[e] + i);
        for (int h = 0; h < kHeads; ++h) {
          const VD qv = hn::LoadU(d, q + h * kHeadDim + at + i);
          for (int e = 0; e < kTogether; ++e) acc[h][e] = hn::MulAdd(qv, entry[e], acc[h][e]);
        }
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      double* sums = dots + h * weights.stride + first;
      if constexpr (kTogether == 4) {
        Sum4(acc[h][0], acc[h][1], acc[h][2], acc[h][3], sums);
        continue;
      }
      double four[4];
      Sum4(acc[h][0], acc[h][1], acc[h][kTogether - 2], acc[h][kTogether - 1], four);
      std::copy_n(four, kTogether, sums);
    }
  }
}

// Largest of the scores [begin, begin + kAttendBlock), of which `count` in all exist; the padding behind them is -inf.
inline HWY_ATTR float BlockMax(const float* scores, int begin, int count) {
  const DF d;
  VF most = hn::LoadU(d, scores + begin);
  for (int t = begin + N; t < std::min(begin + kAttendBlock, padded(count)); t += N) {
    most = hn::Max(most, hn::LoadU(d, scores + t));
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// How many roundings, each relative to the sum of magnitudes, a product of entry t goes through in Accumulate() and
// Outputs(): those of its chunk's chain that follow (the first product starts it, exactly), of the chunks of its block,
// two by the block's factor, of the chain of the blocks, and three by the quotient: the sum with its bound, the
// inverse, the product.
struct Roundings {
  alignas(64) float in_block[kAttendBlock];  // all but the chain of the blocks
  constexpr Roundings() : in_block() {
    for (int t = 0; t < kAttendBlock; ++t) {
      const int chunk = kSumChunk - std::max(1, t % kSumChunk);
      in_block[t] = static_cast<float>(chunk + kAttendBlock / kSumChunk - std::max(1, t / kSumChunk) + 2 + 3);
    }
  }
  // Of the entries [t, t + L), which lie in one block.
  HWY_INLINE hn::Vec<DH> at(int t, int blocks) const {
    const auto of_blocks = static_cast<float>(blocks - std::max(1, t / kAttendBlock));
    return hn::Add(hn::LoadU(DH(), in_block + t % kAttendBlock), hn::Set(DH(), of_blocks));
  }
};
inline constexpr Roundings kRoundings;

// Everything in `weights` from the dot products of heads [head, head + kHeads); `sinks` [heads].
inline HWY_ATTR void Weigh(const float* sinks, int heads, int head, const HeadWeights& weights) {
  const DD d;
  const DH dh;
  using VH = hn::Vec<DH>;
  const int count = weights.count;
  const double scale = 1.0 / std::sqrt(static_cast<double>(kHeadDim));
  for (int h = 0; h < kHeads; ++h) {
    float* row = weights.scores + h * weights.stride;
    float* p = weights.p + h * weights.stride;
    double* lower = weights.dots + h * weights.stride;
    const double* upper = lower + kHeads * weights.stride;
    for (int t = 0; t < count; t += L) {
      const VD dot = hn::Add(hn::LoadU(d, lower + t), hn::LoadU(d, upper + t));
      hn::StoreU(hn::DemoteTo(dh, hn::Mul(dot, hn::Set(d, scale))), dh, row + t);
    }
    for (int t = count; t < padded(count); ++t) row[t] = -std::numeric_limits<float>::infinity();
    float max = -std::numeric_limits<float>::infinity();
    for (int begin = 0; begin < count; begin += kAttendBlock) max = std::max(max, BlockMax(row, begin, count));
    float running = -std::numeric_limits<float>::infinity();
    VD total = hn::Zero(d);
    for (int block = 0; block < weights.blocks; ++block) {
      const int begin = block * kAttendBlock;
      const int end = std::min(begin + kAttendBlock, padded(count));
      running = std::max(running, BlockMax(row, begin, count));
      const VD vrunning = hn::Set(d, running);
      const double rescale = running == max ? 1.0 : std::exp(static_cast<double>(running) - max);
      weights.rescale[h * weights.blocks + block] = rescale;
      for (int t = begin; t < end; t += L) {
        const VD e = Exp(hn::Sub(WidenFloats(row + t), vrunning));
        total = hn::MulAdd(e, hn::Set(d, rescale), total);
        const auto rounded = RoundBf16(dh, hn::DemoteTo(dh, e));
        hn::StoreU(rounded, dh, p + t);
        hn::StoreU(hn::Mul(hn::PromoteTo(d, rounded), hn::Set(d, rescale)), d, lower + t);
      }
    }
    const double sink = sinks[std::min(head + h, heads - 1)];
    weights.total[h] = Sum(total);
    weights.denominator[h] = weights.total[h] + std::exp(sink - max);
  }
  // Over their totals, so that a head which looks at many entries does not widen the bound of one that looks at few.
  for (int t = 0; t < padded(count); t += L) {
    VH most = hn::Zero(dh);
    for (int h = 0; h < kHeads; ++h) {
      const VH rescaled = hn::DemoteTo(dh, hn::LoadU(d, weights.dots + h * weights.stride + t));
      // Not less than what covers a factor that as a float is denormal or 0.
      const VH least = hn::Mul(hn::LoadU(dh, weights.p + h * weights.stride + t), hn::Set(dh, 0x1p-60f));
      const VH inverse = hn::Set(dh, static_cast<float>(1 / weights.total[h]));
      most = hn::Max(hn::Mul(hn::Max(rescaled, least), inverse), most);
    }
    hn::StoreU(hn::Mul(most, kRoundings.at(t, weights.blocks)), dh, weights.most + t);
  }
}

// -- outputs
// -------------------------------------------------------------------------------------------------------

// L outputs of head h from channel `at` on, as floats that hold bf16: the sum in double, four chains over the entries.
template <class Values>
HWY_NOINLINE hn::Vec<DH> ExactOutputs(const Values& values, const HeadWeights& weights, int h, int at) {
  const DD d;
  const DH dh;
  constexpr int kChains = 4;
  VD acc[kChains];
  for (VD& sum : acc) sum = hn::Zero(d);
  const double* weight = weights.dots + h * weights.stride;
  const auto add = [&](int t, int chain) HWY_ATTR {
    acc[chain] = hn::MulAdd(hn::Set(d, weight[t]), WidenFloats(values.at(t, at)), acc[chain]);
  };
  int t = 0;
  for (; t + kChains <= weights.count; t += kChains) {
    for (int i = 0; i < kChains; ++i) add(t + i, i);
  }
  for (int i = 0; t + i < weights.count; ++i) add(t + i, i);
  const VD sum = hn::Add(hn::Add(acc[0], acc[1]), hn::Add(acc[2], acc[3]));
  return RoundBf16(dh, hn::DemoteTo(dh, hn::Div(sum, hn::Set(d, weights.denominator[h]))));
}

// sums [kHeads, kChannels] = sum_t p[t] rescale[t] value[t] of the channels from `at` on, in float; magnitudes
// [kChannels]: sum_t most[t] |value[t]|, which is no less than any head's sum of magnitudes over its total, each
// counted as often as it may be rounded.
template <class Values>
HWY_INLINE void Accumulate(const Values& values, const HeadWeights& weights, int at, float* sums, float* magnitudes) {
  const DF d;
  constexpr int kRegisters = HWY_TARGET == HWY_AVX3 ? 4 : 2;
  constexpr int kVectors = std::min(kRegisters, kChannels / N);
  alignas(64) float block_sums[kHeads * kVectors * N];
  for (int i = 0; i < kChannels; i += kVectors * N) {
    for (int begin = 0; begin < weights.count; begin += kSumChunk) {
      const int end = std::min(begin + kSumChunk, weights.count);
      VF acc[kHeads][kVectors];
      VF magnitude[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        magnitude[v] = hn::Zero(d);
        for (int h = 0; h < kHeads; ++h) acc[h][v] = hn::Zero(d);
      }
      for (int t = begin; t < end; ++t) {
        const float* value = values.at(t, at + i);
        VF x[kVectors];
        const VF most = hn::Set(d, weights.most[t]);
        for (int v = 0; v < kVectors; ++v) {
          x[v] = hn::LoadU(d, value + v * N);
          magnitude[v] = hn::MulAdd(most, hn::Abs(x[v]), magnitude[v]);
        }
        for (int h = 0; h < kHeads; ++h) {
          const VF p = hn::Set(d, weights.p[h * weights.stride + t]);
          for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::MulAdd(p, x[v], acc[h][v]);
        }
      }
      const auto add_to = [&](float* total, VF v, bool first)
                              HWY_ATTR { hn::StoreU(first ? v : hn::Add(hn::LoadU(d, total), v), d, total); };
      for (int v = 0; v < kVectors; ++v) add_to(magnitudes + i + v * N, magnitude[v], begin == 0);
      for (int h = 0; h < kHeads; ++h) {
        for (int v = 0; v < kVectors; ++v) {
          add_to(block_sums + (h * kVectors + v) * N, acc[h][v], begin % kAttendBlock == 0);
        }
      }
      if (end % kAttendBlock != 0 && end != weights.count) continue;
      const int block = begin / kAttendBlock;
      for (int h = 0; h < kHeads; ++h) {
        const VF factor = hn::Set(d, static_cast<float>(weights.rescale[h * weights.blocks + block]));
        for (int v = 0; v < kVectors; ++v) {
          const VF sum = hn::LoadU(d, block_sums + (h * kVectors + v) * N);
          add_to(sums + h * kChannels + i + v * N, hn::Mul(sum, factor), block == 0);
        }
      }
    }
  }
}

// out [kHeads, kChannels] = the heads' outputs from channel `at` on: floats that hold bf16, before RoPE.
//
// A product p * value is exact up to underflow; kRoundings counts what follows. 1 % stands for the roundings of the
// bound itself, the constant for underflows.
template <class Values>
inline HWY_ATTR void Outputs(const Values& values, const HeadWeights& weights, int at, float* out) {
  const DF d;
  const DH dh;
  alignas(64) float sums[kHeads * kChannels];
  alignas(64) float magnitudes[kChannels];
  Accumulate(values, weights, at, sums, magnitudes);
  constexpr float kRelative = 1.01f * 0x1p-24f;
  for (int h = 0; h < kHeads; ++h) {
    // Outside this range its inverse is no float with a small relative error: a NaN leaves everything to the exact sum.
    const double denominator = weights.denominator[h];
    const bool usual = denominator > 0x1p-100 && denominator < 0x1p100;
    const VF inverse =
        hn::Set(d, usual ? static_cast<float>(1 / denominator) : std::numeric_limits<float>::quiet_NaN());
    const VF factor = hn::Set(d, kRelative * static_cast<float>(weights.total[h]));
    for (int i = 0; i < kChannels; i += N) {
      const VF sum = hn::LoadU(d, sums + h * kChannels + i);
      const VF error = hn::MulAdd(hn::LoadU(d, magnitudes + i), factor, hn::Set(d, 0x1p-120f));
      const VF low = RoundBf16(d, hn::Mul(hn::Sub(sum, error), inverse));
      const VF high = RoundBf16(d, hn::Mul(hn::Add(sum, error), inverse));
      const DU du;
      const auto differ = hn::Xor(hn::BitCast(du, low), hn::BitCast(du, high));
      const auto open = hn::Or(hn::RebindMask(d, hn::Ne(differ, hn::Zero(du))), hn::IsNaN(low));
      hn::StoreU(low, d, out + h * kChannels + i);
      if (hn::AllFalse(d, open)) continue;
      alignas(64) float flags[N];
      hn::StoreU(hn::IfThenElseZero(open, hn::Set(d, 1.0f)), d, flags);
      for (int half = 0; half < N; half += L) {
        if (std::all_of(flags + half, flags + half + L, [](float flag) { return flag == 0; })) continue;
        hn::StoreU(ExactOutputs(values, weights, h, at + i + half), dh, out + h * kChannels + i + half);
      }
    }
  }
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
