// Scores of index keys, exact.
//
// A block has the queries of some rows in shared memory and walks tiles of keys; a warp has 32 keys in registers, for
// those of the rows that are its.
//
//   D[16 keys, 8 heads] = keys x queries   mma on f16, where codes are exact, and so are sums of a block of 32 dims
//   dot += D * scale * scale               blocks ascending
//   S += relu(dot) * weight                heads ascending. The four lanes that have a key's heads trade, so that each
//                                          has all eight heads of one of its four keys
//
// Plain queries and keys, which are the rule, have four scales close to each other. They become operands times
// 2^(scale - largest scale), so that one chain of products gives the whole dot: a sum of 128 products of at most 36 in
// units of 2^-2 times 2^-(both spreads), at most 22.2 bits, so that no float sum of them rounds, in whatever order.
// What is left of the scales are powers of two of a head, which go into its weight, and of a key, which wait until its
// score is complete.
//
// Which of a block's dims stand where in the product does not matter, as long as both operands agree: a lane takes 32
// bits, eight codes, as they lie.
#include <algorithm>

#include "base/check.h"
#include "cuda/index/index.h"
#include "cuda/index/operands.h"
#include "cuda/index/vectors.h"
#include "cuda/linear/piece.h"
#include "cuda/ptx/mma.h"

namespace onelane::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpKeys = 32;
constexpr int kMostRows = 8;  // of a block
constexpr int kBlocks = kIndexBlocks;
constexpr int kHalfWarps = 8;  // with keys of their own, where keys are many or so few that blocks would have none

// Of a plain row of queries.
constexpr float kLeastWeight = 0x1p-40f, kMostWeight = 0x1p40f;

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// sum * 2^(codes - 254) whatever the codes are, rounded once.
__device__ __forceinline__ float scaled(float sum, uint32_t query_code, uint32_t key_code) {
  if (query_code == 255 || key_code == 255) return __uint_as_float(0x7fc00000u);
  const int exponent = static_cast<int>(query_code + key_code) - 254;
  const int first = min(max(exponent, -126), 127);
  const int rest = min(max(exponent - first, -126), 127);
  return sum * power_of_two(first) * power_of_two(rest);
}

// A row's queries in shared memory.
struct SharedRow {
  uint4* operands;        // [heads / 8][kBlocks][lanes]: of the two products of a block, B
  float* scaled_weights;  // [heads]: times a plain query's scale
  float* weights;         // [heads]
  uint32_t* scales;       // [heads]: IndexScales::codes

  static constexpr int kHeadBytes = 8 * 2 * 16 + 4 + 4 + 4;
  __device__ __forceinline__ SharedRow(uint8_t* shared, int row, int heads) {
    uint8_t* start = shared + row * heads * kHeadBytes;
    operands = reinterpret_cast<uint4*>(start);
    scaled_weights = reinterpret_cast<float*>(start + heads * 256);
    weights = scaled_weights + heads;
    scales = reinterpret_cast<uint32_t*>(weights + heads);
  }
};

// Lane t of the four that share a key's heads has x[j], of key j; on return x[s] of key t, from lane s.
__device__ __forceinline__ void trade(float (&x)[4], int t) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((j & distance) != 0) continue;
      const bool upper = (t & distance) != 0;
      const float received = __shfl_xor_sync(0xffffffff, upper ? x[j] : x[j + distance], distance);
      if (upper) {
        x[j] = received;
      } else {
        x[j + distance] = received;
      }
    }
  }
}

// A warp's keys, as operand A: two tiles of 16. Lane 4 g + t has of keys 16 m + 8 half + g eight codes of each block.
struct WarpKeys {
  uint32_t a[2][kBlocks][2][4];
  uint32_t scales[2][2];  // [m][half]: IndexScales::codes
  float factor;           // of the lane's key, if plain
  bool plain;             // all of the warp's

  // Keys [first, first + 32); from `end` on zeros. Past the first-level cache: this step's keys are neighbours of older
  // ones, which may be loaded before those are made.
  __device__ __forceinline__ void load(const PagedCache& keys, const int32_t* pages, int first, int end, int lane) {
    constexpr RecordFormat kFormat = RecordFormat::kIndexMxfp4;
    const int g = lane / 4, t = lane % 4;
    uint32_t codes[2][2][kBlocks];
    uint32_t raw[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = i / 2, half = i % 2;
      const int entry = first + 8 * i + g;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) codes[m][half][b] = 0;
      raw[m][half] = 0x7f7f7f7fu;
      if (entry >= end) continue;
      const EntryPlace place = entry_place(keys, pages, entry, record_data_bytes(kFormat), record_scale_bytes(kFormat));
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        codes[m][half][b] = __ldcg(reinterpret_cast<const uint32_t*>(place.data) + b * 4 + t);
      }
      raw[m][half] = __ldcg(reinterpret_cast<const uint32_t*>(place.scales));
    }
    plain = true;
    factor = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = i / 2, half = i % 2;
      const IndexScales of_key(raw[m][half]);
      scales[m][half] = of_key.codes;
      plain = plain && of_key.plain;
      if (t == i) factor = power_of_two(byte_of(of_key.codes, 0) - 127);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        uint32_t pairs[4];
        e2m1_to_f16(codes[m][half][b], pairs);
        const uint32_t times = of_key.factor(raw[m][half], b);
#pragma unroll
        for (int j = 0; j < 4; ++j) a[m][b][j / 2][half + 2 * (j % 2)] = ptx::multiply_f16(pairs[j], times);
      }
    }
    plain = __all_sync(0xffffffff, plain);
  }
};

// The score of the lane's key: 8 t + g.
template <bool kPlain>
__device__ __forceinline__ float score(const WarpKeys& keys, const SharedRow& row, int heads, int lane) {
  const int t = lane % 4;
  float sum = 0;
#pragma unroll 1
  for (int first = 0; first < heads; first += 8) {
    float dots[2][4] = {};    // [m][2 half + i]: of heads first + 2 t + i
    float others[2][4] = {};  // a second chain of plain products, which no order rounds
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const uint4 query = row.operands[(first / 8 * kBlocks + b) * 32 + lane];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        if constexpr (kPlain) {
          ptx::mma_f16(dots[m], keys.a[m][b][0], query.x, query.y);
          ptx::mma_f16(others[m], keys.a[m][b][1], query.z, query.w);
        } else {
          float d[4] = {0, 0, 0, 0};
          ptx::mma_f16(d, keys.a[m][b][0], query.x, query.y);
          ptx::mma_f16(d, keys.a[m][b][1], query.z, query.w);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint32_t query_scales = row.scales[first + 2 * t + i % 2];
            const float part = scaled(d[i], byte_of(query_scales, b), byte_of(keys.scales[m][i / 2], b));
            dots[m][i] = b == 0 ? part : __fadd_rn(dots[m][i], part);
          }
        }
      }
    }
    const float2 weights =
        *reinterpret_cast<const float2*>((kPlain ? row.scaled_weights : row.weights) + first + 2 * t);
    float x[2][4];  // [i][key]
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int key = 0; key < 4; ++key) {
        const int at = key % 2 * 2 + i;
        const float dot = kPlain ? dots[key / 2][at] + others[key / 2][at] : dots[key / 2][at];
        const float passed = kPlain ? fmaxf(dot, 0.0f) : dot < 0 ? 0.0f : dot;  // a NaN passes
        x[i][key] = __fmul_rn(passed, i == 0 ? weights.x : weights.y);
      }
      trade(x[i], t);
    }
#pragma unroll
    for (int from = 0; from < 4; ++from) {
      sum = __fadd_rn(sum, x[0][from]);
      sum = __fadd_rn(sum, x[1][from]);
    }
  }
  return kPlain ? sum * keys.factor : sum;
}

// Queries to shared memory; plain[r]: whether all of a row are.
__device__ __forceinline__ void load_queries(const IndexQueries& queries, int first_row, int rows, uint8_t* shared,
                                             int* plain) {
  const int heads = queries.heads;
  if (threadIdx.x < kMostRows) plain[threadIdx.x] = 1;
  __syncthreads();
  const uint32_t* scales = reinterpret_cast<const uint32_t*>(queries.scales) + int64_t{first_row} * heads;
  const int words = heads * (8 * 2);
  for (int r = 0; r < rows; ++r) {
    const uint4* from = queries.operands + int64_t{first_row + r} * words;
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(SharedRow(shared, r, heads).operands));
    for (int i = threadIdx.x; i < words; i += kThreads) ptx::copy_async(to + i * 16, from + i);
  }
  ptx::copies_commit();
  for (int i = threadIdx.x; i < rows * heads; i += kThreads) {
    const int head = i % heads;
    const SharedRow row(shared, i / heads, heads);
    const IndexScales of_query(scales[i]);
    const float weight = queries.weights[int64_t{first_row} * heads + i];
    row.scales[head] = of_query.codes;
    row.weights[head] = weight;
    row.scaled_weights[head] = of_query.plain ? weight * power_of_two(byte_of(of_query.codes, 0) - 127) : 0.0f;
    const bool usual = weight == 0 || (fabsf(weight) >= kLeastWeight && fabsf(weight) <= kMostWeight);
    if (!of_query.plain || !usual) plain[i / heads] = 0;
  }
  ptx::copies_wait();
  __syncthreads();
}

// Which keys and rows of its group a block has.
struct Part {
  int first, count;  // of the rows
  int key_warps;     // warps with different keys
  int tile, step, tiles;
  bool works;

  // `most`: of the entries that the group's rows see. Where there are few, a block has a row alone and all of its warps
  // other keys, or half of them where that makes enough blocks, so that more have something to do.
  __device__ __forceinline__ Part(int rows, int most) {
    const int walkers = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    constexpr int kWholeTile = kWarps * kWarpKeys, kHalfTile = kHalfWarps * kWarpKeys;
    const int whole_tiles = (most + kWholeTile - 1) / kWholeTile, half_tiles = (most + kHalfTile - 1) / kHalfTile;
    const bool few = whole_tiles * rows <= walkers;
    key_warps = few && half_tiles * rows > walkers ? kWarps : kHalfWarps;
    tiles = key_warps == kWarps ? whole_tiles : half_tiles;
    works = block < (few ? tiles * rows : tiles);
    first = few && works ? block / tiles : 0;
    count = few ? 1 : rows;
    tile = block - first * tiles;
    step = few ? tiles : walkers;
  }
};

// grid: some walkers of tiles x groups of `rows_a_block` rows
__global__ void __launch_bounds__(kThreads, 1)
    score_tiles(const StepRows rows, const IndexQueries queries, const IndexChoice choice, const IndexScores scores,
                int rows_a_block) {
  ONELANE_DYNAMIC_SHARED(uint8_t, shared);
  __shared__ int plain[kMostRows];
  ptx::let_next_kernel_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group_row = scores.first_row + blockIdx.y * rows_a_block;
  const int group_rows = min(rows_a_block, scores.first_row + scores.rows - group_row);
  int most = 0;
  if (lane < group_rows) {
    const int visible = choice.visible(rows.position[group_row + lane]);
    if (choice.is_scored(visible)) most = visible;
  }
  const Part part(group_rows, __reduce_max_sync(0xffffffff, most));
  const int first_row = group_row + part.first;

  WarpKeys keys;
  int loaded_run = -1, loaded_first = -1;
  const auto load_keys = [&](int row, int first) {
    const int run_number = rows.run_of[row];
    if (run_number == loaded_run && first == loaded_first) return;
    // For all of the block's rows of this sequence: the last sees most.
    const RowRun run = rows.runs[run_number];
    const int last = min(first_row + part.count, run.first_row + run.count) - 1;
    const int end = choice.visible(run.first_position + last - run.first_row);
    keys.load(choice.keys, rows.page_table + static_cast<int64_t>(run.slot) * rows.pages_per_slot, first, end, lane);
    loaded_run = run_number, loaded_first = first;
  };
  const auto first_of = [&](int tile) { return (tile * part.key_warps + warp % part.key_warps) * kWarpKeys; };
  const int warp_row = first_row + warp / part.key_warps;
  if (part.works && warp_row < first_row + part.count) {
    // Keys of earlier steps have been there since before this one.
    const RowRun run = rows.runs[rows.run_of[warp_row]];
    const int first = first_of(part.tile);
    if (first + kWarpKeys <= run.first_position / choice.ratio) load_keys(warp_row, first);
  }
  ptx::wait_for_previous_kernel();
  if (!part.works) return;
  load_queries(queries, first_row, part.count, shared, plain);

  for (int tile = part.tile; tile < part.tiles; tile += part.step) {
    const int first = first_of(tile);
    const int mine = first + lane % 4 * 8 + lane / 4;
    for (int row = warp_row; row < first_row + part.count; row += kWarps / part.key_warps) {
      const int visible = choice.visible(rows.position[row]);
      if (!choice.is_scored(visible) || first >= visible) continue;
      float* to = scores.of_row(row);
      bool wanted = mine < visible;
      if (choice.mode == IndexArgs::Candidates::kApply) {
        wanted = wanted && choice.is_candidate(row, mine);
        if (!__any_sync(0xffffffff, wanted)) {
          if (mine < visible) to[mine] = -INFINITY;
          continue;
        }
      }
      load_keys(row, first);
      const int r = row - first_row;
      const SharedRow query(shared, r, queries.heads);
      const float s = keys.plain && plain[r] != 0 ? score<true>(keys, query, queries.heads, lane)
                                                  : score<false>(keys, query, queries.heads, lane);
      if (mine < visible) to[mine] = wanted && !isnan(s) ? s : -INFINITY;
    }
  }
}

}  // namespace

void score_entries(const Stage& stage, const IndexQueries& queries, const IndexChoice& choice,
                   const IndexScores& scores) {
  const size_t row_bytes = static_cast<size_t>(queries.heads) * SharedRow::kHeadBytes;
  const size_t fitting = (shared_memory_limit() - 1024) / row_bytes;
  ONELANE_CHECK(fitting > 0, "the queries of a row of the indexer do not fit shared memory");
  const int rows_a_block = std::min({kMostRows, scores.rows, static_cast<int>(fitting)});
  const int groups = (scores.rows + rows_a_block - 1) / rows_a_block;
  // As many as have something to do, whether rows are apart or together (Part).
  const int most = scores.stride + kWarpKeys - 1;
  const int useful = rows_a_block * (most / (kHalfWarps * kWarpKeys) + 1);
  const int walkers = std::max(1, std::min(useful, stage.processors / groups));
  launch(stage, "score_tiles", score_tiles, dim3(walkers, groups), dim3(kThreads), rows_a_block * row_bytes, stage.rows,
         queries, choice, scores, rows_a_block);
}

}  // namespace onelane::cuda
