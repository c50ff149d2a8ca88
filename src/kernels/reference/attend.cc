// Sparse attention with a sink over the window and the compressed entries (spec/model.md 3.1, 6.4).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/reference/stages.h"
#include "kernels/reference/vector_ops.h"
#include "numerics/formats.h"

namespace onelane::reference {
namespace {

constexpr size_t kSoftmaxBlock = kAttendBlock;  // as an index

using KvVector = std::array<float, kHeadDim>;

KvVector load(const RecordBlock& block, int index) {
  KvVector values;
  load_record(block, index, values.data());
  return values;
}

// Everything row `row` attends to, decoded, in the order of the contract's sums.
std::vector<KvVector> visible_entries(const StepRows& rows, const AttendArgs& args, int row) {
  const RowRun& run = rows.runs[rows.run_of[row]];
  const int position = rows.position[row];
  const int begin = args.block_attention ? run.first_position - kWindow : position - kWindow + 1;
  const int end = args.block_attention ? run.first_position + run.count : position + 1;
  const RecordBlock ring = args.ring.block(run.slot);
  std::vector<KvVector> entries;
  for (int p = std::max(begin, 0); p < end; ++p) {
    if (p < run.first_position) {
      entries.push_back(load(ring, p % ring.capacity));
    } else {
      entries.push_back(load(args.kv, run.first_row + p - run.first_position));
    }
  }
  if (args.ratio == 0) return entries;
  const int visible = (position + 1) / args.ratio;
  const auto add = [&](int entry) {
    const EntryPlace place = entry_place(rows, args.entries, run.slot, entry);
    entries.push_back(load(place.block, place.index));
  };
  if (args.picks == nullptr) {
    for (int entry = 0; entry < visible; ++entry) add(entry);
    return entries;
  }
  for (int i = 0; i < args.topk; ++i) {
    const int entry = args.picks[offset(row, args.topk) + i];
    if (entry < 0) continue;
    ONELANE_CHECK(entry < visible, "a picked entry that the row cannot see yet");
    add(entry);
  }
  return entries;
}

void attend_head(const bf16* q, const std::vector<KvVector>& entries, float sink, bf16* out) {
  const std::vector<float> query = to_floats(q, kHeadDim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(kHeadDim));
  std::vector<float> scores;
  float max = -std::numeric_limits<float>::infinity();
  for (const KvVector& kv : entries) {
    double dot = 0;
    for (int d = 0; d < kHeadDim; ++d) dot += static_cast<double>(query[d]) * kv[d];
    scores.push_back(static_cast<float>(dot * scale));
    max = std::max(max, scores.back());
  }
  std::array<double, kHeadDim> sums{};
  double total = 0;
  float running_max = -std::numeric_limits<float>::infinity();
  for (size_t t = 0; t < entries.size(); ++t) {
    if (t % kSoftmaxBlock == 0) {
      const auto block_end = scores.begin() + static_cast<std::ptrdiff_t>(std::min(t + kSoftmaxBlock, scores.size()));
      running_max =
          std::max(running_max, *std::max_element(scores.begin() + static_cast<std::ptrdiff_t>(t), block_end));
    }
    // An online softmax rounds against what it has seen so far; what it rescales later it does not round again.
    const double rescale = std::exp(static_cast<double>(running_max) - max);
    const double p = std::exp(static_cast<double>(scores[t]) - running_max);
    total += p * rescale;
    const double rounded = round_bf16(static_cast<float>(p)) * rescale;
    for (int d = 0; d < kHeadDim; ++d) sums[d] += rounded * entries[t][d];
  }
  total += std::exp(static_cast<double>(sink) - max);
  for (int d = 0; d < kHeadDim; ++d) out[d] = float_to_bf16(static_cast<float>(sums[d] / total));
}

}  // namespace

void attend(const StepRows& rows, const AttendArgs& args) {
  for (int row = 0; row < rows.count; ++row) {
    const std::vector<KvVector> entries = visible_entries(rows, args, row);
    const RopeAngles angles = rope_angles(*args.rope, rows.position[row]);
    for (int h = 0; h < args.heads; ++h) {
      const size_t at = offset(row * args.heads + h, kHeadDim);
      attend_head(args.q + at, entries, args.sink[h], args.out + at);
      rope_tail(args.out + at, kHeadDim, angles, /*inverse=*/true);
    }
  }
}

}  // namespace onelane::reference
