// Products of few rows (up to 16): bound by how fast the weights come.
//
// Weights go from memory into the registers of the lanes that multiply with them, with nothing in between. A warp makes
// one segment of 16 outputs, then the same segment of the next; the next lines of its rows are always on their way,
// past the end of a group of outputs, and the first ones before the kernel ahead has ended. A block quantises the
// activations of its piece into shared memory, where the segments' sums meet as well, once a group. A multiprocessor
// has 16 warps.
//
// All blocks prepare the same activations. Where there are many for few outputs, eight blocks are a cluster and have a
// segment each: a block prepares its segment's part of a row, its warps take eight tiles, and the sums of tile t go to
// block t.
#include "cuda/linear/walk.h"
#include "cuda/ptx/cluster.h"

namespace onelane::cuda {
namespace {

constexpr int kSumStride = 20;           // floats between the rows of a warp's sums: no two lanes in one bank
constexpr int kCluster = kMostSegments;  // blocks

// Bytes between rows of activations: those that a warp reads at once are in different banks.
template <class F>
__host__ __device__ int act_stride(int count) {
  const int bytes = F::kQuantised ? count : 2 * count;
  return (bytes + kLine - 1) / kLine * kLine + (F::kActBytes < kLine / 4 ? 4 * F::kActBytes : 16);
}
// Floats of scales [block, row_tiles], in whole lines.
template <class F>
__host__ __device__ int scale_floats(const Piece& piece, int count, int rows) {
  return F::kQuantised ? ((count >> piece.act_shift) * rows + kLine / 4 - 1) / (kLine / 4) * (kLine / 4) : 0;
}
template <class F>
size_t act_bytes(const Piece& piece, const Extent& extent, int rows) {
  return sizeof(float) * scale_floats<F>(piece, extent.count, rows) +
         static_cast<size_t>(piece.rows) * act_stride<F>(extent.count);
}
// The block's part of the rows of x, as codes and scales [block, kRows] or as they are, when all threads have passed a
// barrier. A warp takes 512 values of a row at a time, a lane 16.
template <class F, int kRows, int kWarps>
__device__ __forceinline__ void load_activations(const Piece& piece, const Extent& extent, uint8_t* act,
                                                 float* scales) {
  constexpr int kBatch = 4, kSpan = 512, kLaneValues = kSpan / 32;
  const bf16* x = piece.x + extent.begin * kBlock;
  const int in = extent.count, spans = (in + kSpan - 1) / kSpan, stride = act_stride<F>(in);
  const int act_shift = F::kUnit == 128 ? 7 : piece.act_shift;
  // i / spans, exactly: i spans stays below 2^20.
  const int items = piece.rows * spans, inverse = ((1 << 20) - 1 + spans) / spans;
  for (int first = threadIdx.x / 32; first < items; first += kWarps * kBatch) {
    int rows[kBatch], at[kBatch];
    uint4 values[kBatch][2];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = first + j * kWarps;
      rows[j] = i * inverse >> 20;
      at[j] = (i - rows[j] * spans) * kSpan + threadIdx.x % 32 * kLaneValues;
      if (i >= items) at[j] = in;
      const bf16* from = x + rows[j] * piece.x_stride + at[j];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (F::kQuantised) {
          values[j][half] = make_uint4(0, 0, 0, 0);
          if (at[j] < in) values[j][half] = reinterpret_cast<const uint4*>(from)[half];
        } else if (at[j] < in) {
          uint8_t* to = act + rows[j] * stride + (at[j] + 8 * half) * 2;
          ptx::copy_async(static_cast<uint32_t>(__cvta_generic_to_shared(to)), from + 8 * half);
        }
      }
    }
    if constexpr (F::kQuantised) {
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        uint2 codes[2];
        uint32_t scale;
        quantise_lane(values[j], act_shift, codes, scale);
        if (at[j] >= in) continue;
        *reinterpret_cast<uint4*>(act + rows[j] * stride + at[j]) =
            make_uint4(codes[0].x, codes[0].y, codes[1].x, codes[1].y);
        const int block = at[j] >> act_shift;
        if (block << act_shift == at[j]) scales[block * kRows + rows[j]] = e8m0_to_float(scale);
      }
    }
  }
  if constexpr (!F::kQuantised) {
    ptx::copies_commit();
    ptx::copies_wait();
  }
}

template <class F, int kRowTiles, int kWarps, bool kClustered>
__global__ void __launch_bounds__(32 * kWarps, 16 / kWarps) multiply_few(const __grid_constant__ Pieces pieces) {
  constexpr int kThreads = 32 * kWarps;
  static_assert(kWarps % kMostSegments == 0);
  constexpr int kRows = 8 * kRowTiles, kSums = kRows * kSumStride;
  ONELANE_DYNAMIC_SHARED(uint8_t, shared);
  constexpr int kRing = kWarps == 16 ? 2 : 3;  // lines of a warp: as many in flight with twice the warps
  static_assert(!kClustered || kWarps == kCluster);
  const int index = kClustered ? blockIdx.x / kCluster : blockIdx.x, rank = kClustered ? blockIdx.x % kCluster : 0;
  const Piece& piece = piece_of(pieces, index);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const Walk walk =
      kClustered ? Walk(piece, F::kUnit, index, rank, warp, kWarps)
                 : Walk(piece, F::kUnit, index, warp % piece.segments, warp / piece.segments, kWarps / piece.segments);
  const Extent extent = kClustered ? Extent::of_segment(piece, F::kUnit, rank) : Extent::of_row(piece);
  // Of the longest segment, so that all warps of a block take as many.
  const int longest = (piece.in / F::kUnit + piece.segments - 1) / piece.segments * (F::kUnit / kBlock);
  const int lines = (longest + F::kBlocks - 1) / F::kBlocks;

  // Of more than kFewRows rows several pieces read the same weights.
  Loader<F> loader(piece, walk, lines, kRows < kFewRows ? ptx::evict_first() : ptx::evict_normal());
  Line<F> ring[kRing];
#pragma unroll
  for (int slot = 0; slot < kRing; ++slot) {
#pragma unroll
    for (int i = 0; i < Line<F>::kLoads; ++i) loader.load(ring[slot], i);
    loader.next(ring[slot]);
  }
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  float* sums = reinterpret_cast<float*>(shared);  // [2][warp][row][kSumStride]
  float* act_scales = sums + 2 * kWarps * kSums;   // [block][row]
  uint8_t* act = reinterpret_cast<uint8_t*>(act_scales + scale_floats<F>(piece, extent.count, kRows));
  load_activations<F, kRows, kWarps>(piece, extent, act, act_scales);
  // Here, and where a group is complete: a cluster's blocks wait for each other, so that none is sent sums before it
  // has begun.
  const auto meet = [] {
#if __CUDA_ARCH__ >= 900
    if constexpr (kClustered) return ptx::cluster_barrier();
#endif
    __syncthreads();
  };
  meet();
  const auto store_sum = [&](float* to, float sum) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kClustered) return ptx::store_in_block(ptx::in_block(ptx::shared_address(to), warp), sum);
#endif
    *to = sum;
  };

  // Rows that there are not give columns that are not stored, each of its own row.
  int x_row[kRowTiles];
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) {
    x_row[n] = min(n * 8 + g, piece.rows - 1) * act_stride<F>(extent.count) + t * F::kActBytes;
  }

  // acc += the line's products, `left` blocks from the extent's `block` on; another line takes its place.
  const auto add_line = [&](Line<F>& line, float(&acc)[kRowTiles][4], int block, int left) {
    constexpr int kUnitBlocks = F::kUnit / kBlock;
    typename F::Weights parts[2][2];  // of a load of two steps: [row g, g + 8][step]
#pragma unroll
    for (int unit = 0; unit < F::kUnits; ++unit) {
      const bool there = unit * kUnitBlocks < left;
      float d[kRowTiles][4] = {};
#pragma unroll
      for (int u = 0; u < F::kUnitSteps; ++u) {
        const int s = unit * F::kUnitSteps + u;
        uint32_t a[F::kProducts][4];
        if constexpr (kLoadSteps<F> == 1) {
          F::weights(line.loaded[s][0], line.loaded[s][1], a);
          loader.load(line, s);
        } else {
          if (s % 2 == 0) {
            parts_of(line.loaded[s / 2][0], parts[0]);
            parts_of(line.loaded[s / 2][1], parts[1]);
            loader.load(line, s / 2);
          }
          F::weights(parts[0][s % 2], parts[1][s % 2], a);
        }
        if (!there) continue;
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          const uint8_t* from = act + (x_row[n] + block * F::kActBlockBytes + s * (4 * F::kActBytes));
          uint32_t x[2 * F::kProducts];
          F::activations(*reinterpret_cast<const typename F::Activations*>(from), x);
          F::multiply(d[n], a, x);
        }
      }
      if (!there) continue;
      float factor[2] = {};
      line.scales.get(unit, factor);
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        float2 act_scale = make_float2(1, 1);
        if constexpr (F::kQuantised) {
          const int act_block = F::kUnit == 128 ? block / 4 : (block + unit) * kBlock >> piece.act_shift;
          act_scale = *reinterpret_cast<const float2*>(act_scales + act_block * kRows + n * 8 + 2 * t);
        }
        F::promote(acc[n], d[n], factor[0], factor[1], act_scale);
      }
    }
    loader.next(line);
  };

  // Of a group's outputs those that the block finishes, all of them or a tile: i, i + kThreads, ..., [row][output], are
  // this thread's.
  const int segments = piece.segments, rows = piece.rows;
  const int group_shift = 31 - __clz(kWarps * kTile / segments), group_outs = 1 << group_shift;
  constexpr int kSharers = kClustered ? kCluster : 1;
  const int group_step = piece.blocks * kSharers * group_outs;
  int first_out =
      first_row_of_tiles(piece) - piece.first_out + ((index - piece.first_block) * kSharers + rank) * group_outs;
  const auto place = [&](int i) {
    const int out = first_out + (i & (group_outs - 1));
    return i < rows << group_shift && out >= 0 && out < piece.outs ? (i >> group_shift) * piece.y_stride + out : -1;
  };
  const auto before = [&](int64_t at) { return piece.add && at >= 0 ? piece.exact[at] : 0.0f; };
  float first_before = before(place(threadIdx.x));

  float acc[kRowTiles][4] = {};
  int tile = walk.first_tile, line = 0, half = 0;
  // True: it was the block's last line.
  const auto take = [&](Line<F>& next) {
    const int done = line * F::kBlocks;
    add_line(next, acc, walk.begin - extent.begin + done, tile < walk.tiles ? walk.blocks - done : 0);
    if (++line < lines) return false;

    // The group is complete. One barrier: the sums of the group after the next are the first to overwrite these.
    float* mine = sums + (half * kWarps + (kClustered ? rank : warp)) * kSums;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_sum(mine + (n * 8 + 2 * t + i % 2) * kSumStride + g + 8 * (i / 2), acc[n][i]);
        acc[n][i] = 0;
      }
    }
    meet();
#pragma unroll 1
    for (int i = threadIdx.x; i < rows << group_shift; i += kThreads) {
      const int64_t at = place(i);
      if (at < 0) continue;
      const int row = i >> group_shift, out = i & (group_outs - 1);
      const float* of = sums + (half * kWarps + out / kTile * segments) * kSums + row * kSumStride + out % kTile;
      float sum = 0;
#pragma unroll 4
      for (int s = 0; s < segments; ++s) sum += of[s * kSums];
      if (piece.rounded != nullptr) {
        piece.rounded[at] = float_to_bf16(sum);
      } else {
        piece.exact[at] = piece.add ? (i < kThreads ? first_before : before(at)) + sum : sum;
      }
    }
    first_out += group_step;
    if (first_out - rank * group_outs >= piece.outs) return true;  // as one, also where this block has none of the last
    tile += walk.step, line = 0, half ^= 1;
    first_before = before(place(threadIdx.x));
    return false;
  };
  if constexpr (kRing == 2) {
    while (!take(ring[0]) && !take(ring[1])) {
    }
  } else {
    while (!take(ring[0]) && !take(ring[1]) && !take(ring[2])) {
    }
  }
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

// Gives every piece its share of `most` blocks, or clusters, by its groups; returns the number of the launch.
int share_blocks(Pieces& pieces, int warps, int most) {
  const int total = groups_of(pieces, warps);
  int first = 0;
  for (int i = 0; i < pieces.count; ++i) {
    Piece& piece = pieces.piece[i];
    const int groups = groups_of(piece, warps);
    pieces.first_block[i] = piece.first_block = first;
    piece.blocks = total <= most ? groups : std::max(1, groups * most / total);
    first += piece.blocks;
  }
  return first;
}

template <class F, int kRowTiles, int kWarps>
bool launch_few(const Stage& stage, Pieces& pieces) {
  constexpr int kRows = 8 * kRowTiles;
  size_t act = 0;
  for (int i = 0; i < pieces.count; ++i) {
    act = std::max(act, act_bytes<F>(pieces.piece[i], Extent::of_row(pieces.piece[i]), kRows));
  }
  const size_t bytes = act + sizeof(float) * 2 * kWarps * kRows * kSumStride;
  const size_t limit = shared_memory_limit();
  if (bytes > limit) return false;
  constexpr size_t kReserved = 1024;  // of every block
  const bool two = kWarps == 8 && 2 * (bytes + kReserved) <= limit + kReserved;
  const int blocks = share_blocks(pieces, kWarps, (two ? 2 : 1) * stage.processors);
  launch(stage, "multiply_few", multiply_few<F, kRowTiles, kWarps, false>, dim3(blocks), dim3(32 * kWarps), bytes,
         pieces);
  return true;
}

// False where a row has fewer segments than a cluster blocks, or where clusters would have to wait for room.
template <class F, int kRowTiles>
bool launch_few_clusters(const Stage& stage, Pieces& pieces) {
  constexpr int kRows = 8 * kRowTiles, kWarps = kCluster;
  size_t act = 0;
  for (int i = 0; i < pieces.count; ++i) {
    const Piece& piece = pieces.piece[i];
    if (piece.segments != kCluster) return false;
    for (int s = 0; s < kCluster; ++s) {
      act = std::max(act, act_bytes<F>(piece, Extent::of_segment(piece, F::kUnit, s), kRows));
    }
  }
  const auto kernel = multiply_few<F, kRowTiles, kWarps, true>;
  const size_t bytes = act + sizeof(float) * 2 * kWarps * kRows * kSumStride;
  if (bytes > static_cast<size_t>(shared_memory_limit())) return false;
  const int groups = groups_of(pieces, kWarps * kCluster);
  if (groups > clusters_at_once("multiply_few", kernel, kCluster, dim3(32 * kWarps), bytes)) return false;
  const int clusters = share_blocks(pieces, kWarps * kCluster, groups);
  launch_clusters(stage, "multiply_few", kernel, kCluster, dim3(clusters * kCluster), dim3(32 * kWarps), bytes, pieces);
  return true;
}

// Blocks of 8 warps, two beside each other, begin and end each at its time. Where there are many activations to
// prepare, one of 16, or clusters if outputs are few.
template <class F, int kRowTiles>
bool launch_rows(const Stage& stage, int rows, Pieces& pieces) {
  constexpr int kManyActivations = 16384;
  int in = 0;
  for (int i = 0; i < pieces.count; ++i) in = std::max(in, pieces.piece[i].in);
  if (rows * in >= kManyActivations) {
    if (4 * groups_of(pieces, 16) >= 3 * stage.processors) {
      if (launch_few<F, kRowTiles, 16>(stage, pieces)) return true;
    } else if (stage.arch >= 90) {
      if (launch_few_clusters<F, kRowTiles>(stage, pieces)) return true;
    }
  }
  return launch_few<F, kRowTiles, 8>(stage, pieces);
}

}  // namespace

bool multiply_few_rows(const Stage& stage, const PieceKind& kind, Pieces& pieces) {
  bool fits = false;
  int rows = 0;
  for (int i = 0; i < pieces.count; ++i) rows = std::max(rows, pieces.piece[i].rows);
  with_format(kind, [&](auto format) {
    using F = decltype(format);
    fits = rows <= 8 ? launch_rows<F, 1>(stage, rows, pieces) : launch_rows<F, 2>(stage, rows, pieces);
  });
  return fits;
}

}  // namespace onelane::cuda
