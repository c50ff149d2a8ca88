// Compressed entries and index keys of an owner layer (spec/model.md 3.3 to 3.5), of products that project_qkv made: a
// block for each group that ends in this step and one for each row that later groups need.
//
// Rows of a long run are saved by a second launch: a row's place in the state may still be read by a group of this
// step. A run that is short enough leaves such places alone (saves_at_once()).
//
// What the step is (StepRows) was there before its first kernel: blocks read it, and ask for what they will need of the
// state, while the products still run.
#include "base/check.h"
#include "cuda/index/vectors.h"
#include "cuda/linear/rms_norm.h"
#include "cuda/stages.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = kHeadDim;  // a channel each
constexpr int kWarps = kThreads / 32;
constexpr int kBatch = 8;  // pooling rows that are asked for at once

// A compressor (kernels.h) as its kernel has it.
struct Pooler {
  const float* kv;     // [rows, stored]
  const float* gate;   // [rows, stored], without the position bias
  const bf16* latent;  // ratio 1, instead of both: [rows, width]
  const float* ape;    // [ratio, stored] or null
  const bf16* norm;    // [width]
  int width, stored;
  bool overlap;
  CompressorState state;

  __device__ __forceinline__ float* state_row(int slot, int position) const {
    return state.base + slot * state.slot_floats + static_cast<int64_t>(position % state.capacity) * (2 * stored);
  }
};

struct Params {
  StepRows rows;
  int ratio;
  float norm_eps;
  RopeFrequencies rope;
  int poolers;
  Pooler pooler[2];  // that of the entries; V4's of the index keys
  PagedCache entries, keys;
  const bf16* wk;  // V4.1's index keys: [128, 512], or null
  const bf16* k_norm;
};

// The rows that a channel of a group is pooled from: of this step, and of the state what came before.
struct Group {
  const Pooler& p;
  const RowRun& run;
  int channel;
  int first, begin, end;  // positions: with overlap the group before is from `first` to `begin`

  __device__ __forceinline__ Group(const Pooler& pooler, const RowRun& of_run, int ratio, int entry, int of_channel)
      : p(pooler), run(of_run), channel(of_channel) {
    begin = entry * ratio;
    end = begin + ratio;
    first = p.overlap && entry > 0 ? begin - ratio : begin;
  }

  __device__ __forceinline__ int channel_at(int position) const {
    return channel + (p.overlap && position >= begin ? p.width : 0);
  }
  // Where the rows from a position on lie, and what their gates lack; past the end the last.
  struct Batch {
    const float *kv[kBatch], *gate[kBatch];
    float bias[kBatch];
  };
  __device__ __forceinline__ Batch batch(int from) const {
    Batch at;
    const int capacity = p.state.capacity;
    const float* state = p.state_row(run.slot, 0);
    const int place = from % capacity;
    const int64_t row = run.first_row + from - run.first_position;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int step = min(i, end - 1 - from);
      const int position = from + step;
      const int c = channel_at(position);
      const bool is_saved = position < run.first_position;
      const int wrapped = place + step - (place + step >= capacity ? capacity : 0);
      const float* saved = state + static_cast<int64_t>(wrapped) * (2 * p.stored) + c;
      const int64_t of_step = (row + step) * p.stored + c;
      at.gate[i] = is_saved ? saved + p.stored : p.gate + of_step;
      at.kv[i] = is_saved ? saved : p.kv + of_step;
      const int phase = position - (position >= begin ? begin : first);
      at.bias[i] = is_saved || p.ape == nullptr ? 0.0f : p.ape[phase * p.stored + c];
    }
    return at;
  }
  // The biased gates of a batch, -inf from the end on.
  __device__ __forceinline__ void load_gates(int from, const Batch& at, float (&gates)[kBatch]) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) gates[i] = *at.gate[i];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) gates[i] = from + i < end ? gates[i] + at.bias[i] : -INFINITY;
  }

  // The rows of the state into the second-level cache.
  __device__ __forceinline__ void prefetch() const {
    for (int position = first; position < min(end, run.first_position); ++position) {
      const float* row = p.state_row(run.slot, position) + channel_at(position);
      ptx::prefetch(row);
      ptx::prefetch(row + p.stored);
    }
  }

  // The channel, not yet rounded, given batch(first). Tokens in order, so that the bits do not tell where a step began.
  __device__ __forceinline__ float pool(const Batch& first_batch) const {
    float gates[kBatch], values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) values[i] = *first_batch.kv[i];
    load_gates(first, first_batch, gates);
    float most = -INFINITY;
#pragma unroll
    for (const float g : gates) most = fmaxf(most, g);
    for (int from = first + kBatch; from < end; from += kBatch) {
      float others[kBatch];
      load_gates(from, batch(from), others);
#pragma unroll
      for (const float g : others) most = fmaxf(most, g);
    }
    float weighted = 0, total = 0;
    for (int from = first; from < end; from += kBatch) {
      if (from > first) {
        const Batch at = batch(from);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) values[i] = *at.kv[i];
        load_gates(from, at, gates);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (from + i >= end) break;
        const float share = expf(gates[i] - most);
        weighted += share * values[i];
        total += share;
      }
    }
    return weighted / total;
  }
};

// A warp: turns a latent and stores it. Lane l has the values from 16 l on.
template <RecordFormat kFormat>
__device__ __forceinline__ void store_entry(const Params& p, const int32_t* pages, int entry, const float* latent,
                                            const float* angles, int lane) {
  float v[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) v[i] = latent[lane * 16 + i];
  constexpr int kFirstTurned = (kHeadDim - kRopeDim) / 16;
  if (lane >= kFirstTurned) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int pair = (lane - kFirstTurned) * 8 + i;
      rotate_pair(v[2 * i], v[2 * i + 1], angles[pair], angles[kRopeDim / 2 + pair]);
    }
  }
  const EntryPlace place =
      entry_place(p.entries, pages, entry, record_data_bytes(kFormat), record_scale_bytes(kFormat));
  encode_record<kFormat>(v, lane, place.data, place.scales);
}

// A warp: stores a key. Lane l has the values from 4 l on.
__device__ __forceinline__ void store_key(const Params& p, const int32_t* pages, int entry, const float (&v)[4],
                                          int lane) {
  constexpr RecordFormat kFormat = RecordFormat::kIndexMxfp4;
  const EntryPlace place = entry_place(p.keys, pages, entry, record_data_bytes(kFormat), record_scale_bytes(kFormat));
  encode_record<kFormat>(v, lane, place.data, place.scales);
}

// A block: the row as later groups need it, of the newest rows of every run.
__device__ __forceinline__ void save_row(const Params& p, const Pooler& pooler, int row) {
  const int position = p.rows.position[row];
  const RowRun run = p.rows.runs[p.rows.run_of[row]];
  float* to = pooler.state_row(run.slot, position);
  const int64_t from = static_cast<int64_t>(row) * pooler.stored;
  const float* ape = pooler.ape == nullptr ? nullptr : pooler.ape + position % p.ratio * pooler.stored;
  ptx::wait_for_previous_kernel();
  if (position < run.first_position + run.count - pooler.state.capacity) return;
#pragma unroll 2
  for (int c = threadIdx.x; c < pooler.stored; c += kThreads) {
    const float kv = pooler.kv[from + c], gate = pooler.gate[from + c];
    to[c] = kv;
    to[pooler.stored + c] = ape == nullptr ? gate : gate + ape[c];
  }
}

// A block: the group that ends at the row, if one does.
__device__ __forceinline__ void compress_group(const Params& p, int number, int row) {
  __shared__ __align__(8) float latent[kHeadDim];
  __shared__ float key[kIndexDim];
  __shared__ float angles[kRopeDim];
  __shared__ double squares[kWarps];
  const int channel = threadIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int position = p.rows.position[row];
  if ((position + 1) % p.ratio != 0) {
    ptx::wait_for_previous_kernel();
    return;
  }
  const RowRun run = p.rows.runs[p.rows.run_of[row]];
  const int entry = position / p.ratio;
  const int32_t* pages = p.rows.page_table + static_cast<int64_t>(run.slot) * p.rows.pages_per_slot;
  const bool of_keys = number == 1;
  const Pooler& pooler = p.pooler[number];
  const Group group(pooler, run, p.ratio, entry, channel);
  const bool pools = p.ratio > 1 && channel < pooler.width;
  Group::Batch first_batch;
  if (pools) {
    group.prefetch();
    first_batch = group.batch(group.first);
  }
  const float norm = channel < pooler.width ? bf16_to_float(pooler.norm[channel]) : 0.0f;

  if (warp == kWarps - 1) {
    // As kernels/rope.cc, at the group's first token.
    const double angle = __fmul_rn(static_cast<float>(entry * p.ratio), p.rope.frequency[lane]);
    angles[lane] = static_cast<float>(cos(angle));
    angles[kRopeDim / 2 + lane] = static_cast<float>(sin(angle));
  }
  ptx::wait_for_previous_kernel();
  float x = 0;
  if (channel < pooler.width) {
    x = p.ratio == 1 ? bf16_to_float(pooler.latent[static_cast<int64_t>(row) * pooler.width + channel])
                     : round_bf16(group.pool(first_batch));
  }
  const double square = warp_sum(static_cast<double>(x) * x);
  if (lane == 0) squares[warp] = square;
  __syncthreads();
  double sum = 0;
#pragma unroll
  for (const double of_warp : squares) sum += of_warp;
  if (channel < pooler.width) {
    const float normed = x * rms_scale(sum, pooler.width, p.norm_eps);
    latent[channel] = round_bf16(norm * normed);
  }
  __syncthreads();

  if (of_keys) {
    if (warp != 0) return;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = latent[lane * 4 + i];
    rope_index_vector(v, lane, angles);
    hadamard(v, lane);
    store_key(p, pages, entry, v, lane);
    return;
  }
  if (p.wk != nullptr) {
    // The key's products, from the latent before it turns.
    for (int out = warp; out < kIndexDim; out += kWarps) {
      const uint32_t* weights = reinterpret_cast<const uint32_t*>(p.wk + out * kHeadDim);
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kHeadDim / 64; ++i) {
        const float2 w = unpack_bf16(__ldg(weights + i * 32 + lane));
        const float2 of_latent = reinterpret_cast<const float2*>(latent)[i * 32 + lane];
        dot = fmaf(w.x, of_latent.x, dot);
        dot = fmaf(w.y, of_latent.y, dot);
      }
      dot = static_cast<float>(warp_sum(static_cast<double>(dot)));
      if (lane == 0) key[out] = round_bf16(dot);
    }
    __syncthreads();
  }
  if (warp == 0) {
    switch (p.entries.format) {
      case RecordFormat::kV4Fp8:
        store_entry<RecordFormat::kV4Fp8>(p, pages, entry, latent, angles, lane);
        break;
      case RecordFormat::kV41Fp8:
        store_entry<RecordFormat::kV41Fp8>(p, pages, entry, latent, angles, lane);
        break;
      default:
        store_entry<RecordFormat::kV41Nvfp4>(p, pages, entry, latent, angles, lane);
    }
  } else if (warp == 1 && p.wk != nullptr) {
    float v[4];
    double of_lane = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = key[lane * 4 + i];
      of_lane += static_cast<double>(v[i]) * v[i];
    }
    const float scale = rms_scale(warp_sum(of_lane), kIndexDim, p.norm_eps);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = round_bf16(bf16_to_float(p.k_norm[lane * 4 + i]) * (v[i] * scale));
    rope_index_vector(v, lane, angles);
    store_key(p, pages, entry, v, lane);
  }
}

// grid: rows x tasks, from `first_task` on. A task is a compressor's groups, then a compressor's rows.
__global__ void __launch_bounds__(kThreads) compress_rows(const __grid_constant__ Params p, int first_task) {
  ptx::let_next_kernel_start();
  const int task = first_task + blockIdx.y;
  if (task < p.poolers) {
    compress_group(p, task, blockIdx.x);
  } else {
    save_row(p, p.pooler[task - p.poolers], blockIdx.x);
  }
}

Pooler pooler_of(const Compressor& compressor) {
  return {.kv = compressor.kv,
          .gate = compressor.gate,
          .latent = compressor.latent,
          .ape = compressor.ape,
          .norm = compressor.norm,
          .width = compressor.width,
          .stored = compressor.stored(),
          .overlap = compressor.overlap,
          .state = compressor.state};
}

// Whether no row that a run of so many can save lies where one of its groups reads: the newest takes the place of the
// one `capacity` before it, and the oldest that a group reads is `lookback` - 1 before the run.
bool saves_at_once(const Compressor& compressor, int ratio, int rows) {
  const int lookback = compressor.overlap ? 2 * ratio : ratio;
  return rows <= compressor.state.capacity - lookback + 1;
}

}  // namespace

void compress(const Stage& stage, const CompressArgs& args) {
  const int rows = stage.rows.count;
  const Compressor* of_keys = args.index_compressor;
  ONELANE_CHECK(args.main.width == kHeadDim, "a compressed entry has 512 values");
  ONELANE_CHECK(!args.wk || args.wk.kind == Matrix::Kind::kBf16, "wk is bf16");
  ONELANE_CHECK(of_keys == nullptr || of_keys->width == kIndexDim, "an index key has 128 values");
  Params params = {.rows = stage.rows,
                   .ratio = args.ratio,
                   .norm_eps = args.norm_eps,
                   .rope = *args.rope,
                   .poolers = of_keys == nullptr ? 1 : 2,
                   .pooler = {pooler_of(args.main)},
                   .entries = args.entries,
                   .keys = args.keys,
                   .wk = args.wk ? reinterpret_cast<const bf16*>(args.wk.data) : nullptr,
                   .k_norm = args.k_norm};
  if (of_keys != nullptr) params.pooler[1] = pooler_of(*of_keys);

  const auto run_tasks = [&](int first, int count) {
    launch(stage, "compress_rows", compress_rows, dim3(rows, count), dim3(kThreads), 0, params, first);
  };
  if (args.ratio == 1) return run_tasks(0, params.poolers);
  if (saves_at_once(args.main, args.ratio, rows) && (of_keys == nullptr || saves_at_once(*of_keys, args.ratio, rows))) {
    return run_tasks(0, 2 * params.poolers);
  }
  run_tasks(0, params.poolers);
  run_tasks(params.poolers, params.poolers);
}

}  // namespace onelane::cuda
