// Compressed entries and index keys (spec/model.md 3.3 to 3.5).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/compress.cc"
#include "kernels/cpu/targets.h"
//
#include <hwy/foreach_target.h>

#include "kernels/cpu/hadamard-inl.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/stages.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

enum : size_t { kMainSlot = kStageSlot, kIndexSlot, kGroupSlot, kLatentSlot, kKeySlot, kIndexKeySlot };

inline constexpr int kMostPooled = 256;  // ratio 128, and twice that where groups overlap

// A group that ends in this step.
struct Group {
  const RowRun* run;
  int entry;
  RopeAngles angles;
};

// What one token gives to a pooled entry, from the first of its channels on.
struct PooledToken {
  const float *kv, *gate;
};

// One compressor in this step: its gates with their position bias, and where older rows are.
struct Pooling {
  const Compressor* compressor;
  int ratio;
  int stored;
  const float* gate;  // [rows, stored]; null for ratio 1

  PooledToken token(const RowRun& run, int position, int channel = 0) const {
    if (position >= run.first_position) {
      const size_t at = offset(run.first_row + position - run.first_position, stored) + static_cast<size_t>(channel);
      return {compressor->kv + at, gate + at};
    }
    const float* row = state_row(run.slot, position) + channel;
    return {row, row + stored};
  }
  float* state_row(int slot, int position) const {
    const CompressorState& state = compressor->state;
    return state.base + static_cast<size_t>(slot) * state.slot_floats +
           offset(position % state.capacity, int64_t{2} * stored);
  }
};

Pooling MakePooling(Context& context, const StepRows& rows, const CompressArgs& args, const Compressor& compressor,
                    size_t slot) {
  const int stored = compressor.stored();
  ONELANE_CHECK(args.ratio * (compressor.overlap ? 2 : 1) <= kMostPooled, "too many tokens in a group");
  if (compressor.ape == nullptr) return {&compressor, args.ratio, stored, compressor.gate};
  float* biased = context.scratch<float>(slot, offset(rows.count, stored));
  for (int row = 0; row < rows.count; ++row) {
    const float* gate = compressor.gate + offset(row, stored);
    const float* bias = compressor.ape + offset(rows.position[row] % args.ratio, stored);
    float* to = biased + offset(row, stored);
    for (int c = 0; c < stored; ++c) to[c] = gate[c] + bias[c];
  }
  return {&compressor, args.ratio, stored, biased};
}

// latent = rmsnorm(round(entry)) of one group, floats [width].
void PoolGroup(const Pooling& pooling, const Group& group, float eps, float* latent) {
  const DD dd;
  const DH dh;
  const int width = pooling.compressor->width;
  const int begin = group.entry * pooling.ratio;
  if (pooling.ratio == 1) {
    const int row = group.run->first_row + begin - group.run->first_position;
    WidenRow(pooling.compressor->latent + offset(row, width), width, latent);
    return RmsNormRow(latent, pooling.compressor->norm, width, eps);
  }
  // With overlap the group before gives the first half of the channels; before group 0 there is none.
  PooledToken tokens[kMostPooled];
  int count = 0;
  if (pooling.compressor->overlap && group.entry > 0) {
    for (int i = 0; i < pooling.ratio; ++i) tokens[count++] = pooling.token(*group.run, begin - pooling.ratio + i);
  }
  const int half = pooling.compressor->overlap ? width : 0;
  for (int i = 0; i < pooling.ratio; ++i) tokens[count++] = pooling.token(*group.run, begin + i, half);
  for (int c = 0; c < width; c += L) {
    VD max = WidenFloats(tokens[0].gate + c);
    for (int t = 1; t < count; ++t) max = hn::Max(max, WidenFloats(tokens[t].gate + c));
    VD weighted = hn::Zero(dd);
    VD total = hn::Zero(dd);
    for (int t = 0; t < count; ++t) {
      const VD p = Exp(hn::Sub(WidenFloats(tokens[t].gate + c), max));
      weighted = hn::MulAdd(p, WidenFloats(tokens[t].kv + c), weighted);
      total = hn::Add(total, p);
    }
    hn::StoreU(RoundBf16(dh, hn::DemoteTo(dh, hn::Div(weighted, total))), dh, latent + c);
  }
  RmsNormRow(latent, pooling.compressor->norm, width, eps);
}

void StoreEntry(const StepRows& rows, const PagedCache& cache, const Group& group, const float* values) {
  const int page = group.entry / cache.per_page;
  const RecordBlock block = cache.block(rows.page_table[offset(group.run->slot, rows.pages_per_slot) + page]);
  const int record = group.entry % cache.per_page;
  EncodeRecord(cache.format, values, block.data(record), block.scales(record));
}

// Keeps the newest rows of every run, once all groups are pooled: it may overwrite what they read.
void SaveState(const StepRows& rows, const Pooling& pooling) {
  if (pooling.ratio == 1) return;
  const int capacity = pooling.compressor->state.capacity;
  for (int i = 0; i < rows.run_count; ++i) {
    const RowRun& run = rows.runs[i];
    const int end = run.first_position + run.count;
    for (int position = std::max(run.first_position, end - capacity); position < end; ++position) {
      const PooledToken token = pooling.token(run, position);
      float* gate = std::copy_n(token.kv, pooling.stored, pooling.state_row(run.slot, position));
      std::copy_n(token.gate, pooling.stored, gate);
    }
  }
}

void Compress(Context& context, const StepRows& rows, const CompressArgs& args) {
  ONELANE_CHECK(args.main.width == kHeadDim, "an entry has 512 values");
  const Pooling main = MakePooling(context, rows, args, args.main, kMainSlot);
  const bool own_keys = args.index_compressor != nullptr;
  Pooling keys{};
  if (own_keys) keys = MakePooling(context, rows, args, *args.index_compressor, kIndexSlot);

  Group* groups = context.scratch<Group>(kGroupSlot, static_cast<size_t>(rows.count));
  int count = 0;
  for (int row = 0; row < rows.count; ++row) {
    if ((rows.position[row] + 1) % args.ratio != 0) continue;
    const int entry = rows.position[row] / args.ratio;
    groups[count++] = {&rows.runs[rows.run_of[row]], entry, context.angles(*args.rope, entry * args.ratio)};
  }
  if (count > 0) {
    float* latents = context.scratch<float>(kLatentSlot, offset(count, kHeadDim));
    float* own = own_keys ? context.scratch<float>(kIndexKeySlot, offset(count, kIndexDim)) : nullptr;
    const int64_t work = int64_t{count} * (20'000 + 12'000 * args.ratio);
    context.parallel(count, 1, work, [&](int, int64_t begin, int64_t end) HWY_ATTR {
      for (int64_t i = begin; i < end; ++i) {
        float* latent = latents + offset(i, kHeadDim);
        PoolGroup(main, groups[i], args.norm_eps, latent);
        if (own_keys) PoolGroup(keys, groups[i], args.norm_eps, own + offset(i, kIndexDim));
      }
    });
    // The index key comes from the latent before RoPE.
    float* made = nullptr;
    if (args.wk) {
      ONELANE_CHECK(args.wk.out == kIndexDim && args.wk.in == kHeadDim && args.wk.act_block == 0, "wk takes a latent");
      made = context.scratch<float>(kKeySlot, offset(count, kIndexDim));
      const Activations normed = ActivationSpace(context, count, kHeadDim);
      for (int i = 0; i < count; ++i)
        WidenRow(latents + offset(i, kHeadDim), kHeadDim, normed.data + offset(i, kHeadDim));
      SharedProduct(context, args.wk, normed, count, ToFloat{made, static_cast<size_t>(kIndexDim)});
    }
    context.parallel(count, 1, work, [&](int, int64_t begin, int64_t end) HWY_ATTR {
      const DF d;
      for (int64_t i = begin; i < end; ++i) {
        const Group& group = groups[i];
        if (made != nullptr) {
          float* key = made + offset(i, kIndexDim);
          for (int c = 0; c < kIndexDim; c += N) hn::StoreU(RoundBf16(d, hn::LoadU(d, key + c)), d, key + c);
          RmsNormRow(key, args.k_norm, kIndexDim, args.norm_eps);
          RopeRow(key, kIndexDim, group.angles);
          StoreEntry(rows, args.keys, group, key);
        }
        if (own != nullptr) {
          float* key = own + offset(i, kIndexDim);
          RopeRow(key, kIndexDim, group.angles);
          Hadamard(key);
          StoreEntry(rows, args.keys, group, key);
        }
        float* latent = latents + offset(i, kHeadDim);
        RopeRow(latent, kHeadDim, group.angles);
        StoreEntry(rows, args.entries, group, latent);
      }
    });
  }
  SaveState(rows, main);
  if (own_keys) SaveState(rows, keys);
}

}  // namespace
}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onelane::cpu {

HWY_EXPORT(Compress);

void compress(Context& context, const StepRows& rows, const CompressArgs& args) {
  HWY_DYNAMIC_DISPATCH(Compress)(context, rows, args);
}

}  // namespace onelane::cpu
#endif
