// Sparse attention with a sink over the window and the compressed entries (spec/model.md 3.1, 6.4), and the ring
// commit.
//
// A row holds a list of records, in the order of its sums; where a record came from is settled when it is decoded, so a
// row's bits do not depend on that. Scores and denominators are sums in double. The weighted sums of the values are
// rounded to bf16 at once, so they run in float with a bound on their error, and in double only where a rounding
// boundary lies within the bound.
//
// With fewer rows than threads a row is shared, by channels: who decodes half of the channels of every entry takes that
// half of the scores' sums and those outputs, so that few values go from one processor's cache to another's. Rows of
// many runs are taken run by run: a thread decodes a record just before it first scores it, and the records of a run
// stay in its cache. Many rows of few runs decode every record that any of a group attends to together, and each row is
// one thread's. In every case a score is two chains over the channels, added, and an output one over the entries.
#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend.cc"
#include "kernels/cpu/targets.h"
//
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>

#include "kernels/cpu/attend-inl.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/stages.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

enum : size_t { kValueSlot = kGatherSlots, kQuerySlot, kWeightSlot, kPieceSlot };

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
  const Gathered gathered = GatherSpace(context, gather_bound(rows, args, row, 1)).gather(rows, args, row, 1);
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
      float* half_values = decoded + offset(half * list.count, kHalf);
      for (int e = t; e < std::min(t + kEntries, list.count); ++e) {
        const RecordAddress& record = gathered.record[places[e]];
        for (int at = 0; at < kHalf; at += kChannels) {
          DecodeChannels(record.format, record.data, record.scales, half * kHalf + at,
                         half_values + offset(e, kHalf) + at);
        }
      }
      const DecodedHalf values{half_values, half * kHalf};
      for (int64_t group = 0; group < groups; ++group) {
        Dots(values, q + group * kHeads * kHeadDim, half, t, weights_of(group));
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

// What a thread attends with: the queries of a group of heads, then their weights.
size_t row_doubles(int longest) { return size_t{kHeads} * kHeadDim + weight_doubles(longest); }

// Heads [head, head + kHeads) of a row, whose list is within `gathered`. `ready(count)` has the first `count` records
// of `values` decoded.
template <class Ready>
void AttendRow(const AttendArgs& args, int row, int head, const Gathered& gathered, const RowList& list,
               const float* values, double* space, const RopeAngles& angles, const Ready& ready) {
  const ListedRow entries{values, gathered.records, gathered.places + list.begin};
  double* q = space;
  const HeadWeights weights(list.count, space + kHeads * kHeadDim);
  WidenQueries(args, row, head, q);
  for (int t = 0; t < list.count; t += kEntries) {
    ready(1 + *std::max_element(entries.list + t, entries.list + std::min(t + kEntries, list.count)));
    for (int half = 0; half < 2; ++half) Dots(entries, q, half, t, weights);
  }
  Weigh(args.sink, args.heads, head, weights);
  for (int at = 0; at < kHeadDim; at += kChannels) AttendChannels(args, row, head, entries, weights, at, angles);
}

// Records of many sequences come from the third-level cache: asked for this many ahead.
constexpr int kRecordsAhead = 8;

void PrefetchRecord(const RecordAddress& record) {
  hwy::Prefetch(record.scales);
  const int bytes = record_data_bytes(record.format);
  for (int i = 0; i < bytes; i += 64) hwy::Prefetch(record.data + i);
}

// Record number i to its place among the parts of all.
void DecodePlace(const Gathered& gathered, int i, float* values) {
  const RecordAddress& record = gathered.record[i];
  if (i + kRecordsAhead < gathered.records) PrefetchRecord(gathered.record[i + kRecordsAhead]);
  DecodeParts(record.format, record.data, record.scales, offset(gathered.records, kChannels),
              values + offset(i, kChannels));
}

// Rows [first, first + count): all threads decode what any of them needs, then each row is one thread's.
void ShareRows(Context& context, const StepRows& rows, const AttendArgs& args, int first, int count,
               const RopeAngles* angles) {
  const GatherSpace space(context, gather_bound(rows, args, first, count));
  const Gathered gathered = space.gather(rows, args, first, count);
  float* values = context.scratch<float>(kValueSlot, offset(gathered.records, kHeadDim));
  context.parallel(gathered.records, 1, int64_t{gathered.records} * 600, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) DecodePlace(gathered, static_cast<int>(i), values);
  });
  const int groups = (args.heads + kHeads - 1) / kHeads;
  const size_t doubles = row_doubles(gathered.longest);
  double* spaces = context.scratch<double>(kWeightSlot, doubles * static_cast<size_t>(context.threads()));
  const int64_t work = int64_t{gathered.listed} * args.heads * 2 * kHeadDim;
  context.parallel(int64_t{count} * groups, 1, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      const int row = static_cast<int>(i / groups);
      const int head = static_cast<int>(i % groups) * kHeads;
      AttendRow(args, first + row, head, gathered, gathered.list[row], values,
                spaces + doubles * static_cast<size_t>(share), angles[first + row], [](int) {});
    }
  });
}

// Rows of one run, at most kGatheredRows.
struct Piece {
  int first;
  int count;
};

// Pieces, each by one thread that decodes the records just before it scores them: they stay in its caches.
void TakePieces(Context& context, const StepRows& rows, const AttendArgs& args, const Piece* pieces, int count,
                const RopeAngles* angles) {
  GatherBound bound;
  int64_t listed = 0;
  for (int i = 0; i < count; ++i) {
    const GatherBound of_piece = gather_bound(rows, args, pieces[i].first, pieces[i].count);
    bound.cover(of_piece);
    listed += static_cast<int64_t>(of_piece.listed);
  }
  const int threads = context.threads();
  const GatherSpace space(context, bound, threads);
  const size_t floats = bound.records * size_t{kHeadDim};
  const size_t doubles = row_doubles(bound.longest);
  float* value_spaces = context.scratch<float>(kValueSlot, floats * static_cast<size_t>(threads));
  double* spaces = context.scratch<double>(kWeightSlot, doubles * static_cast<size_t>(threads));
  context.take(count, listed * args.heads * 2 * kHeadDim, [&](int share, int64_t i) HWY_ATTR {
    float* values = value_spaces + floats * static_cast<size_t>(share);
    const Piece& piece = pieces[i];
    const Gathered gathered = space.gather(rows, args, piece.first, piece.count, share);
    int decoded = 0;
    const auto ready = [&](int records) HWY_ATTR {
      for (; decoded < records; ++decoded) DecodePlace(gathered, decoded, values);
    };
    for (int row = 0; row < piece.count; ++row) {
      for (int head = 0; head < args.heads; head += kHeads) {
        AttendRow(args, piece.first + row, head, gathered, gathered.list[row], values,
                  spaces + doubles * static_cast<size_t>(share), angles[piece.first + row], ready);
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
  Piece* pieces = context.scratch<Piece>(kPieceSlot, static_cast<size_t>(rows.count));
  int count = 0;
  int largest = 0;
  for (int i = 0; i < rows.run_count; ++i) {
    const RowRun& run = rows.runs[i];
    for (int first = 0; first < run.count; first += kGatheredRows) {
      pieces[count] = {run.first_row + first, std::min(kGatheredRows, run.count - first)};
      largest = std::max(largest, pieces[count++].count);
    }
  }
  if (context.worth_taking(count, largest, rows.count)) {
    return TakePieces(context, rows, args, pieces, count, angles);
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
