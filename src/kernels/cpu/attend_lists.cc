#include "kernels/cpu/attend_lists.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_lists.cc"
#include "kernels/cpu/targets.h"
//
#include <hwy/foreach_target.h>

#include "kernels/cpu/attend-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

enum : size_t { kFirstSlot, kValueSlot, kWeightSlot };

// Records that are decoded at once: 16 MiB of floats. A row with more is taken alone.
constexpr int64_t kBatchRecords = 8192;

// A row's decoded records.
struct RowValues {
  const float* values;  // [count, 512]
  HWY_INLINE const float* at(int t, int channel = 0) const { return values + offset(t, kHeadDim) + channel; }
};

void DecodeListed(const RecordAddress& record, float* values) {
  if (record.scales != nullptr) return DecodeRecord(record.format, record.data, record.scales, values);
  WidenRow(reinterpret_cast<const bf16*>(record.data), kHeadDim, values);
}

// Dot products of the entries [t, t + kEntries) with the queries.
template <class Values>
void Score(const Values& values, const double* q, int t, const HeadWeights& weights) {
  for (int half = 0; half < 2; ++half) Dots(values, q, half, t, weights);
}

// As Weigh() of attend-inl.h does, from the dot products, but probabilities stay as they are and the denominators are
// without sinks. Gives the largest scores.
void WeighList(const HeadWeights& weights, double scale, double* largest) {
  const DD d;
  const DH dh;
  const int count = weights.count;
  std::fill_n(weights.most, weights.stride, 0.0f);  // nobody asks for the bound of the sums
  for (int h = 0; h < kHeads; ++h) {
    float* row = weights.scores + h * weights.stride;
    float* p = weights.p + h * weights.stride;
    const double* lower = weights.dots + h * weights.stride;
    const double* upper = lower + kHeads * weights.stride;
    for (int t = 0; t < count; t += L) {
      const VD dot = hn::Add(hn::LoadU(d, lower + t), hn::LoadU(d, upper + t));
      hn::StoreU(hn::DemoteTo(dh, hn::Mul(dot, hn::Set(d, scale))), dh, row + t);
    }
    std::fill(row + count, row + padded(count), -std::numeric_limits<float>::infinity());
    float max = -std::numeric_limits<float>::infinity();
    for (int begin = 0; begin < count; begin += kAttendBlock) max = std::max(max, BlockMax(row, begin, count));
    VD total = hn::Zero(d);
    for (int t = 0; t < padded(count); t += L) {
      const VD e = Exp(hn::Sub(WidenFloats(row + t), hn::Set(d, double{max})));
      total = hn::Add(total, e);
      hn::StoreU(hn::DemoteTo(dh, e), dh, p + t);
    }
    std::fill_n(weights.rescale + h * weights.blocks, weights.blocks, 1.0);  // all are against the one maximum
    weights.denominator[h] = Sum(total);
    largest[h] = max;
  }
}

// Heads [head, head + kHeads) of a row; `space` holds the queries as doubles, then the weights.
void AttendHeads(const RowRecords& row, int number, int head, const RowValues& values, double scale, double* space,
                 const ListSink& sink) {
  const HeadWeights weights(row.count, space + kHeads * kHeadDim);
  WidenRow(row.q + offset(head, kHeadDim), kHeads * kHeadDim, space);
  for (int t = 0; t < row.count; t += kEntries) Score(values, space, t, weights);
  double largest[kHeads];
  WeighList(weights, scale, largest);
  const DF d;
  alignas(64) float out[kHeads][kHeadDim];
  for (int at = 0; at < kHeadDim; at += kChannels) {
    alignas(64) float sums[kHeads * kChannels];
    alignas(64) float magnitudes[kChannels];
    Accumulate(values, weights, at, sums, magnitudes);
    for (int h = 0; h < kHeads; ++h) {
      const VF inverse = hn::Set(d, static_cast<float>(1 / weights.denominator[h]));
      for (int i = 0; i < kChannels; i += N) {
        hn::StoreU(hn::Mul(hn::LoadU(d, sums + h * kChannels + i), inverse), d, out[h] + at + i);
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    sink.store(sink.context, number, head + h, out[h], largest[h] + std::log(weights.denominator[h]));
  }
}

void StoreEmpty(int number, int head, const ListSink& sink) {
  for (int h = 0; h < kHeads; ++h) {
    float zeros[kHeadDim] = {};
    sink.store(sink.context, number, head + h, zeros, std::numeric_limits<double>::infinity());
  }
}

// Rows [begin, end), whose records are decoded together: all threads decode, then each takes groups of heads.
void AttendBatch(Context& context, const RowRecords* rows, int begin, int end, int heads, double scale,
                 const ListSink& sink) {
  const int count = end - begin;
  int64_t* first = context.scratch<int64_t>(kFirstSlot, static_cast<size_t>(count) + 1);
  first[0] = 0;
  int longest = 0;
  for (int i = 0; i < count; ++i) {
    first[i + 1] = first[i] + rows[begin + i].count;
    longest = std::max(longest, rows[begin + i].count);
  }
  const int64_t records = first[count];
  float* values = context.scratch<float>(kValueSlot, offset(records, kHeadDim));
  context.parallel(records, 1, records * 600, [&](int, int64_t from, int64_t to) HWY_ATTR {
    auto row = static_cast<int>(std::upper_bound(first, first + count, from) - first) - 1;
    for (int64_t i = from; i < to; ++i) {
      while (i >= first[row + 1]) ++row;
      DecodeListed(rows[begin + row].record[i - first[row]], values + offset(i, kHeadDim));
    }
  });
  const int groups = heads / kHeads;
  const size_t doubles = size_t{kHeads} * kHeadDim + weight_doubles(longest);
  double* spaces = context.scratch<double>(kWeightSlot, doubles * static_cast<size_t>(context.threads()));
  // Taken one by one, since rows differ in length.
  std::atomic<int64_t> next{0};
  const int64_t work = records * heads * 2 * kHeadDim;
  context.parallel(context.threads(), 1, work, [&](int share, int64_t, int64_t) HWY_ATTR {
    double* space = spaces + doubles * static_cast<size_t>(share);
    for (int64_t i = next.fetch_add(1); i < int64_t{count} * groups; i = next.fetch_add(1)) {
      const auto row = static_cast<int>(i / groups);
      const int head = static_cast<int>(i % groups) * kHeads;
      const RowRecords& list = rows[begin + row];
      if (list.count == 0) {
        StoreEmpty(begin + row, head, sink);
      } else {
        AttendHeads(list, begin + row, head, {values + offset(first[row], kHeadDim)}, scale, space, sink);
      }
    }
  });
}

void AttendLists(Context& context, const RowRecords* rows, int count, int heads, double scale, const ListSink& sink) {
  ONELANE_CHECK(heads % kHeads == 0, "heads come in groups of four");
  for (int begin = 0; begin < count;) {
    int end = begin;
    for (int64_t records = 0; end < count; ++end) {
      records += rows[end].count;
      if (end > begin && records > kBatchRecords) break;
    }
    AttendBatch(context, rows, begin, end, heads, scale, sink);
    begin = end;
  }
}

}  // namespace
}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onelane::cpu {

HWY_EXPORT(AttendLists);

void attend_lists(Context& context, const RowRecords* rows, int count, int heads, double scale, const ListSink& sink) {
  HWY_DYNAMIC_DISPATCH(AttendLists)(context, rows, count, heads, scale, sink);
}

}  // namespace onelane::cpu
#endif
