// Products of few rows (up to 16): bound by how fast the weights come.
//
// A block of 16 warps has a multiprocessor to itself and stays with one piece. It keeps the piece's activations in
// shared memory, quantised by itself, while the first weights are on their way. A warp makes one segment of 16 outputs,
// then the same segment of the next 16, and so on; the weights of what comes next are always in flight into the warp's
// own ring of lines, past the end of a group of outputs. The segments' sums meet in shared memory, once a group.
#include "cuda/linear/format.h"

namespace onelane::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
constexpr int kTile = 16;                   // outputs of a warp
constexpr int kStageBytes = kTile * kLine;  // a line of each
constexpr int kSumStride = 20;              // floats between the rows of a tile of sums: no two lanes in one bank
constexpr int kMostStages = 4, kFewestStages = 2;

// Bytes between rows of activations: neighbouring rows' blocks in different banks.
template <class F>
__host__ __device__ int act_stride(int in) {
  const int bytes = F::kQuantised ? in : 2 * in;
  return (bytes + kLine - 1) / kLine * kLine + 4 * F::kActBytes;
}
template <class F>
size_t act_bytes(const Piece& piece, int rows) {
  const size_t scales = F::kQuantised ? sizeof(float) * rows * (piece.in >> piece.act_shift) : 0;
  return scales + static_cast<size_t>(rows) * act_stride<F>(piece.in);
}

// Waits until the oldest of `stages` committed copies is there.
__device__ __forceinline__ void wait_for_oldest(int stages) {
  if (stages == 4) asm volatile("cp.async.wait_group 3;" ::: "memory");
  if (stages == 3) asm volatile("cp.async.wait_group 2;" ::: "memory");
  if (stages == 2) asm volatile("cp.async.wait_group 1;" ::: "memory");
}

// The rows of x, as codes and scales [block, kRows] or as they are.
template <class F, int kRows>
__device__ void load_activations(const Piece& piece, uint8_t* act, float* scales) {
  constexpr int kBatch = 4;
  const int per_row = piece.in / 8;
  const int items = per_row * piece.rows;
  const int stride = act_stride<F>(piece.in);
  // Whole warps take every turn: blocks of activations are reduced over lanes.
  for (int base = threadIdx.x / 32 * 32; base < items; base += kBatch * kThreads) {
    uint4 values[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * kThreads + threadIdx.x % 32;
      const int row = i / per_row;
      values[j] = make_uint4(0, 0, 0, 0);
      if (i < items) {
        values[j] = *reinterpret_cast<const uint4*>(piece.x + row * piece.x_stride + (i - row * per_row) * 8);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * kThreads + threadIdx.x % 32;
      const int row = i / per_row;
      const int k = (i - row * per_row) * 8;
      uint8_t* to = act + row * stride;
      if constexpr (F::kQuantised) {
        uint32_t scale;
        const uint2 codes = quantise_eight(values[j], piece.act_shift, scale);
        if (i >= items) continue;
        *reinterpret_cast<uint2*>(to + k) = codes;
        const int block = k >> piece.act_shift;
        if (block << piece.act_shift == k) scales[block * kRows + row] = e8m0_to_float(scale);
      } else {
        if (i < items) *reinterpret_cast<uint4*>(to + 2 * k) = values[j];
      }
    }
  }
}

// Where a warp stands in the lines that it works through.
struct Place {
  int group;
  int stage;
  __device__ void advance(int stages, int blocks) {
    if (++stage < stages) return;
    stage = 0;
    group += blocks;
  }
};

template <class F, int kRows>
__global__ void __launch_bounds__(kThreads, 1) multiply_few(const __grid_constant__ Pieces pieces, int ring_stages) {
  constexpr int kRowTiles = kRows / 8;
  constexpr int kSums = kRows * kSumStride;
  extern __shared__ __align__(kLine) uint8_t shared[];
  const Piece& piece = piece_of(pieces, blockIdx.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int tiles_a_group = kWarps / piece.segments;
  const int segment = warp % piece.segments, tile_of_group = warp / piece.segments;
  const int tiles = (piece.outs + kTile - 1) / kTile;
  const int groups = (tiles + tiles_a_group - 1) / tiles_a_group;
  const int begin = segment_begin(piece, F::kUnit, segment);
  const int blocks = segment_begin(piece, F::kUnit, segment + 1) - begin;
  const int stages = (blocks + F::kBlocks - 1) / F::kBlocks;
  const int64_t row_bytes = F::row_bytes(piece.in);

  uint8_t* ring = shared + warp * ring_stages * kStageBytes;
  float* sums = reinterpret_cast<float*>(shared + kWarps * ring_stages * kStageBytes);  // [2][warp][row][kSumStride]
  uint8_t* act = reinterpret_cast<uint8_t*>(sums + 2 * kWarps * kSums);
  float* act_scales = reinterpret_cast<float*>(act + kRows * act_stride<F>(piece.in));  // [block][row]

  const auto tile_at = [&](const Place& place) { return place.group * tiles_a_group + tile_of_group; };
  const auto row_of = [&](int tile, int row) {  // rows past the last are read as the last, and not stored
    return piece.first_out + min(tile * kTile + row, piece.outs - 1);
  };
  const auto copy_line = [&](const Place& place, uint8_t* to) {
    const int tile = tile_at(place);
    if (place.group < groups && tile < tiles) {
      const int bytes = (blocks - place.stage * F::kBlocks) * 4 * F::kWeightBytes;  // may be more than a line
      const int chunk = lane % 8;
      if (chunk * 16 < bytes) {
        const std::byte* from =
            piece.data + static_cast<int64_t>(begin) * (4 * F::kWeightBytes) + place.stage * kLine + chunk * 16;
#pragma unroll
        for (int i = 0; i < kTile / 4; ++i) {
          const int row = lane / 8 + 4 * i;
          const uint32_t at = row * kLine + chunk_place<F::kWeightBytes>(row, chunk) * 16;
          ptx::copy_async(static_cast<uint32_t>(__cvta_generic_to_shared(to)) + at,
                          from + row_of(tile, row) * row_bytes);
        }
      }
    }
    ptx::copies_commit();
  };
  // Scale codes of a line's units: lane t of four has those of units t, t + 4 of rows g and g + 8.
  constexpr int kCodes = (F::kUnits + 3) / 4;
  const auto load_codes = [&](const Place& place, uint32_t(&codes)[kCodes][2]) {
    const int tile = tile_at(place);
#pragma unroll
    for (int i = 0; i < kCodes; ++i) {
      const int unit = F::kUnits == 1 ? 0 : t + 4 * i;
      const int block = place.stage * F::kBlocks + unit * (F::kUnit / kBlock);
      const bool wanted = F::kScaled && place.group < groups && tile < tiles && block < blocks;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        codes[i][half] = wanted ? weight_scale(piece, row_of(tile, g + 8 * half), (begin + block) * kBlock) : 0;
      }
    }
  };

  const int first_group = blockIdx.x - piece.first_block;
  Place next{first_group, 0}, scales_at{first_group, 0};
  for (int i = 0; i < ring_stages; ++i) {
    copy_line(next, ring + i * kStageBytes);
    next.advance(stages, piece.blocks);
  }
  uint32_t codes_ahead[kCodes][2];
  load_codes(scales_at, codes_ahead);

  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  load_activations<F, kRows>(piece, act, act_scales);
  __syncthreads();

  int slot = 0, half = 0;
  for (int group = first_group; group < groups; group += piece.blocks, half ^= 1) {
    const bool has_tile = group * tiles_a_group + tile_of_group < tiles;
    float acc[kRowTiles][4] = {};
    for (int stage = 0; stage < stages; ++stage) {
      uint32_t codes[kCodes][2];
#pragma unroll
      for (int i = 0; i < kCodes; ++i) codes[i][0] = codes_ahead[i][0], codes[i][1] = codes_ahead[i][1];
      scales_at.advance(stages, piece.blocks);
      load_codes(scales_at, codes_ahead);
      wait_for_oldest(ring_stages);
      __syncwarp();
      uint8_t* lines = ring + slot * kStageBytes;
      const int left = has_tile ? blocks - stage * F::kBlocks : 0;
      float d[kRowTiles][4] = {};
#pragma unroll
      for (int b = 0; b < F::kBlocks; ++b) {
        if (b >= left) break;
        uint32_t a[2][4];
        F::weights(load_part<F::kWeightBytes>(lines + g * kLine, g, b, t),
                   load_part<F::kWeightBytes>(lines + (g + 8) * kLine, g + 8, b, t), a);
        const int block = begin + stage * F::kBlocks + b;
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          const uint8_t* row = act + (n * 8 + g) * act_stride<F>(piece.in);
          uint32_t x[4];
          F::activations(*reinterpret_cast<const typename F::Activations*>(row + (block * 4 + t) * F::kActBytes), x);
          F::multiply(d[n], a, x);
        }
        constexpr int kUnitBlocks = F::kUnit / kBlock;
        if ((b + 1) % kUnitBlocks != 0) continue;
        const int unit = b / kUnitBlocks;
        float scale[2] = {};
        if constexpr (F::kScaled) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            uint32_t code = codes[unit / 4][i];
            if constexpr (F::kUnits > 1) code = __shfl_sync(0xffffffff, code, lane / 4 * 4 + unit % 4);
            scale[i] = F::factor(code);
          }
        }
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          float2 act_scale = make_float2(1, 1);
          if constexpr (F::kQuantised) {
            act_scale = *reinterpret_cast<const float2*>(act_scales + (block * kBlock >> piece.act_shift) * kRows +
                                                         n * 8 + 2 * t);
          }
          F::promote(acc[n], d[n], scale[0], scale[1], act_scale);
#pragma unroll
          for (int i = 0; i < 4; ++i) d[n][i] = 0;
        }
      }
      __syncwarp();
      copy_line(next, lines);
      next.advance(stages, piece.blocks);
      slot = slot + 1 == ring_stages ? 0 : slot + 1;
    }

    // One barrier a group: the sums of the group after the next are the first to overwrite these.
    float* mine = sums + (half * kWarps + warp) * kSums;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) mine[(n * 8 + 2 * t + i % 2) * kSumStride + g + 8 * (i / 2)] = acc[n][i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tiles_a_group * kRows * kTile; i += kThreads) {
      const int tile = i / (kRows * kTile), row = i / kTile % kRows;
      const int out = (group * tiles_a_group + tile) * kTile + i % kTile;
      if (row >= piece.rows || out >= piece.outs) continue;
      const float* from = sums + (half * kWarps + tile * piece.segments) * kSums + row * kSumStride + i % kTile;
      float sum = 0;
      for (int s = 0; s < piece.segments; ++s) sum += from[s * kSums];
      store_output(piece, row, out, sum);
    }
  }
  // Copies that nobody waited for must not outlive the block.
  ptx::copies_wait();
}

// Gives every piece its share of the multiprocessors, by its groups; returns the blocks of the launch.
int share_blocks(Pieces& pieces, int processors) {
  int total = 0;
  const auto groups = [](const Piece& piece) {
    const int tiles_a_group = kWarps / piece.segments;
    return ((piece.outs + kTile - 1) / kTile + tiles_a_group - 1) / tiles_a_group;
  };
  for (int i = 0; i < pieces.count; ++i) total += groups(pieces.piece[i]);
  int first = 0;
  for (int i = 0; i < pieces.count; ++i) {
    Piece& piece = pieces.piece[i];
    piece.first_block = first;
    piece.blocks = total <= processors ? groups(piece) : std::max(1, groups(piece) * processors / total);
    first += piece.blocks;
  }
  return first;
}

template <class F, int kRows>
bool launch_few(const Stage& stage, Pieces& pieces) {
  size_t act = 0;
  for (int i = 0; i < pieces.count; ++i) act = std::max(act, act_bytes<F>(pieces.piece[i], kRows));
  const size_t fixed = act + sizeof(float) * 2 * kWarps * kRows * kSumStride;
  const size_t limit = shared_memory_limit();
  int stages = kMostStages;
  const auto bytes_of = [&](int count) { return fixed + static_cast<size_t>(count) * kWarps * kStageBytes; };
  while (stages > kFewestStages && bytes_of(stages) > limit) --stages;
  const size_t bytes = bytes_of(stages);
  if (bytes > limit) return false;
  const int blocks = share_blocks(pieces, stage.processors);
  launch(stage, "multiply_few", multiply_few<F, kRows>, dim3(blocks), dim3(kThreads), bytes, pieces, stages);
  return true;
}

}  // namespace

bool multiply_few_rows(const Stage& stage, const PieceKind& kind, Pieces& pieces) {
  bool fits = false;
  int rows = 0;
  for (int i = 0; i < pieces.count; ++i) rows = std::max(rows, pieces.piece[i].rows);
  with_format(kind, [&](auto format) {
    using F = decltype(format);
    fits = rows <= 8 ? launch_few<F, 8>(stage, pieces) : launch_few<F, 16>(stage, pieces);
  });
  return fits;
}

}  // namespace onelane::cuda
