// Sparse attention with a sink over the window and the compressed entries (spec/model.md 3.1, 6.4), and the ring
// commit.
//
// A row holds a list of records, in the order of its sums; where a record came from is settled when it is decoded, so a
// row's bits do not depend on that. Scores and denominators are sums in double. The weighted sums of the values are
// rounded to bf16 at once, so they run in float with a bound on their error, and in double only where a rounding
// boundary lies within the bound.
//
// With fewer rows than threads a row is shared, by entries for the scores and by channels for the outputs. Each thread
// widens and decodes what it needs: to fetch it from the other's cache would take longer. With more rows a group of
// them decodes every record that any of them attends to once, and each row is one thread's. Either way a score is one
// chain over the channels and an output one over the entries.
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
  // Per thread: a few whole records, or some channels of all.
  const size_t values = offset(std::max(list.count, kEntries * kHeadDim / kChannels), kChannels);
  float* decoded = context.scratch<float>(kValueSlot, values * static_cast<size_t>(context.threads()));
  const size_t queries = offset(groups, kHeads * kHeadDim);
  double* q_spaces = context.scratch<double>(kQuerySlot, queries * static_cast<size_t>(context.threads()));
  const auto weights = static_cast<size_t>(weight_doubles(list.count));
  double* spaces = context.scratch<double>(kWeightSlot, weights * static_cast<size_t>(groups));
  const auto weights_of = [&](int64_t group) {
    return HeadWeights(list.count, spaces + weights * static_cast<size_t>(group));
  };

  const int64_t dots = int64_t{list.count} * groups * kHeads * kHeadDim;
  context.parallel(list.count, kEntries, dots, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    float* space = decoded + values * static_cast<size_t>(share);
    double* q = q_spaces + queries * static_cast<size_t>(share);
    for (int group = 0; group < groups; ++group) WidenQueries(args, row, group * kHeads, q + group * kHeads * kHeadDim);
    for (int64_t t = begin; t < end; t += kEntries) {
      const float* entries[kEntries];
      for (int e = 0; e < kEntries; ++e) {
        const int entry = static_cast<int>(std::min(t + e, end - 1) - t);
        entries[e] = space + entry * kHeadDim;
        if (entry != e) continue;
        const RecordAddress& record = gathered.record[places[t + e]];
        DecodeRecord(record.format, record.data, record.scales, space + e * kHeadDim);
      }
      for (int64_t group = 0; group < groups; ++group) {
        Scores(entries, q + group * kHeads * kHeadDim, static_cast<int>(t), weights_of(group));
      }
    }
  });
  context.parallel(groups, 1, dots / kHeadDim * 20, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t group = begin; group < end; ++group) {
      Weigh(args.sink, args.heads, static_cast<int>(group) * kHeads, weights_of(group));
    }
  });
  context.parallel(kHeadDim / kChannels, 1, dots, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    float* space = decoded + values * static_cast<size_t>(share);
    for (int64_t part = begin; part < end; ++part) {
      const int at = static_cast<int>(part) * kChannels;
      for (int t = 0; t < list.count; ++t) {
        const RecordAddress& record = gathered.record[places[t]];
        DecodeChannels(record.format, record.data, record.scales, at, space + offset(t, kChannels));
      }
      for (int group = 0; group < groups; ++group) {
        AttendChannels(args, row, group * kHeads, DecodedPart{space, at}, weights_of(group), at, angles);
      }
    }
  });
}

// Rows [first, first + count), each by one thread.
void ShareRows(Context& context, const StepRows& rows, const AttendArgs& args, int first, int count,
               const RopeAngles* angles) {
  const Gathered gathered = gather_entries(context, rows, args, first, count);
  bf16* values = context.scratch<bf16>(kValueSlot, offset(gathered.records, kHeadDim));
  context.parallel(gathered.records, 1, int64_t{gathered.records} * 600, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      const RecordAddress& record = gathered.record[i];
      DecodeRecord(record.format, record.data, record.scales, values + offset(i, kHeadDim));
    }
  });
  const int groups = (args.heads + kHeads - 1) / kHeads;
  // Per thread: the queries of a group, entries as floats, weights.
  constexpr int kQueries = kHeads * kHeadDim;
  constexpr int kPanel = kEntries * kHeadDim / 2;
  const auto space = static_cast<size_t>(kQueries + kPanel + weight_doubles(gathered.longest));
  double* spaces = context.scratch<double>(kWeightSlot, space * static_cast<size_t>(context.threads()));
  const int64_t work = int64_t{gathered.listed} * args.heads * 2 * kHeadDim;
  context.parallel(int64_t{count} * groups, 1, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    double* q = spaces + space * static_cast<size_t>(share);
    auto* panel = reinterpret_cast<float*>(q + kQueries);
    for (int64_t i = begin; i < end; ++i) {
      const int row = static_cast<int>(i / groups);
      const int head = static_cast<int>(i % groups) * kHeads;
      const RowList& list = gathered.list[row];
      const ListedRow entries{values, gathered.places + list.begin};
      const HeadWeights weights(list.count, q + kQueries + kPanel);
      WidenQueries(args, first + row, head, q);
      for (int t = 0; t < list.count; t += kEntries) {
        const float* widened[kEntries];
        for (int e = 0; e < kEntries; ++e) {
          WidenRow(entries.at(std::min(t + e, list.count - 1)), kHeadDim, panel + e * kHeadDim);
          widened[e] = panel + e * kHeadDim;
        }
        Scores(widened, q, t, weights);
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
