// Sparse attention with a sink over the window and the compressed entries (spec/model.md 3.1, 6.4), and the ring
// commit.
//
// A group of rows first gathers every record that any of them attends to and decodes it once; each row then holds a
// list of places among those, in the order of its sums. So a row's bits do not depend on where its records came from.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend.cc"
#include "kernels/cpu/targets.h"
//
#include <hwy/foreach_target.h>

#include "kernels/cpu/gather.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/records-inl.h"
#include "kernels/cpu/stages.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

enum : size_t { kValueSlot = kGatherSlots, kHeadSlot };

// Heads of a work item share every load of a record: four, or two where four would leave threads without work.
constexpr int kMostHeads = 4;
constexpr int kAccumulators = HWY_TARGET == HWY_AVX3 ? 16 : 8;  // vectors of output in registers

// Largest of the scores [begin, begin + kAttendBlock), of which `count` in all exist; the padding behind them is -inf.
float BlockMax(const float* scores, int begin, int count) {
  const DF d;
  VF most = hn::LoadU(d, scores + begin);
  for (int t = begin + N; t < std::min(begin + kAttendBlock, padded(count)); t += N) {
    most = hn::Max(most, hn::LoadU(d, scores + t));
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// Scores of kHeads heads against the row's entries, then their weights: p [kHeads, stride], rounded to bf16 against the
// running maximum and brought to the final one, and the denominators. `scores`: scratch [kHeads, stride].
template <int kHeads>
void Weigh(const AttendArgs& args, const double* const* q, int head, const bf16* values, const int32_t* list, int count,
           int stride, float* scores, double* p, double* denominator) {
  const DD d;
  const DH dh;
  const double scale = 1.0 / std::sqrt(static_cast<double>(kHeadDim));
  for (int t = 0; t < count; t += kOutputs) {
    Bf16Rows entries;
    for (int c = 0; c < kOutputs; ++c) entries.row[c] = values + offset(list[std::min(t + c, count - 1)], kHeadDim);
    alignas(64) double sums[kHeads * kOutputs];
    if constexpr (kTileRows >= kHeads || kHeads == 2) {
      Tile<kHeads>(entries, kHeadDim, q, sums);
    } else {
      Tile<2>(entries, kHeadDim, q, sums);
      Tile<2>(entries, kHeadDim, q + 2, sums + 2 * kOutputs);
    }
    for (double& sum : sums) sum *= scale;
    for (int h = 0; h < kHeads; ++h) hn::StoreU(Narrow4(sums + h * kOutputs), D4(), scores + h * stride + t);
  }
  for (int h = 0; h < kHeads; ++h) {
    float* row = scores + h * stride;
    for (int t = count; t < padded(count); ++t) row[t] = -std::numeric_limits<float>::infinity();
    float max = -std::numeric_limits<float>::infinity();
    for (int begin = 0; begin < count; begin += kAttendBlock) max = std::max(max, BlockMax(row, begin, count));
    float running = -std::numeric_limits<float>::infinity();
    VD total = hn::Zero(d);
    for (int begin = 0; begin < count; begin += kAttendBlock) {
      running = std::max(running, BlockMax(row, begin, count));
      const VD vrunning = hn::Set(d, running);
      const VD rescale = hn::Set(d, running == max ? 1.0 : std::exp(static_cast<double>(running) - max));
      for (int t = begin; t < std::min(begin + kAttendBlock, padded(count)); t += L) {
        const VD e = Exp(hn::Sub(WidenFloats(row + t), vrunning));
        total = hn::MulAdd(e, rescale, total);
        const VD rounded = hn::PromoteTo(d, RoundBf16(dh, hn::DemoteTo(dh, e)));
        hn::StoreU(hn::Mul(rounded, rescale), d, p + h * stride + t);
      }
    }
    const double sink = args.sink[std::min(head + h, args.heads - 1)];
    denominator[h] = Sum(total) + std::exp(sink - max);
  }
}

// out[h] [512] = sum_t p[h][t] * value[t], t ascending.
template <int kHeads>
void Accumulate(const bf16* values, const int32_t* list, int count, const double* p, int stride, double* out) {
  const DD d;
  constexpr int kVectors = kAccumulators / kHeads;
  for (int at = 0; at < kHeadDim; at += kVectors * L) {
    VD acc[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::Zero(d);
    }
    for (int t = 0; t < count; ++t) {
      const bf16* value = values + offset(list[t], kHeadDim) + at;
      VD x[kVectors];
      for (int v = 0; v < kVectors; ++v) x[v] = WidenBf16(value + v * L);
      for (int h = 0; h < kHeads; ++h) {
        const VD weight = hn::Set(d, p[h * stride + t]);
        for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::MulAdd(weight, x[v], acc[h][v]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[h][v], d, out + h * kHeadDim + at + v * L);
    }
  }
}

// Scratch of AttendHeads: kHeads queries, later sums, and weights; scores take half of what the weights do.
constexpr int scratch_values(int heads, int stride) { return heads * (kHeadDim + stride + stride / 2); }

template <int kHeads>
void AttendHeads(const AttendArgs& args, int row, int head, const bf16* values, const int32_t* list, int count,
                 const RopeAngles& angles, double* scratch) {
  const DD d;
  const DH dh;
  const int stride = padded(count);
  double* q_data = scratch;  // [kHeads, 512]; later the sums
  double* p = q_data + kHeads * kHeadDim;
  auto* scores = reinterpret_cast<float*>(p + kHeads * stride);
  const double* q[kHeads];
  const bf16* source = args.q + offset(row, int64_t{args.heads} * kHeadDim);
  for (int h = 0; h < kHeads; ++h) {
    // Past the last head its query is repeated; the result is not stored.
    WidenRow(source + offset(std::min(head + h, args.heads - 1), kHeadDim), kHeadDim, q_data + h * kHeadDim);
    q[h] = q_data + h * kHeadDim;
  }
  double denominator[kHeads];
  Weigh<kHeads>(args, q, head, values, list, count, stride, scores, p, denominator);
  Accumulate<kHeads>(values, list, count, p, stride, q_data);
  for (int h = 0; h < std::min(kHeads, args.heads - head); ++h) {
    const double* sums = q_data + h * kHeadDim;
    const VD total = hn::Set(d, denominator[h]);
    alignas(64) float out[kHeadDim];
    for (int i = 0; i < kHeadDim; i += L) {
      hn::StoreU(RoundBf16(dh, hn::DemoteTo(dh, hn::Div(hn::LoadU(d, sums + i), total))), dh, out + i);
    }
    RopeRow(out, kHeadDim, angles, /*inverse=*/true);
    NarrowRow(out, kHeadDim, args.out + offset(row, int64_t{args.heads} * kHeadDim) + offset(head + h, kHeadDim));
  }
}

// Rows [first, first + count), kHeads heads at a time.
template <int kHeads>
void AttendRows(Context& context, const AttendArgs& args, const Gathered& gathered, const bf16* values,
                const RopeAngles* angles, int first, int count) {
  const int head_groups = (args.heads + kHeads - 1) / kHeads;
  const auto per_thread = static_cast<size_t>(scratch_values(kHeads, padded(gathered.longest)));
  double* scratch = context.scratch<double>(kHeadSlot, per_thread * static_cast<size_t>(context.threads()));
  const int64_t work = int64_t{gathered.listed} * args.heads * 2 * kHeadDim;
  context.parallel(int64_t{count} * head_groups, 1, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      const int row = static_cast<int>(i) / head_groups;
      const RowList& list = gathered.list[row];
      AttendHeads<kHeads>(args, first + row, static_cast<int>(i) % head_groups * kHeads, values,
                          gathered.places + list.begin, list.count, angles[first + row],
                          scratch + per_thread * static_cast<size_t>(share));
    }
  });
}

void Attend(Context& context, const StepRows& rows, const AttendArgs& args) {
  const RopeAngles* angles = context.row_angles(*args.rope, rows);
  for (int first = 0; first < rows.count; first += kGatheredRows) {
    const int count = std::min(kGatheredRows, rows.count - first);
    const Gathered gathered = gather_entries(context, rows, args, first, count);
    bf16* values = context.scratch<bf16>(kValueSlot, offset(gathered.records, kHeadDim));
    context.parallel(gathered.records, 1, int64_t{gathered.records} * 600,
                     [&](int, int64_t begin, int64_t end) HWY_ATTR {
                       for (int64_t i = begin; i < end; ++i) {
                         const RecordAddress& record = gathered.record[i];
                         DecodeRecord(record.format, record.data, record.scales, values + offset(i, kHeadDim));
                       }
                     });
    if (count * ((args.heads + kMostHeads - 1) / kMostHeads) >= context.threads()) {
      AttendRows<kMostHeads>(context, args, gathered, values, angles, first, count);
    } else {
      AttendRows<2>(context, args, gathered, values, angles, first, count);
    }
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
