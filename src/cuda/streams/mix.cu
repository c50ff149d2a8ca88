// mix_streams in two kernels, the second of which is there before the first has ended.
//
// mix_products: a block has 32 dims, of each of the four copies a warp, and takes every row's stream across them. fn is
// float and is taken apart into three bf16 that add up to it exactly, so that the products are those of bf16 matrices.
// A block reads its part of fn once, before it waits for what it depends on. Where the stream is still to be expanded,
// it first does that to its dims, and where what it is expanded by is still to be summed up, that before.
// mix_finish: a block a row. Its last warp makes the coefficients from the blocks' sums and walks the Sinkhorn
// iterations, while the others collapse and normalise the row. They do so for *places*, whose number the width fixes
// and with it the order of the sum of squares; a thread has one of them, or where rows are many, so that more of them
// are there at a time, two.
#include <algorithm>

#include "base/check.h"
#include "cuda/stages.h"
#include "cuda/streams/collapse.h"
#include "cuda/streams/row_tiles.h"

namespace onelane::cuda {
namespace {

constexpr int kWarps = kStreams;  // a copy's columns each
constexpr int kOutputTiles = kMixes / 8;
constexpr int kSquares = kMixes;      // the sum of the squares, beside the products
constexpr int kSums = 32;             // floats of a row's sums over a segment, padded to a line
constexpr int kAdders = 8;            // a row's segments are added up in so many parts
constexpr int kMostPlaces = 16 * 32;  // of a row, see mix_finish
constexpr int kFewWorkers = 8 * 32;   // threads of a row, where there are many
constexpr int kAtOnce = 20;           // segments that a warp asks for at once

// The bf16 nearest to two floats, which keep the rest. Three times, and nothing is left of a float.
__device__ __forceinline__ uint32_t take_bf16(float2& v) {
  const uint32_t taken = ptx::pack_bf16(v.x, v.y);
  const float2 value = unpack_bf16(taken);
  v = make_float2(v.x - value.x, v.y - value.y);
  return taken;
}

__device__ __forceinline__ float squares_of(const uint4& v) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack_bf16(word_of(v, i));
    sum += two.x * two.x;
    sum += two.y * two.y;
  }
  sum += __shfl_xor_sync(0xffffffff, sum, 1);
  sum += __shfl_xor_sync(0xffffffff, sum, 2);
  return sum;
}

// What expand_streams adds to the stream.
struct Expansion {
  const bf16* y;      // [rows, dim]; null: the stream is as it should be
  const float* post;  // [rows, 4]
  const float* comb;  // [rows, 4, 4]
  PairSum sum;        // where it has pairs, that makes y
};

// As load_row_tile, of a copy of the stream when it is expanded. `ys`: of the tile's y, or null where expansion.y has
// it.
__device__ __forceinline__ RowTile expand_row_tile(const bf16* stream, const Expansion& expansion, const uint4* ys,
                                                   int dim, int copy, int first_row, int rows, int first_dim,
                                                   int lane) {
  uint4 half[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (first_row + 8 * i >= rows) break;
    const int64_t row = first_row + lane / 4 + 8 * i;
    if (row >= rows) continue;
    const int eight = first_dim / 8 + lane % 4;
    const EightDims dims = load_eight(stream + row * kStreams * dim, dim, eight);
    const uint4 y =
        ys != nullptr ? ys[lane + 32 * i] : __ldcg(reinterpret_cast<const uint4*>(expansion.y + row * dim) + eight);
    const float post = __ldcg(expansion.post + row * kStreams + copy);
    float comb[kStreams];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) comb[j] = __ldcg(expansion.comb + (row * kStreams + j) * kStreams + copy);
    uint32_t out[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint32_t x[kStreams];
      words_of(dims, word, x);
      out[word] = expand_words(x, word_of(y, word), post, comb);
    }
    half[i] = make_uint4(out[0], out[1], out[2], out[3]);
  }
  return {half[0], half[1]};
}

// partial [rows, segments, kSums]: 24 products and the squares of a row over 32 dims. Grid: segments, and over the
// tiles of rows.
template <bool kExpands>
__global__ __launch_bounds__(kWarps * 32) void mix_products(bf16* stream, const Expansion expansion, const float* fn,
                                                            int dim, int rows, float* partial) {
  __shared__ __align__(16) float sums[2][kWarps * kTileRows * kSumStride];
  __shared__ uint4 ys[kTileRows * 4];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_dim = blockIdx.x * kTileColumns;
  const int width = kStreams * dim, column = warp * dim + first_dim;

  uint4 weights[kOutputTiles][3];  // smallest part first
#pragma unroll
  for (int n = 0; n < kOutputTiles; ++n) {
    const auto* from =
        reinterpret_cast<const float4*>(fn + static_cast<int64_t>(8 * n + lane / 4) * width + column + 8 * (lane % 4));
    const float4 low = __ldcg(from), high = __ldcg(from + 1);  // in this order: before the wait
    float2 rest[4] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};
#pragma unroll
    for (int part = 2; part >= 0; --part) {
      weights[n][part].x = take_bf16(rest[0]);
      weights[n][part].y = take_bf16(rest[1]);
      weights[n][part].z = take_bf16(rest[2]);
      weights[n][part].w = take_bf16(rest[3]);
    }
  }

  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int step = gridDim.y * kTileRows;
  int first_row = blockIdx.y * kTileRows;
  const auto load = [&](int row) { return load_row_tile(stream, width, row, rows, column, true, lane); };
  RowTile next[2] = {};  // asked for
  if constexpr (!kExpands) next[0] = load(first_row), next[1] = load(first_row + step);
  for (int buffer = 0; first_row < rows; first_row += step, buffer ^= 1) {
    RowTile x = next[0];
    if constexpr (kExpands) {
      const bool sums_pairs = expansion.sum.pairs != nullptr;
      if (sums_pairs) {
        const int row = first_row + static_cast<int>(threadIdx.x) / 4, eight = first_dim / 8 + threadIdx.x % 4;
        if (threadIdx.x < 4 * kTileRows && row < rows) {
          const uint4 y = sum_of_pairs(expansion.sum, rows, row, eight);
          ys[threadIdx.x] = y;
          reinterpret_cast<uint4*>(expansion.sum.y)[static_cast<int64_t>(row) * (dim / 8) + eight] = y;
        }
        __syncthreads();
      }
      x = expand_row_tile(stream, expansion, sums_pairs ? ys : nullptr, dim, warp, first_row, rows, first_dim, lane);
      __syncthreads();  // every warp has read all copies of these rows
      store_row_tile(stream, width, first_row, rows, column, x, lane);
    } else {
      next[0] = next[1];
      next[1] = load(first_row + 2 * step);
    }
    float* mine = sums[buffer] + warp * kTileRows * kSumStride;
#pragma unroll
    for (int n = 0; n < kOutputTiles; ++n) {
      float sum[4] = {};
#pragma unroll
      for (int part = 0; part < 3; ++part) multiply_row_tile(sum, x, weights[n][part]);
      store_sums(mine, sum, 8 * n, lane);
    }
    const float low = squares_of(x.low), high = squares_of(x.high);
    if (lane % 4 == 0) {
      mine[lane / 4 * kSumStride + kSquares] = low;
      mine[(lane / 4 + 8) * kSumStride + kSquares] = high;
    }
    // One barrier a tile: the buffer is written again only behind the next tile's.
    __syncthreads();
    const int row = threadIdx.x / 8, output = threadIdx.x % 8 * 4;
    if (first_row + row < rows && output <= kSquares) {
      const float4 total = add_sums<kWarps>(sums[buffer], row, output);
      const int64_t at = (static_cast<int64_t>(first_row + row) * gridDim.x + blockIdx.x) * kSums + output;
      *reinterpret_cast<float4*>(partial + at) = total;
    }
  }
}

__device__ __forceinline__ float sigmoid(float x) { return ptx::reciprocal(1.0f + expf(-x)); }

// From the softmax of the rows, plus eps, to the doubly stochastic comb. The matrix stays as it is: what changes is
// what its rows and columns are divided by,
//   comb[j][k] = m[j][k] / (by_row[j] by_column[k]),
// and dividing a row by its sum plus eps makes by_row[j] = sum_k m[j][k] / by_column[k] + eps by_row[j]. Iterations
// that would change no more than the last bits are left out.
constexpr float kSinkhornRest = 0x1p-21f;
__device__ __forceinline__ void sinkhorn(float (&m)[kStreams][kStreams], float eps, int iterations) {
  float by_row[kStreams], by_column[kStreams], inverse[kStreams];
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    by_row[k] = 1;
    by_column[k] = m[0][k] + m[1][k] + m[2][k] + m[3][k] + eps;
  }
  for (int i = 1; i < iterations; ++i) {
    bool stays = true;
#pragma unroll
    for (int k = 0; k < kStreams; ++k) inverse[k] = ptx::reciprocal(by_column[k]);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const float before = by_row[j];
      by_row[j] *= eps;
#pragma unroll
      for (int k = 0; k < kStreams; ++k) by_row[j] = fmaf(m[j][k], inverse[k], by_row[j]);
      stays &= fabsf(by_row[j] - before) <= kSinkhornRest * by_row[j];
    }
#pragma unroll
    for (int j = 0; j < kStreams; ++j) inverse[j] = ptx::reciprocal(by_row[j]);
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      by_column[k] *= eps;
#pragma unroll
      for (int j = 0; j < kStreams; ++j) by_column[k] = fmaf(m[j][k], inverse[j], by_column[k]);
    }
    if (stays) break;
  }
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k) m[j][k] *= ptx::reciprocal(by_row[j]) * ptx::reciprocal(by_column[k]);
  }
}

struct FinishArgs {
  const bf16* stream;
  int dim;
  float inverse_dim;
  const float* base;
  const float* scale;
  float norm_eps, mix_eps;
  int iterations;
  const float* collapse_with;
  const bf16* norm;
  float *pre, *post, *comb;
  bf16* x;
  const float* partial;
  int segments;
  int places;  // a multiple of 32
};

// The row's sum of squares and its products with fn, a lane each, as coefficients before their sigmoids and softmax.
__device__ __forceinline__ float coefficient(const FinishArgs& args, float sum, float scale, float base) {
  const float mean = __shfl_sync(0xffffffff, sum, kSquares) * (0.25f * args.inverse_dim);
  return sum * rsqrtf(mean + args.norm_eps) * scale + base;
}

__device__ __forceinline__ void make_comb(const FinishArgs& args, float value, int lane, float4* to) {
  float max = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
  max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 2));
  const float exponential = expf(value - max);
  float sum = exponential + __shfl_xor_sync(0xffffffff, exponential, 1);
  sum += __shfl_xor_sync(0xffffffff, sum, 2);
  const float entry = exponential * ptx::reciprocal(sum) + args.mix_eps;
  float m[kStreams][kStreams];
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i) {
    m[i / kStreams][i % kStreams] = __shfl_sync(0xffffffff, entry, 2 * kStreams + i);
  }
  sinkhorn(m, args.mix_eps, args.iterations);  // in every lane: one alone would be no faster
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    if (lane == j) to[j] = make_float4(m[j][0], m[j][1], m[j][2], m[j][3]);
  }
}

// Shared memory: bf16 [dim], the collapsed row.
__global__ __launch_bounds__(kMostPlaces + 32) void mix_finish(FinishArgs args) {
  ONELANE_DYNAMIC_SHARED(uint4, held);
  __shared__ float sums[kAdders][32], squares[32], own_pre[kStreams];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int workers = blockDim.x - 32, eights = args.dim / 8;
  const int thread = threadIdx.x;
  const bool works = thread < workers;
  const int64_t row = blockIdx.x;
  const bf16* stream = args.stream + row * kStreams * args.dim;
  const auto* norms = reinterpret_cast<const uint4*>(args.norm);

  ptx::let_next_kernel_start();
  uint4 norm = {};
  float scale = 0, base = 0;
  if (works && thread < eights) norm = __ldcg(norms + thread);
  if (!works && lane < kMixes) {
    scale = __ldcg(args.scale + min(lane / kStreams, 2));  // pre, post, comb
    base = __ldcg(args.base + lane);
  }

  ptx::wait_for_previous_kernel();
  EightDims dims = {};
  float4 given = {};
  if (works && thread < eights) dims = load_eight(stream, args.dim, thread);
  if (works && args.collapse_with != nullptr) {
    given = __ldcg(reinterpret_cast<const float4*>(args.collapse_with) + row);
  }
  for (int adder = warp; adder < kAdders; adder += warps) {
    const float* partial = args.partial + row * args.segments * kSums + lane;
    float sum = 0;
    for (int first = adder; first < args.segments; first += kAtOnce * kAdders) {
      float part[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int segment = first + i * kAdders;
        part[i] = lane <= kSquares && segment < args.segments ? __ldcg(partial + segment * kSums) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sum += part[i];
    }
    sums[adder][lane] = sum;
  }
  __syncthreads();
  float value = 0;
  if (!works) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kAdders; ++i) sum += sums[i][lane];
    value = coefficient(args, sum, scale, base);
    if (lane < kStreams) own_pre[lane] = sigmoid(value) + args.mix_eps;
  }
  __syncthreads();
  if (!works) {
    if (lane < kStreams) args.pre[row * kStreams + lane] = own_pre[lane];
    if (lane / kStreams == 1) args.post[row * kStreams + lane - kStreams] = 2 * sigmoid(value);
    make_comb(args, value, lane, reinterpret_cast<float4*>(args.comb) + row * kStreams);
    return;
  }

  float w[kStreams] = {given.x, given.y, given.z, given.w};
  if (args.collapse_with == nullptr) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) w[j] = own_pre[j];
  }
  for (int place = thread; place < args.places; place += workers) {
    float square = 0;
    for (int i = place; i < eights; i += args.places) {
      if (i != thread) dims = load_eight(stream, args.dim, i);
      const uint4 x = collapse_eight(dims, w);
      held[i] = x;
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float2 two = unpack_bf16(word_of(x, word));
        square += two.x * two.x;
        square += two.y * two.y;
      }
    }
    square = warp_sum(square);
    if (lane == 0) squares[place / 32] = square;
  }
  ptx::named_barrier(1, workers);
  const float square = warp_sum(lane < args.places / 32 ? squares[lane] : 0.0f);
  const float inverse = rsqrtf(square * args.inverse_dim + args.norm_eps);
  for (int i = thread; i < eights; i += workers) {
    const uint4 x = held[i];
    uint32_t out[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const float2 two = unpack_bf16(word_of(x, word)), weight = unpack_bf16(word_of(norm, word));
      out[word] = ptx::pack_bf16(weight.x * (two.x * inverse), weight.y * (two.y * inverse));
    }
    reinterpret_cast<uint4*>(args.x + row * args.dim)[i] = make_uint4(out[0], out[1], out[2], out[3]);
    if (i + workers < eights) norm = __ldcg(norms + i + workers);
  }
}

}  // namespace

// Beside the experts' blocks there is no room for those of mix_products, so without a kernel between them fn is read
// when the experts have ended. That costs less than the kernel where every multiprocessor has one block to start, and
// more where some have two (docs/ledger.md).
bool mix_takes_sums(const Stage& stage, int dim) { return dim / kTileColumns <= stage.processors; }

void mix_streams(const Stage& stage, const MixArgs& args, const ExpandArgs* expand, const PairSum* sum) {
  ONELANE_CHECK(args.dim % kTileColumns == 0, "a model's width is whole blocks of 32");
  const int rows = stage.rows.count;
  const int segments = args.dim / kTileColumns;
  float* partial = stage.workspace->take<float>(static_cast<size_t>(rows) * segments * kSums);

  // With many rows a block keeps its part of fn for several tiles.
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  const int across = std::min(tiles, std::max(1, 16 * stage.processors / segments));
  Expansion expansion = {};
  if (expand != nullptr) expansion = {.y = expand->y, .post = expand->post, .comb = expand->comb};
  if (sum != nullptr) {
    ONELANE_CHECK(expand != nullptr && sum->y == expand->y && sum->dim == args.dim, "a sum of what is expanded");
    expansion.sum = *sum;
  }
  launch(stage, "mix_products", expand != nullptr ? mix_products<true> : mix_products<false>, dim3(segments, across),
         dim3(kWarps * 32), 0, const_cast<bf16*>(args.stream), expansion, args.weights.fn, args.dim, rows, partial);

  const FinishArgs finish = {.stream = args.stream,
                             .dim = args.dim,
                             .inverse_dim = 1.0f / static_cast<float>(args.dim),
                             .base = args.weights.base,
                             .scale = args.weights.scale,
                             .norm_eps = args.norm_eps,
                             .mix_eps = args.mix_eps,
                             .iterations = args.iterations,
                             .collapse_with = args.collapse_with,
                             .norm = args.norm,
                             .pre = args.pre,
                             .post = args.post,
                             .comb = args.comb,
                             .x = args.x,
                             .partial = partial,
                             .segments = segments,
                             .places = std::min(kMostPlaces, (args.dim / 8 + 31) / 32 * 32)};
  const int workers = rows < 4 * stage.processors ? finish.places : std::min(finish.places, kFewWorkers);
  launch(stage, "mix_finish", mix_finish, dim3(rows), dim3(workers + 32), sizeof(bf16) * args.dim, finish);
}

}  // namespace onelane::cuda
