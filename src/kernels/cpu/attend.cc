// Sparse attention with a sink over the window and the compressed entries (spec/model.md 3.1, 6.4), and the ring
// commit.
//
// A row holds a list of records, in the order of its sums; where a record came from is settled when it is decoded, so a
// row's bits do not depend on that. Scores and denominators are sums in double. The weighted sums of the values are
// rounded to bf16 at once, so they run in float with a bound on their error, and in double only where a rounding
// boundary lies within the bound.
//
// With fewer rows than threads a row is shared, by channels: who decodes half of the channels of every entry takes that
// half of the scores' sums and those outputs, so that few values go from one processor's cache to another's. With more
// rows a group of them decodes every record that any of them attends to once, and each row is one thread's. Either way
// a score is two chains over the channels, added, and an output one over the entries.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend.cc"
#include "kernels/cpu/targets.h"
//
#include <hwy/foreach_target.h>

#include "kernels/cpu/attend-inl.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/stages.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

enum : size_t { kValueSlot = kGatherSlots, kQuerySlot, kWeightSlot };

// Output channels [at, at + kChannels) of the group of heads that begins at `head`.
template <class Values>
void AttendChannels(const AttendArgs& args, int row, int head, const Values& values, const HeadWeights& weights, int at,
                    const RopeAngles& angles) {
  alignas(64) float out[kHeads * kChannels];
  Outputs(values, weights, at, out);
  bf16* to = args.out + offset(row, int64_t{args.heads} * kHeadDim);
  for (int h = 0; h < std::min(kHeads, args.heads - head); ++h) {
    float* channels = out + h * kChannels;
    if (at + kChannels == kHeadDim) RopeRow(channels, kChannels, angles, /*inverse=*/true);
    NarrowRow(channels, kChannels, to + offset(head + h, kHeadDim) + at);
  }
}

// The queries of a group of heads as doubles. Past the last head its query is repeated; the result is not stored.
void WidenQueries(const AttendArgs& args, int row, int head, double* q) {
  const bf16* source = args.q + offset(row, int64_t{args.heads} * kHeadDim);
  for (int h = 0; h < kHeads; ++h) {
    WidenRow(source + offset(std::min(head + h, args.heads - 1), kHeadDim), kHeadDim, q + h * kHeadDim);
  }
}

// Row after row, each by all threads.
void ShareRow(Context& context, const StepRows& rows, const AttendArgs& args, int row, const RopeAngles& angles) {
  const Gathered gathered = gather_entries(context, rows, args, row, 1);
  const RowList list = gathered.list[0];
  const int32_t* places = gathered.places + list.begin;
  const int groups = (args.heads + kHeads - 1) / kHeads;
  float* decoded = context.scratch<float>(kValueSlot, offset(list.count, kHeadDim));  // [2, count, kHalf]
  const size_t queries = offset(groups, kHeads * kHeadDim);
  double* q_spaces = context.scratch<double>(kQuerySlot, queries * static_cast<size_t>(context.threads()));
  const size_t weights = weight_doubles(list.count);
  double* spaces = context.scratch<double>(kWeightSlot, weights * static_cast<size_t>(groups));
  const auto weights_of = [&](int64_t group) {
    return HeadWeights(list.count, spaces + weights * static_cast<size_t>(group));
  };

  const int64_t dots = int64_t{list.count} * groups * kHeads * kHeadDim;
  const int tiles = (list.count + kEntries - 1) / kEntries;
  context.parallel(2 * tiles, 1, dots, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    double* q = q_spaces + queries * static_cast<size_t>(share);
    for (int group = 0; group < groups; ++group) WidenQueries(args, row, group * kHeads, q + group * kHeads * kHeadDim);
    for (int64_t i = begin; i < end; ++i) {
      const int half = static_cast<int>(i) / tiles;
      const int t = static_cast<int>(i) % tiles * kEntries;
      float* values = decoded + offset(half * list.count + t, kHalf);
      const float* entries[kEntries];
      for (int e = 0; e < kEntries; ++e) {
        entries[e] = values + std::min(e, list.count - 1 - t) * kHalf;
        if (t + e >= list.count) continue;
        const RecordAddress& record = gathered.record[places[t + e]];
        for (int at = 0; at < kHalf; at += kChannels) {
          DecodeChannels(record.format, record.data, record.scales, half * kHalf + at, values + e * kHalf + at);
        }
      }
      for (int64_t group = 0; group < groups; ++group) {
        Dots(entries, q + group * kHeads * kHeadDim + half * kHalf, half, t, weights_of(group));
      }
    }
  });
  context.parallel(groups, 1, dots / kHeadDim * 20, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t group = begin; group < end; ++group) {
      Weigh(args.sink, args.heads, static_cast<int>(group) * kHeads, weights_of(group));
    }
  });
  context.parallel(kHeadDim / kChannels, 1, dots, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t part = begin; part < end; ++part) {
      const int at = static_cast<int>(part) * kChannels;
      const int first = at / kHalf * kHalf;
      const DecodedHalf values{decoded + offset(list.count, first), first};
      for (int group = 0; group < groups; ++group) {
        AttendChannels(args, row, group * kHeads, values, weights_of(group), at, angles);
      }
    }
  });
}

// Rows [first, first + count), each by one thread.
void ShareRows(Context& context, const StepRows& rows, const AttendArgs& args, int first, int count,
               const RopeAngles* angles) {
  const Gathered gathered = gather_entries(context, rows, args, first, count);
  float* values = context.scratch<float>(kValueSlot, offset(gathered.records, kHeadDim));
  context.parallel(gathered.records, 1, int64_t{gathered.records} * 600, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      const RecordAddress& record = gathered.record[i];
      DecodeRecord(record.format, record.data, record.scales, values + offset(i, kHeadDim));
    }
  });
  const int groups = (args.heads + kHeads - 1) / kHeads;
  // Per thread: the queries of a group, weights.
  constexpr int kQueries = kHeads * kHeadDim;
  const size_t space = kQueries + weight_doubles(gathered.longest);
  double* spaces = context.scratch<double>(kWeightSlot, space * static_cast<size_t>(context.threads()));
  const int64_t work = int64_t{gathered.listed} * args.heads * 2 * kHeadDim;
  context.parallel(int64_t{count} * groups, 1, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    double* q = spaces + space * static_cast<size_t>(share);
    for (int64_t i = begin; i < end; ++i) {
      const int row = static_cast<int>(i / groups);
      const int head = static_cast<int>(i % groups) * kHeads;
      const RowList& list = gathered.list[row];
      const ListedRow entries{values, gathered.places + list.begin};
      const HeadWeights weights(list.count, q + kQueries);
      WidenQueries(args, first + row, head, q);
      for (int t = 0; t < list.count; t += kEntries) {
        const float* halves[2][kEntries];
        for (int e = 0; e < kEntries; ++e) {
          halves[0][e] = entries.at(std::min(t + e, list.count - 1));
          halves[1][e] = halves[0][e] + kHalf;
        }
        for (int half = 0; half < 2; ++half) Dots(halves[half], q + half * kHalf, half, t, weights);
      }
      Weigh(args.sink, args.heads, head, weights);
      for (int at = 0; at < kHeadDim; at += kChannels) {
        AttendChannels(args, first + row, head, entries, weights, at, angles[first + row]);
      }
    }
  });
}

void Attend(Context& context, const StepRows& rows, const AttendArgs& args) {
  const RopeAngles* angles = context.row_angles(*args.rope, rows);
  if (rows.count == 1 || rows.count < context.threads()) {
    for (int row = 0; row < rows.count; ++row) ShareRow(context, rows, args, row, angles[row]);
    return;
  }
  for (int first = 0; first < rows.count; first += kGatheredRows) {
    ShareRows(context, rows, args, first, std::min(kGatheredRows, rows.count - first), angles);
  }
}
}  // namespace
}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onelane::cpu {

HWY_EXPORT(Attend);

void attend(Context& context, const StepRows& rows, const AttendArgs& args) {
  HWY_DYNAMIC_DISPATCH(Attend)(context, rows, args);
}

void commit(Context&, const StepRows& rows, const CommitArgs& args) {
  const RecordFormat format = args.ring.format;
  ONELANE_CHECK(args.kv.format == format, "a ring holds the step's records as they are");
  for (int i = 0; i < rows.run_count; ++i) {
    const RowRun& run = rows.runs[i];
    const RecordBlock ring = args.ring.block(run.slot);
    for (int r = std::max(0, run.count - ring.capacity); r < run.count; ++r) {
      const int to = (run.first_position + r) % ring.capacity;
      const int from = run.first_row + r;
      std::memcpy(ring.data(to), args.kv.data(from), static_cast<size_t>(record_data_bytes(format)));
      std::memcpy(ring.scales(to), args.kv.scales(from), static_cast<size_t>(record_scale_bytes(format)));
    }
  }
}

}  // namespace onelane::cpu
#endif
