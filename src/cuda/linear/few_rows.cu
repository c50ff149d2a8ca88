// Products of few rows (up to 16): bound by how fast the weights come.
//
// A block of 16 or 32 warps has a multiprocessor to itself and stays with one piece. It keeps the piece's activations
// in shared memory, quantised by itself, while the first weights are on their way. A warp makes one segment of 16
// outputs, then the same segment of the next 16, and so on; the weights of what comes next are always in flight into
// the warp's own ring of lines, past the end of a group of outputs. The segments' sums meet in shared memory, once a
// group.
#include "cuda/linear/walk.h"
#include "cuda/ptx/cached_copy.h"

namespace onelane::cuda {
namespace {

constexpr int kStageBytes = kTile * kLine;  // a line of each
constexpr int kSumStride = 20;              // floats between the rows of a tile of sums: no two lanes in one bank
constexpr int kMostStages = 4, kFewestStages = 2;

// Bytes between rows of activations: neighbouring rows' blocks in different banks.
template <class F>
__host__ __device__ int act_stride(int in) {
  const int bytes = F::kQuantised ? in : 2 * in;
  return (bytes + kLine - 1) / kLine * kLine + 4 * F::kActBytes;
}
// Floats of scales [block, row_tiles], in whole lines.
template <class F>
__host__ __device__ int scale_floats(const Piece& piece, int row_tiles) {
  return F::kQuantised ? ((piece.in >> piece.act_shift) * row_tiles + kLine / 4 - 1) / (kLine / 4) * (kLine / 4) : 0;
}
template <class F>
size_t act_bytes(const Piece& piece, int row_tiles) {
  return sizeof(float) * scale_floats<F>(piece, row_tiles) + static_cast<size_t>(piece.rows) * act_stride<F>(piece.in);
}

// Waits until the oldest of `stages` committed copies is there.
__device__ __forceinline__ void wait_for_oldest(int stages) {
  if (stages == 4) asm volatile("cp.async.wait_group 3;" ::: "memory");
  if (stages == 3) asm volatile("cp.async.wait_group 2;" ::: "memory");
  if (stages == 2) asm volatile("cp.async.wait_group 1;" ::: "memory");
}

// The rows of x, as codes and scales [block, kRows] or as they are. Whole warps: blocks of activations are reduced over
// lanes.
template <class F, int kRows, int kThreads>
__device__ __forceinline__ void load_activations(const Piece& piece, uint8_t* act, float* scales) {
  constexpr int kBatch = kThreads > 512 ? 4 : 8;
  const int per_row = piece.in / 8, rows = piece.rows;
  const int stride = act_stride<F>(piece.in);
  const int64_t x_stride = piece.x_stride;
  const int act_shift = F::kUnit == 128 ? 7 : piece.act_shift;
  for (int base = threadIdx.x / 32 * 32; base < per_row; base += kThreads) {
    const int i = base + threadIdx.x % 32;
    const bf16* from = piece.x + i * 8;
#pragma unroll 1
    for (int first = 0; first < rows; first += kBatch) {
      uint4 values[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        values[j] = make_uint4(0, 0, 0, 0);
        if (first + j < rows && i < per_row) values[j] = *reinterpret_cast<const uint4*>(from);
        from += x_stride;
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int row = first + j;
        if constexpr (F::kQuantised) {
          uint32_t scale;
          const uint2 codes = quantise_eight(values[j], act_shift, scale);
          if (i >= per_row || row >= rows) continue;
          *reinterpret_cast<uint2*>(act + row * stride + i * 8) = codes;
          const int block = i * 8 >> act_shift;
          if (block << act_shift == i * 8) scales[block * kRows + row] = e8m0_to_float(scale);
        } else {
          if (i < per_row && row < rows) *reinterpret_cast<uint4*>(act + row * stride + i * 16) = values[j];
        }
      }
    }
  }
}

template <class F, int kRows, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1) multiply_few(const __grid_constant__ Pieces pieces, int ring_stages) {
  constexpr int kThreads = 32 * kWarps;
  constexpr int kRowTiles = kRows / 8;
  constexpr int kSums = kRows * kSumStride;
  constexpr int kMostOutputs = kRows * kTile * kWarps / kThreads;  // of a thread, a group
  extern __shared__ __align__(kLine) uint8_t shared[];
  const Piece& piece = piece_of(pieces, blockIdx.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int segments = piece.segments, rows = piece.rows, outs = piece.outs;
  [[maybe_unused]] const int act_shift = piece.act_shift;
  const int tiles_a_group = kWarps / segments;
  const int segment = warp % segments;
  Walk walk;
  walk.first_row = piece.first_out, walk.last_row = piece.first_out + outs - 1;
  walk.tiles_begin = first_row_of_tiles(piece);
  walk.tiles = tiles_of(piece), walk.groups = (walk.tiles + tiles_a_group - 1) / tiles_a_group;
  walk.tiles_a_group = tiles_a_group, walk.tile_of_group = warp / segments;
  walk.first_group = blockIdx.x - piece.first_block, walk.step = piece.blocks;
  walk.begin = segment_begin(piece, F::kUnit, segment);
  walk.blocks = segment_begin(piece, F::kUnit, segment + 1) - walk.begin;
  const int stages = (walk.blocks + F::kBlocks - 1) / F::kBlocks;

  uint8_t* ring = shared + warp * ring_stages * kStageBytes;
  float* sums = reinterpret_cast<float*>(shared + kWarps * ring_stages * kStageBytes);  // [2][warp][row][kSumStride]
  float* act_scales = sums + 2 * kWarps * kSums;                                        // [block][row]
  uint8_t* act = reinterpret_cast<uint8_t*>(act_scales + scale_floats<F>(piece, kRows));
  const int stride = act_stride<F>(piece.in);

  // Copies: of a line, this lane's chunk of every fourth row.
  const int chunk = lane % 8;
  const int64_t row_bytes = F::row_bytes(piece.in);
  const std::byte* from[kTile / 4];
  int copy_group = walk.first_group, left_to_copy;  // bytes of the segment from this lane's chunk on
  const auto enter_tile = [&] {
    const int tile = walk.tile(copy_group);
    left_to_copy = tile < 0 ? 0 : walk.blocks * (4 * F::kWeightBytes) - chunk * 16;
    const std::byte* segment_data = piece.data + walk.begin * (4 * F::kWeightBytes) + chunk * 16;
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) from[i] = segment_data + walk.row(tile, lane / 8 + 4 * i) * row_bytes;
  };
  int lines_to_copy = stages;
  const uint32_t ring_address = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
  // Of more than kFewRows rows several pieces read the same weights.
  constexpr bool kReadOnce = kRows < kFewRows;
  const auto copy_line = [&](int slot) {
    if (left_to_copy > 0) {
#pragma unroll
      for (int i = 0; i < kTile / 4; ++i) {
        const int row = lane / 8 + 4 * i;
        const uint32_t to =
            ring_address + slot * kStageBytes + row * kLine + chunk_place<F::kWeightBytes>(row, chunk) * 16;
        if constexpr (kReadOnce) {
          ptx::copy_async(to, from[i], ptx::evict_first());
        } else {
          ptx::copy_async(to, from[i]);
        }
        from[i] += kLine;
      }
    }
    ptx::copies_commit();
    left_to_copy -= kLine;
    if (--lines_to_copy == 0) {
      lines_to_copy = stages;
      copy_group += walk.step;
      enter_tile();
    }
  };

  enter_tile();
#pragma unroll 1
  for (int slot = 0; slot < ring_stages; ++slot) copy_line(slot);
  Factors<F> factors(piece, walk);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  load_activations<F, kRows, kThreads>(piece, act, act_scales);
  __syncthreads();

  const uint8_t* weights_at = ring + g * kLine;
  // Rows that there are not give columns that are not stored, each of its own row.
  int x_row[kRowTiles];
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) x_row[n] = min(n * 8 + g, rows - 1) * stride;
  const uint8_t* x_begin = act + (walk.begin * 4 + t) * F::kActBytes;
  constexpr int kUnitBlocks = F::kUnit / kBlock;
  int slot = 0, half = 0;
  for (int group = walk.first_group; group < walk.groups; group += walk.step, half ^= 1) {
    // Outputs i, i + kThreads, ... of [tile][row][kTile] are this thread's to finish.
    const auto for_each_output = [&](const auto& visit) {
#pragma unroll
      for (int j = 0; j < kMostOutputs; ++j) {
        const int i = j * kThreads + threadIdx.x;
        const int tile = i / (kRows * kTile), row = i / kTile % kRows;
        const int out = walk.tiles_begin - walk.first_row + (group * tiles_a_group + tile) * kTile + i % kTile;
        if (tile < tiles_a_group && row < rows && out >= 0 && out < outs) visit(j, tile, row, out, i % kTile);
      }
    };
    float before[kMostOutputs] = {};
    if (piece.add) {
      for_each_output([&](int j, int, int row, int out, int) { before[j] = piece.exact[row * piece.y_stride + out]; });
    }

    float acc[kRowTiles][4] = {};
    int left = walk.tile(group) < 0 ? 0 : walk.blocks;
    const uint8_t* x_at = x_begin;
    int k = walk.begin * kBlock;
    for (int stage = 0; stage < stages; ++stage) {
      factors.next_line(piece, walk);
      wait_for_oldest(ring_stages);
      __syncwarp();
      const uint8_t* lines = weights_at + slot * kStageBytes;
#pragma unroll
      for (int unit = 0; unit < F::kUnits; ++unit) {
        if (unit * kUnitBlocks >= left) break;
        float d[kRowTiles][4] = {};
#pragma unroll
        for (int u = 0; u < kUnitBlocks; ++u) {
          const int b = unit * kUnitBlocks + u;
          uint32_t a[2][4];
          F::weights(load_part<F::kWeightBytes>(lines, g, b, t), load_part<F::kWeightBytes>(lines + 8 * kLine, g, b, t),
                     a);
#pragma unroll
          for (int n = 0; n < kRowTiles; ++n) {
            uint32_t x[4];
            F::activations(*reinterpret_cast<const typename F::Activations*>(x_at + x_row[n] + b * 4 * F::kActBytes),
                           x);
            F::multiply(d[n], a, x);
          }
        }
        float factor[2] = {};
        factors.get(piece, walk, unit, factor);
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          float2 act_scale = make_float2(1, 1);
          if constexpr (F::kQuantised) {
            const int block = F::kUnit == 128 ? k / 128 : (k + unit * kBlock) >> act_shift;
            act_scale = *reinterpret_cast<const float2*>(act_scales + block * kRows + n * 8 + 2 * t);
          }
          F::promote(acc[n], d[n], factor[0], factor[1], act_scale);
        }
      }
      left -= F::kBlocks;
      x_at += F::kBlocks * 4 * F::kActBytes;
      k += F::kBlocks * kBlock;
      __syncwarp();
      copy_line(slot);
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
    for_each_output([&](int j, int tile, int row, int out, int column) {
      const float* of = sums + (half * kWarps + tile * segments) * kSums + row * kSumStride + column;
      float sum = 0;
#pragma unroll 4
      for (int s = 0; s < segments; ++s) sum += of[s * kSums];
      const int64_t at = row * piece.y_stride + out;
      if (piece.rounded != nullptr) {
        piece.rounded[at] = float_to_bf16(sum);
      } else {
        piece.exact[at] = piece.add ? before[j] + sum : sum;
      }
    });
  }
  // Copies that nobody waited for must not outlive the block.
  ptx::copies_wait();
}

int groups_of(const Piece& piece, int warps) {
  const int tiles_a_group = warps / piece.segments;
  return (tiles_of(piece) + tiles_a_group - 1) / tiles_a_group;
}
int groups_of(const Pieces& pieces, int warps) {
  int groups = 0;
  for (int i = 0; i < pieces.count; ++i) groups += groups_of(pieces.piece[i], warps);
  return groups;
}

// Gives every piece its share of the multiprocessors, by its groups; returns the blocks of the launch.
int share_blocks(Pieces& pieces, int warps, int processors) {
  const int total = groups_of(pieces, warps);
  int first = 0;
  for (int i = 0; i < pieces.count; ++i) {
    Piece& piece = pieces.piece[i];
    const int groups = groups_of(piece, warps);
    pieces.first_block[i] = piece.first_block = first;
    piece.blocks = total <= processors ? groups : std::max(1, groups * processors / total);
    first += piece.blocks;
  }
  return first;
}

template <class F, int kRows, int kWarps>
bool launch_few(const Stage& stage, Pieces& pieces) {
  size_t act = 0;
  for (int i = 0; i < pieces.count; ++i) act = std::max(act, act_bytes<F>(pieces.piece[i], kRows));
  const size_t fixed = act + sizeof(float) * 2 * kWarps * kRows * kSumStride;
  const size_t limit = shared_memory_limit();
  const auto bytes_of = [&](int count) { return fixed + static_cast<size_t>(count) * kWarps * kStageBytes; };
  int stages = kMostStages;
  while (stages > kFewestStages && bytes_of(stages) > limit) --stages;
  if (bytes_of(stages) > limit) return false;
  const int blocks = share_blocks(pieces, kWarps, stage.processors);
  launch(stage, "multiply_few", multiply_few<F, kRows, kWarps>, dim3(blocks), dim3(32 * kWarps), bytes_of(stages),
         pieces, stages);
  return true;
}

// Twice the warps hide more of the latency of decoding, where there are tiles for all of them; with more rows (6 were
// measured) the shorter rings lose what that gains, and what is not decoded gains nothing.
template <class F>
bool launch_eight_rows(const Stage& stage, int rows, Pieces& pieces) {
  constexpr int kWide = 32;
  const bool wide = F::kScaled && rows <= 2 && 4 * groups_of(pieces, kWide) >= 3 * stage.processors;
  if (wide && launch_few<F, 8, kWide>(stage, pieces)) return true;
  return launch_few<F, 8, 16>(stage, pieces);
}

}  // namespace

bool multiply_few_rows(const Stage& stage, const PieceKind& kind, Pieces& pieces) {
  bool fits = false;
  int rows = 0;
  for (int i = 0; i < pieces.count; ++i) rows = std::max(rows, pieces.piece[i].rows);
  with_format(kind, [&](auto format) {
    using F = decltype(format);
    fits = rows <= 8 ? launch_eight_rows<F>(stage, rows, pieces) : launch_few<F, 16, 16>(stage, pieces);
  });
  return fits;
}

}  // namespace onelane::cuda
