// Scores of index keys, exact.
//
// A block has the queries of up to four rows in shared memory and walks tiles of 256 keys; a warp has 32 keys in
// registers, for all of these rows that are of one sequence.
//
//   D[16 keys, 8 heads] = keys x queries   mma on f16 over a block of 32 dims. Codes as f16 are exact, and so is the
//                                          sum: an integer times 2^-30
//   dot += D * scale * scale               blocks ascending
//   S += relu(dot) * weight                heads ascending. The four lanes that have a key's heads trade, so that each
//                                          has all eight heads of one of its four keys
//
// Which of a block's dims stand where in the product does not matter, as long as both operands agree: a lane takes 32
// bits, eight codes, as they lie.
#include <algorithm>

#include "base/check.h"
#include "cuda/index/index.h"
#include "cuda/index/vectors.h"
#include "cuda/linear/decode.h"
#include "cuda/ptx/mma.h"

namespace onelane::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpKeys = 32;
constexpr int kTile = kWarps * kWarpKeys;
constexpr int kRows = 4;    // of a block
constexpr int kBlocks = 4;  // of 32 dims

// Both operands are 2^-14 times their values.
constexpr float kUnit = kE2m1Unit * kE2m1Unit;

// Scale codes whose products, kUnit and a sum cannot leave the normal floats.
constexpr uint32_t kLeastPlain = 80, kMostPlain = 170;
__device__ __forceinline__ bool are_plain(uint32_t codes) {
  bool plain = true;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const uint32_t code = codes >> (8 * b) & 255;
    plain &= code >= kLeastPlain && code <= kMostPlain;
  }
  return plain;
}

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// sum * kUnit * 2^(codes - 254) whatever the codes are, rounded once.
__device__ __forceinline__ float scaled(float sum, uint32_t query_code, uint32_t key_code) {
  if (query_code == 255 || key_code == 255) return __uint_as_float(0x7fc00000u);
  const int exponent = static_cast<int>(query_code + key_code) - 254;
  const int first = min(max(exponent, -126), 127);
  const int rest = min(max(exponent - first, -126), 127);
  return sum * kUnit * power_of_two(first) * power_of_two(rest);
}

// A row's queries in shared memory.
struct SharedRow {
  uint4* operands;   // [heads / 8][kBlocks][lanes]: of the two products of a block, B
  float4* factors;   // [heads]: scale * kUnit of each block
  uint32_t* scales;  // [heads]: the codes, a byte each
  float* weights;    // [heads]

  static constexpr int kHeadBytes = 8 * 2 * 16 + 16 + 4 + 4;
  __device__ __forceinline__ SharedRow(uint8_t* shared, int row, int heads) {
    uint8_t* start = shared + row * heads * kHeadBytes;
    operands = reinterpret_cast<uint4*>(start);
    factors = reinterpret_cast<float4*>(start + heads * 256);
    scales = reinterpret_cast<uint32_t*>(start + heads * 272);
    weights = reinterpret_cast<float*>(start + heads * 276);
  }
};

__device__ __forceinline__ float of_block(const float4& factors, int block) {
  return block == 0 ? factors.x : block == 1 ? factors.y : block == 2 ? factors.z : factors.w;
}

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
  uint32_t scales[2][2];  // [m][half]: four codes
  bool plain;             // all of the warp's

  // Keys [first, first + 32); from `end` on zeros.
  __device__ __forceinline__ void load(const PagedCache& keys, const int32_t* pages, int first, int end, int lane) {
    constexpr RecordFormat kFormat = RecordFormat::kIndexMxfp4;
    const int g = lane / 4, t = lane % 4;
    plain = true;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int entry = first + 16 * m + 8 * half + g;
        uint32_t codes[kBlocks] = {};
        scales[m][half] = 0x7f7f7f7fu;
        if (entry < end) {
          const EntryPlace place =
              entry_place(keys, pages, entry, record_data_bytes(kFormat), record_scale_bytes(kFormat));
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) codes[b] = reinterpret_cast<const uint32_t*>(place.data)[b * 4 + t];
          scales[m][half] = *reinterpret_cast<const uint32_t*>(place.scales);
        }
        plain &= are_plain(scales[m][half]);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          uint32_t pairs[4];
          e2m1_to_f16(codes[b], pairs);
#pragma unroll
          for (int i = 0; i < 4; ++i) a[m][b][i / 2][half + 2 * (i % 2)] = pairs[i];
        }
      }
    }
    plain = __all_sync(0xffffffff, plain);
  }
};

// The score of the lane's key: 16 (t / 2) + 8 (t % 2) + g.
template <bool kPlain>
__device__ __forceinline__ float score(const WarpKeys& keys, const SharedRow& row, int heads, int lane) {
  const int t = lane % 4;
  float sum = 0;
  for (int first = 0; first < heads; first += 8) {
    float4 factors[2];
    uint32_t query_scales[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kPlain) factors[i] = row.factors[first + 2 * t + i];
      if constexpr (!kPlain) query_scales[i] = row.scales[first + 2 * t + i];
    }
    float dots[2][4];  // [m][2 half + i]: of heads first + 2 t + i
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const uint4 query = row.operands[(first / 8 * kBlocks + b) * 32 + lane];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        float d[4] = {0, 0, 0, 0};
        ptx::mma_f16(d, keys.a[m][b][0], query.x, query.y);
        ptx::mma_f16(d, keys.a[m][b][1], query.z, query.w);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t key_code = keys.scales[m][i / 2] >> (8 * b) & 255;
          float part;
          if constexpr (kPlain) {
            part = __fmul_rn(d[i], of_block(factors[i % 2], b) * __uint_as_float(key_code << 23));
          } else {
            part = scaled(d[i], query_scales[i % 2] >> (8 * b) & 255, key_code);
          }
          dots[m][i] = b == 0 ? part : __fadd_rn(dots[m][i], part);
        }
      }
    }
    float x[2][4];  // [i][key]
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float weight = row.weights[first + 2 * t + i];
#pragma unroll
      for (int key = 0; key < 4; ++key) {
        const float dot = dots[key / 2][key % 2 * 2 + i];
        x[i][key] = __fmul_rn(dot < 0 ? 0.0f : dot, weight);  // a NaN passes
      }
      trade(x[i], t);
    }
#pragma unroll
    for (int from = 0; from < 4; ++from) {
      sum = __fadd_rn(sum, x[0][from]);
      sum = __fadd_rn(sum, x[1][from]);
    }
  }
  return sum;
}

// Queries to shared memory; plain[r]: whether all scales of a row are.
__device__ __forceinline__ void load_queries(const IndexQueries& queries, int first_row, int rows, uint8_t* shared,
                                             int* plain) {
  const int heads = queries.heads;
  if (threadIdx.x < kRows) plain[threadIdx.x] = 1;
  __syncthreads();
  constexpr int kWords = kIndexDim / 8;  // of 8 codes, a head
  const uint32_t* codes = reinterpret_cast<const uint32_t*>(queries.codes) + int64_t{first_row} * heads * kWords;
  for (int i = threadIdx.x; i < rows * heads * kWords; i += kThreads) {
    const int word = i % kWords, head = i / kWords % heads, row = i / kWords / heads;
    const int lane = head % 8 * 4 + word % 4;
    uint32_t pairs[4];
    e2m1_to_f16(codes[i], pairs);
    SharedRow(shared, row, heads).operands[(head / 8 * kBlocks + word / 4) * 32 + lane] =
        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
  const uint32_t* scales = reinterpret_cast<const uint32_t*>(queries.scales) + int64_t{first_row} * heads;
  for (int i = threadIdx.x; i < rows * heads; i += kThreads) {
    const int head = i % heads;
    const SharedRow row(shared, i / heads, heads);
    const uint32_t code = scales[i];
    const auto factor = [&](int b) { return e8m0_to_float(code >> (8 * b) & 255) * kUnit; };
    row.factors[head] = make_float4(factor(0), factor(1), factor(2), factor(3));
    row.scales[head] = code;
    row.weights[head] = queries.weights[int64_t{first_row} * heads + i];
    if (!are_plain(code)) plain[i / heads] = 0;
  }
  __syncthreads();
}

// grid: some walkers of tiles x rows / kRows
__global__ void __launch_bounds__(kThreads, 2)
    score_tiles(const StepRows rows, const IndexQueries queries, const IndexChoice choice, const IndexScores scores) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ int plain[kRows];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int first_row = scores.first_row + blockIdx.y * kRows;
  const int count = min(kRows, scores.first_row + scores.rows - first_row);
  int most = 0;
  for (int r = 0; r < count; ++r) {
    const int visible = choice.visible(rows.position[first_row + r]);
    if (choice.is_scored(visible)) most = max(most, visible);
  }
  const int tiles = (most + kTile - 1) / kTile;
  if (static_cast<int>(blockIdx.x) >= tiles) return;
  load_queries(queries, first_row, count, shared, plain);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int first = tile * kTile + warp * kWarpKeys;
    const int mine = first + lane % 4 / 2 * 16 + lane % 2 * 8 + lane / 4;
    WarpKeys keys;
    int loaded = -1;  // whose
    for (int r = 0; r < count; ++r) {
      const int row = first_row + r;
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
      const int run_number = rows.run_of[row];
      if (run_number != loaded) {
        // For all of the block's rows of this sequence: the last sees most.
        const RowRun run = rows.runs[run_number];
        const int last = min(first_row + count, run.first_row + run.count) - 1;
        const int end = choice.visible(run.first_position + last - run.first_row);
        keys.load(choice.keys, rows.page_table + static_cast<int64_t>(run.slot) * rows.pages_per_slot, first, end,
                  lane);
        loaded = run_number;
      }
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
  constexpr int kMostHeads = 192;  // whose queries fit shared memory
  ONELANE_CHECK(queries.heads <= kMostHeads, "the indexer has at most 192 heads");
  const int groups = (scores.rows + kRows - 1) / kRows;
  const int tiles = (scores.stride + kTile - 1) / kTile;
  const int walkers = std::max(1, std::min(tiles, (2 * stage.processors + groups - 1) / groups));
  const int rows = std::min(kRows, scores.rows);
  launch(stage, "score_tiles", score_tiles, dim3(walkers, groups), dim3(kThreads),
         static_cast<size_t>(rows) * queries.heads * SharedRow::kHeadBytes, stage.rows, queries, choice, scores);
}

}  // namespace onelane::cuda
