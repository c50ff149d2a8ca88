// Compressed entries and index keys (spec/model.md 3.3 to 3.5).
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/reference/linear.h"
#include "kernels/reference/stages.h"
#include "kernels/reference/vector_ops.h"
#include "numerics/formats.h"

namespace onelane::reference {
namespace {

// kv and gate rows of one compressor: this step's own, and before a run begins those of the state.
class PoolingRows {
 public:
  PoolingRows(const StepRows& rows, const CompressArgs& args, const Compressor& compressor)
      : rows_(rows),
        state_(compressor.state),
        stored_(compressor.stored()),
        kv_(compressor.kv),
        gate_(compressor.gate, compressor.gate + offset(rows.count, stored_)) {
    if (compressor.ape == nullptr) return;
    for (int row = 0; row < rows.count; ++row) {
      const float* ape = compressor.ape + offset(rows.position[row] % args.ratio, stored_);
      for (int c = 0; c < stored_; ++c) gate_[offset(row, stored_) + c] += ape[c];
    }
  }

  const float* kv(const RowRun& run, int position) const {
    if (position < run.first_position) return state_row(run.slot, position);
    return kv_ + offset(run.first_row + position - run.first_position, stored_);
  }
  const float* gate(const RowRun& run, int position) const {
    if (position < run.first_position) return state_row(run.slot, position) + stored_;
    return gate_.data() + offset(run.first_row + position - run.first_position, stored_);
  }

  // Keeps the newest rows of every run. Call once all groups are pooled: it may overwrite what they read.
  void save() const {
    for (int i = 0; i < rows_.run_count; ++i) {
      const RowRun& run = rows_.runs[i];
      const int end = run.first_position + run.count;
      for (int position = std::max(run.first_position, end - state_.capacity); position < end; ++position) {
        float* row = state_row(run.slot, position);
        std::copy_n(kv(run, position), stored_, row);
        std::copy_n(gate(run, position), stored_, row + stored_);
      }
    }
  }

 private:
  float* state_row(int slot, int position) const {
    return state_.base + static_cast<size_t>(slot) * state_.slot_floats +
           offset(position % state_.capacity, 2 * stored_);
  }

  const StepRows& rows_;
  CompressorState state_;
  int stored_;
  const float* kv_;
  std::vector<float> gate_;  // with the position bias
};

// One pooled token: its position, and the first of the channels it contributes.
struct PooledToken {
  int position;
  int first_channel;
};

// round(entry) of group `entry`, per channel the gate-softmax-weighted mean of the group's tokens.
std::vector<bf16> pool_group(const PoolingRows& pooling, const Compressor& compressor, const RowRun& run, int ratio,
                             int entry) {
  std::vector<PooledToken> tokens;
  const int begin = entry * ratio;
  // With overlap the group before contributes the first half of the channels. Group -1 has gates of -inf: no tokens.
  if (compressor.overlap && entry > 0) {
    for (int i = 0; i < ratio; ++i) tokens.push_back({begin - ratio + i, 0});
  }
  for (int i = 0; i < ratio; ++i) tokens.push_back({begin + i, compressor.overlap ? compressor.width : 0});

  std::vector<bf16> pooled(compressor.width);
  for (int c = 0; c < compressor.width; ++c) {
    float max = -std::numeric_limits<float>::infinity();
    for (const PooledToken& t : tokens) max = std::max(max, pooling.gate(run, t.position)[t.first_channel + c]);
    double weighted = 0;
    double total = 0;
    for (const PooledToken& t : tokens) {
      const double p = std::exp(static_cast<double>(pooling.gate(run, t.position)[t.first_channel + c]) - max);
      weighted += p * pooling.kv(run, t.position)[t.first_channel + c];
      total += p;
    }
    pooled[c] = float_to_bf16(static_cast<float>(weighted / total));
  }
  return pooled;
}

// Calls visit(run, entry, latent) for every group that ends in this step, latent [compressor.width] normed, not roped.
template <class Visit>
void for_each_latent(const StepRows& rows, const CompressArgs& args, const Compressor& compressor, Visit visit) {
  const auto finish = [&](const RowRun& run, int entry, std::vector<bf16> latent) {
    rms_norm(latent.data(), compressor.norm, compressor.width, args.norm_eps, latent.data());
    visit(run, entry, latent);
  };
  if (args.ratio == 1) {
    for (int row = 0; row < rows.count; ++row) {
      const bf16* first = compressor.latent + offset(row, compressor.width);
      finish(rows.runs[rows.run_of[row]], rows.position[row], {first, first + compressor.width});
    }
    return;
  }
  const PoolingRows pooling(rows, args, compressor);
  for (int row = 0; row < rows.count; ++row) {
    if ((rows.position[row] + 1) % args.ratio != 0) continue;
    const RowRun& run = rows.runs[rows.run_of[row]];
    const int entry = rows.position[row] / args.ratio;
    finish(run, entry, pool_group(pooling, compressor, run, args.ratio, entry));
  }
  pooling.save();
}

void store_entry(const StepRows& rows, const PagedCache& cache, const RowRun& run, int entry, const bf16* values) {
  const EntryPlace place = entry_place(rows, cache, run.slot, entry);
  store_record(place.block, place.index, values);
}

}  // namespace

void compress(const StepRows& rows, const CompressArgs& args) {
  const auto angles = [&](int entry) { return rope_angles(*args.rope, entry * args.ratio); };

  for_each_latent(rows, args, args.main, [&](const RowRun& run, int entry, std::vector<bf16> latent) {
    if (args.wk) {
      std::vector<bf16> key = multiply_rounded(args.wk, latent.data(), 1);
      rms_norm(key.data(), args.k_norm, kIndexDim, args.norm_eps, key.data());
      rope_tail(key.data(), kIndexDim, angles(entry));
      store_entry(rows, args.keys, run, entry, key.data());
    }
    rope_tail(latent.data(), kHeadDim, angles(entry));
    store_entry(rows, args.entries, run, entry, latent.data());
  });

  if (args.index_compressor == nullptr) return;
  for_each_latent(rows, args, *args.index_compressor, [&](const RowRun& run, int entry, std::vector<bf16> key) {
    rope_tail(key.data(), kIndexDim, angles(entry));
    hadamard(key.data());
    store_entry(rows, args.keys, run, entry, key.data());
  });
}

}  // namespace onelane::reference
