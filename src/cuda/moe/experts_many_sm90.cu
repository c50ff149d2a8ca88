// The products of experts_many.h.
//
// Blocks stay, and take units in turns: of one tile 128 rows of weights, over all of k. A thread copies activations
// into a ring of quads, two warps copy weights into a ring of stages as experts_units.h has them, and both run ahead
// into the next unit; two warpgroups multiply 64 rows each, decoded in registers.
//
// While the tensor cores sum a block of 32 values for one half of the columns, the warpgroup adds the sums of the other
// half to its totals. Totals of segments meet in shared memory, in ascending order.
#include <algorithm>

#include "cuda/moe/experts_many.h"
#include "cuda/moe/experts_weights.h"
#include "cuda/ptx/cluster.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/ring.h"

namespace onelane::cuda::moe {
namespace {

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kMultiplying = 2;
constexpr int kThreads = (kMultiplying + 1) * kGroup;
constexpr int kMultiplyRegisters = 224, kCopyRegisters = 56;
constexpr int kHalves = 2;                // of a tile's columns
constexpr int kRows = 64 * kMultiplying;  // of weights, in a unit
constexpr int kWeightCopiers = 64;        // threads

constexpr int kQuadSlots = 4, kQuadBytes = (kMostColumns * (256 + 16) + 1023) / 1024 * 1024;
constexpr int kStageSlots = 5, kStageWeights = kRows * kStageBytes, kStageSlotBytes = kStageWeights + kRows * 4;
constexpr int kTotalBytes = 64 * kMostColumns * 4;  // of a warpgroup

constexpr int kStageRing = kQuadSlots * kQuadBytes;
constexpr int kTotalsAt = kStageRing + kStageSlots * kStageSlotBytes;
constexpr int kBarriers = kTotalsAt + kMultiplying * kTotalBytes;  // of full slots, then of empty ones; of each ring
constexpr int kSharedBytes = kBarriers + 2 * (kQuadSlots + kStageSlots) * 8;
static_assert(kSharedBytes <= 227 * 1024 && kTotalsAt % 16 == 0);

// A ring and where its slots are.
template <int kSlots, int kBytes>
struct SlotRing : Ring<kSlots> {
  uint32_t memory;

  __device__ SlotRing(uint32_t memory, uint32_t barriers) : Ring<kSlots>(barriers), memory(memory) {}
  __device__ uint32_t slot() const { return memory + this->index * kBytes; }
};
using Quads = SlotRing<kQuadSlots, kQuadBytes>;
using Stages = SlotRing<kStageSlots, kStageSlotBytes>;
__device__ __forceinline__ Quads quad_ring(uint32_t shared) { return {shared, shared + kBarriers}; }
__device__ __forceinline__ Stages stage_ring(uint32_t shared) {
  return {shared + kStageRing, shared + kBarriers + 2 * kQuadSlots * 8};
}

struct ManyArgs {
  const ManyTile* tiles;
  const int32_t* tile_count;
  const Column* columns;
  Image x;
  Layout routed, shared;
  int parts;  // of kRows rows of weights
  float limit;
  bf16* out;  // up: [columns, out_width], down: [pairs, out_width]
  int out_width;
};
__device__ __forceinline__ const Layout& layout_of(const ManyArgs& args, const ManyTile& tile) {
  return tile.shared != 0 ? args.shared : args.routed;
}

// Calls `take` with the tile and part of each of the block's units.
template <class Take>
__device__ __forceinline__ void for_each_unit(const ManyArgs& args, const Take& take) {
  const int all = __ldcg(args.tile_count) * args.parts;
  for (int i = blockIdx.x; i < all; i += gridDim.x) take(load_tile(args.tiles + i / args.parts), i % args.parts);
}

// Row `row` of the unit. Of up, the 16 rows of a warp are eight of w1 and the same eight of w3, so that a gate and what
// it belongs to are sums of the same thread.
struct Row {
  const std::byte* data;
  const uint8_t* scale;
};
template <bool kDown>
__device__ __forceinline__ Row row_of(const Layout& layout, const ExpertPointers& expert, int part, int row) {
  const bool second = !kDown && row % 16 >= 8;
  const int at = kDown ? part * kRows + row : part * (kRows / 2) + row / 16 * 8 + row % 8;
  const std::byte* data = kDown ? expert.w2 : second ? expert.w3 : expert.w1;
  const uint8_t* scale = kDown ? expert.w2_scale : second ? expert.w3_scale : expert.w1_scale;
  return {data + static_cast<int64_t>(at) * layout.row_bytes,
          scale + static_cast<int64_t>(at >> layout.row_shift) * layout.scale_row};
}

// Thread 4 r + p copies piece p of rows r, r + 16, ..., and of fp4 the scales of rows 4 r + p and 64 more.
template <bool kDown>
__device__ __forceinline__ void copy_weights(const ManyArgs& args, Stages ring) {
  const int thread = threadIdx.x % kGroup, piece = thread % 4;
  const uint32_t place = piece_place(thread / 4, piece);
  for_each_unit(args, [&](const ManyTile& tile, int part) {
    const Layout& layout = layout_of(args, tile);
    const std::byte* from = row_of<kDown>(layout, tile.expert, part, thread / 4).data + piece * 16;
    const uint8_t* scale = row_of<kDown>(layout, tile.expert, part, thread).scale;
    const uint32_t apart = (kDown ? 16 : 8) * layout.row_bytes, scales_apart = (kDown ? 64 : 32) * layout.scale_row;
    const bool fp4 = layout.fp4;
    for (int left = layout.row_bytes / kStageBytes; left > 0; --left) {
      ptx::mbarrier_wait_in_block(ring.empty(), ring.round ^ 1);
#pragma unroll
      for (int j = 0; j < kRows / 16; ++j) ptx::copy_async<16>(ring.slot() + place + j * 1024, from + j * apart);
      if (fp4) {
        ptx::copy_async<4>(ring.slot() + kStageWeights + thread * 4, scale);
        ptx::copy_async<4>(ring.slot() + kStageWeights + (thread + 64) * 4, scale + scales_apart);
      }
      ptx::mbarrier_arrive_after_copies(ring.full());
      from += kStageBytes;
      scale += 4;
      ring.next();
    }
  });
}

// One thread.
__device__ __forceinline__ void copy_activations(const ManyArgs& args, Quads ring) {
  for_each_unit(args, [&](const ManyTile& tile, int) {
    const uint32_t bytes = tile.columns * args.x.column_bytes();
    const std::byte* from = args.x.tile(tile.first);
    for (int q = 0; q < args.x.quads; ++q) {
      ptx::mbarrier_wait_in_block(ring.empty(), ring.round ^ 1);
      ptx::mbarrier_expect(ring.full(), bytes);
      ptx::copy_bulk(ring.slot(), from, bytes, ring.full());
      from += bytes;
      ring.next();
    }
  });
}

// The weights of a lane, rows g and g + 8 of its warp's 16, block by block of a quad.
template <bool kFp4>
class LaneWeights;

template <>
class LaneWeights<true> {
 public:
  __device__ LaneWeights(const Row (&)[2], int) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    matrices_ = warp * 1024 + piece_place(lane % 16, lane / 16);
    codes_ = kStageWeights + warp * 64 + lane / 4 * 4;
  }
  // Blocks in order, each after products of the one before were begun. Waits for a slot before its first one.
  __device__ __forceinline__ void decode(int block, Stages& ring, uint32_t (&a)[2][4]) {
    if (block == 0) {
      release_before(ring, threadIdx.x % 32);
      ptx::mbarrier_wait_in_block(ring.full(), ring.round);
      next_code_[0] = ptx::load_shared(ring.slot() + codes_);
      next_code_[1] = ptx::load_shared(ring.slot() + codes_ + 32);
    }
    if (block % 2 == 0) ptx::load_matrices(words_, (ring.slot() + matrices_) ^ (block / 2 * 32));
    expand_fp4(words_[block % 2 * 2], words_[block % 2 * 2 + 1], a);
    if (block == 3) ring.next();
  }
  // The quad that was decoded last is the one whose scales are asked for.
  __device__ __forceinline__ void begin_quad() { code_[0] = next_code_[0], code_[1] = next_code_[1]; }
  __device__ __forceinline__ float scale(int block, int half) const {
    const uint32_t word = code_[half];
    return __uint_as_float((block < 3 ? word << (23 - 8 * block) : word >> 1) & 0x7f800000u);
  }

 private:
  uint32_t matrices_, codes_;
  uint32_t words_[4], code_[2], next_code_[2];
};

template <>
class LaneWeights<false> {
 public:
  __device__ LaneWeights(const Row (&rows)[2], int block_shift)
      : scales_{rows[0].scale, rows[1].scale}, block_shift_(block_shift) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    halves_ = warp * 1024 + piece_place(lane / 4, lane % 4 / 2) + lane % 2 * 8;
  }
  __device__ __forceinline__ void decode(int block, Stages& ring, uint32_t (&a)[2][4]) {
    if (block == 0) load_scales();
    if (block % 2 == 0) {
      release_before(ring, threadIdx.x % 32);
      ptx::mbarrier_wait_in_block(ring.full(), ring.round);
    }
    load_fp8(ring.slot() + halves_, block % 2, a);
    if (block % 2 == 1) ring.next();
  }
  __device__ __forceinline__ void begin_quad() {
#pragma unroll
    for (int i = 0; i < 8; ++i) code_[i] = next_code_[i];
  }
  __device__ __forceinline__ float scale(int block, int half) const { return e8m0_to_float(code_[half * 4 + block]); }

 private:
  __device__ __forceinline__ void load_scales() {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      next_code_[i] = ptx::load_byte(scales_[i / 4] + ((value_ + i % 4 * 32) >> block_shift_));
    }
    value_ += 128;
  }

  const uint8_t* scales_[2];
  int block_shift_, value_ = 0;
  uint32_t halves_;
  uint32_t code_[8], next_code_[8];
};

// What a warpgroup has of a unit: sums of 64 rows for two halves of kTiles times 8 columns.
template <int kTiles>
using Sums = float[kHalves][kTiles][4];

// Sums the products of a unit. `segments`: of the warpgroup in shared memory, float [2 kTiles][thread][4].
template <bool kDown, int kActBlock, bool kFp4, int kTiles>
__device__ __forceinline__ void sum_unit(const ManyArgs& args, const Layout& layout, const ManyTile& tile, int part,
                                         float4* segments, Quads& quads, Stages& stages, Sums<kTiles>& total) {
  constexpr bool kEach = kActBlock == 32;  // each block of activations has a scale
  constexpr int kColumns = 8 * kHalves * kTiles, kPanel = kColumns * 128, kHalf = kPanel / kHalves;
  const int lane = threadIdx.x % 32;
  const Row rows[2] = {row_of<kDown>(layout, tile.expert, part, threadIdx.x / 32 * 16 + lane / 4),
                       row_of<kDown>(layout, tile.expert, part, threadIdx.x / 32 * 16 + lane / 4 + 8)};
  LaneWeights<kFp4> weights(rows, layout.block_shift);
  Sums<kTiles> d = {}, of_quad;
  uint32_t a[2][2][4];  // of blocks by turns

  const auto begin = [&](int block, int h) {
    const uint64_t at =
        ptx::matrix_after(ptx::swizzled_matrix(quads.slot()), block / 2 * kPanel + block % 2 * 64 + h * kHalf);
    ptx::wgmma_fence();
    ptx::wgmma_f16(d[h], a[block % 2][0], at, false);
    ptx::wgmma_f16(d[h], a[block % 2][1], ptx::matrix_after(at, 32), true);
    ptx::wgmma_commit();
  };
  const auto add = [&](int block, int h) {
    const uint32_t scales = quads.slot() + 2 * kPanel + (h * kTiles * 8 + lane % 4 * 2) * 4;
    const float by[2] = {weights.scale(block, 0), weights.scale(block, 1)};
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if constexpr (kEach || !kFp4) {
        const float2 act = ptx::load_shared_floats(scales + (kEach ? block * kColumns * 4 : 0) + j * 32);
        promote(total[h][j], d[h][j], by[0], by[1], act);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& sum = of_quad[h][j][i];
          sum = block == 0 ? __fmul_rn(d[h][j][i], by[i / 2]) : __fmaf_rn(d[h][j][i], by[i / 2], sum);
        }
        if (block == 3) {
          const float2 act = ptx::load_shared_floats(scales + j * 32);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            total[h][j][i] = __fmaf_rn(of_quad[h][j][i], i % 2 == 0 ? act.x : act.y, total[h][j][i]);
          }
        }
      }
    }
  };

  const int count = args.x.quads;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) total[h][j][0] = total[h][j][1] = total[h][j][2] = total[h][j][3] = 0;
  }
  // A quad, the weights of whose first block are there. Nothing is in flight at its end: the compiler does not follow
  // products around a loop. The other warpgroup's are.
  const auto add_quad = [&](bool more) {
    weights.begin_quad();
    ptx::mbarrier_wait_in_block(quads.full(), quads.round);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) begin(0, h);
    release_before(quads, threadIdx.x % 32);
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      if (block < 3 || more) weights.decode((block + 1) % 4, stages, a[(block + 1) % 2]);
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        if (block < 3 || h == 0) {
          ptx::wgmma_wait<1>();
        } else {
          ptx::wgmma_wait<0>();
        }
        ptx::hold(d[h]);
        add(block, h);
        if (block < 3) begin(block + 1, h);
      }
    }
    quads.next();
  };
  const auto end_segment = [&](bool first, bool last) {
#pragma unroll
    for (int j = 0; j < kHalves * kTiles; ++j) {
      float(&of)[4] = total[j / kTiles][j % kTiles];
      float4 sum = make_float4(of[0], of[1], of[2], of[3]);
      if constexpr (kFp4) sum.x *= kE2m1AsE4m3, sum.y *= kE2m1AsE4m3, sum.z *= kE2m1AsE4m3, sum.w *= kE2m1AsE4m3;
      if (!first) {
        const float4 before = segments[j * kGroup];
        sum.x = before.x + sum.x, sum.y = before.y + sum.y, sum.z = before.z + sum.z, sum.w = before.w + sum.w;
      }
      if (last) {
        of[0] = sum.x, of[1] = sum.y, of[2] = sum.z, of[3] = sum.w;
      } else {
        segments[j * kGroup] = sum;
        of[0] = of[1] = of[2] = of[3] = 0;
      }
    }
  };
  weights.decode(0, stages, a[0]);
  int segment = 0, left = segment_quads(count, 0);
#pragma unroll 1
  for (int q = 0; q < count; ++q) {
    const bool more = q + 1 < count;
    add_quad(more);
    if (--left > 0) continue;
    end_segment(segment == 0, !more);
    left = segment_quads(count, ++segment);
  }
  if (count < kSegments) {  // a segment without values: zero
#pragma unroll
    for (int j = 0; j < kHalves * kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total[j / kTiles][j % kTiles][i] += 0.0f;
    }
  }
}

// What becomes of the sums, through `staging`, the warpgroup's part of shared memory, so that rows are written whole.
template <bool kDown, int kTiles>
__device__ __forceinline__ void store_unit(const ManyArgs& args, const ManyTile& tile, int part, bf16* staging,
                                           const Sums<kTiles>& total) {
  constexpr int kOuts = kDown ? 64 : 32;
  constexpr int kStride = kOuts + 8;  // no two words of a warp in one bank
  const int thread = threadIdx.x % kGroup, group = threadIdx.x / kGroup, lane = thread % 32, g = lane / 4, t = lane % 4;
  const Column* columns = args.columns + tile.first;
  ptx::named_barrier(1 + group, kGroup);
#pragma unroll
  for (int j = 0; j < kHalves * kTiles; ++j) {
    const float(&of)[4] = total[j / kTiles][j % kTiles];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 8 * j + 2 * t + i;
      bf16* to = staging + column * kStride + thread / 32 * (kOuts / 4) + g;
      if constexpr (kDown) {
        to[0] = float_to_bf16(of[i]);
        to[8] = float_to_bf16(of[2 + i]);
      } else {
        to[0] = float_to_bf16(activation(of[i], of[2 + i], __ldcg(&columns[column].weight), args.limit));
      }
    }
  }
  ptx::named_barrier(1 + group, kGroup);
  constexpr int kLanes = kOuts / 8;  // that write a column
  const int64_t out = (part * kMultiplying + group) * kOuts + thread % kLanes * 8;
  for (int column = thread / kLanes; column < tile.count; column += kGroup / kLanes) {
    const int row = kDown ? __ldcg(&columns[column].pair) : tile.first + column;
    *reinterpret_cast<uint4*>(args.out + static_cast<int64_t>(row) * args.out_width + out) =
        *reinterpret_cast<const uint4*>(staging + column * kStride + thread % kLanes * 8);
  }
  ptx::named_barrier(1 + group, kGroup);
}

template <bool kDown, int kActBlock, bool kFp4, int kTiles>
__device__ __forceinline__ void make_unit(const ManyArgs& args, const ManyTile& tile, int part, std::byte* totals,
                                          Quads& quads, Stages& stages) {
  Sums<kTiles> total;
  sum_unit<kDown, kActBlock, kFp4, kTiles>(args, layout_of(args, tile), tile, part,
                                           reinterpret_cast<float4*>(totals) + threadIdx.x % kGroup, quads, stages,
                                           total);
  store_unit<kDown, kTiles>(args, tile, part, reinterpret_cast<bf16*>(totals), total);
}

template <bool kDown, int kActBlock>
__device__ __forceinline__ void multiply_units(const ManyArgs& args, std::byte* shared, Quads quads, Stages stages) {
  std::byte* totals = shared + kTotalsAt + threadIdx.x / kGroup * kTotalBytes;
  for_each_unit(args, [&](const ManyTile& tile, int part) {
    const auto of_width = [&](auto fp4) {
      const auto make = [&](auto tiles) {
        make_unit<kDown, kActBlock, fp4(), tiles()>(args, tile, part, totals, quads, stages);
      };
      switch (tile.columns) {
        case 32:
          return make(std::integral_constant<int, 4 / kHalves>());
        case 48:
          return make(std::integral_constant<int, 6 / kHalves>());
        case 64:
          return make(std::integral_constant<int, 8 / kHalves>());
        case 80:
          return make(std::integral_constant<int, 10 / kHalves>());
        case 96:
          return make(std::integral_constant<int, 12 / kHalves>());
        default:
          return make(std::integral_constant<int, 14 / kHalves>());
      }
    };
    layout_of(args, tile).fp4 ? of_width(std::true_type()) : of_width(std::false_type());
  });
}

template <bool kDown, int kActBlock>
__global__ void __launch_bounds__(kThreads, 1) multiply_many_experts(const __grid_constant__ ManyArgs args) {
  ONELANE_DYNAMIC_SHARED(std::byte, memory);
  const uint32_t shared = ptx::shared_address(memory);
  Quads quads = quad_ring(shared);
  Stages stages = stage_ring(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kQuadSlots; ++i) {
      ptx::mbarrier_init(quads.barriers + i * 8, 1);
      ptx::mbarrier_init(quads.barriers + (kQuadSlots + i) * 8, kMultiplying * kGroup / 32);
    }
    for (int i = 0; i < kStageSlots; ++i) {
      ptx::mbarrier_init(stages.barriers + i * 8, kWeightCopiers);
      ptx::mbarrier_init(stages.barriers + (kStageSlots + i) * 8, kMultiplying * kGroup / 32);
    }
  }
  __syncthreads();
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  if (threadIdx.x >= kMultiplying * kGroup) {
    ptx::give_registers<kCopyRegisters>();
    const int thread = threadIdx.x - kMultiplying * kGroup;
    if (thread < kWeightCopiers) {
      copy_weights<kDown>(args, stages);
    } else if (thread == kWeightCopiers) {
      copy_activations(args, quads);
    }
  } else {
    ptx::take_registers<kMultiplyRegisters>();
    multiply_units<kDown, kActBlock>(args, memory, quads, stages);
  }
  // Who copies stays until what was asked for has come.
  __syncwarp();
  __syncthreads();
}

template <bool kDown>
void multiply(const ExpertsCall& call, const ColumnPlan& plan, const Image& x, bf16* out) {
  const ExpertsArgs& a = *call.args;
  const int width = kDown ? a.dim : a.inter;
  const ManyArgs args{.tiles = plan.tiles,
                      .tile_count = plan.counts,
                      .columns = plan.columns,
                      .x = x,
                      .routed = matrix_layout(kDown ? a.experts[0].w2 : a.experts[0].w1),
                      .shared = matrix_layout(kDown ? a.shared.w2 : a.shared.w1),
                      .parts = width / (kDown ? kRows : kRows / 2),
                      .limit = a.limit,
                      .out = out,
                      .out_width = width};
  launch(*call.stage, kDown ? "multiply_many_experts down" : "multiply_many_experts up",
         x.block == 32 ? multiply_many_experts<kDown, 32> : multiply_many_experts<kDown, 128>,
         dim3(call.stage->processors), dim3(kThreads), kSharedBytes, args);
}

}  // namespace

void multiply_up(const ExpertsCall& call, const ColumnPlan& plan, const Image& x, bf16* hidden) {
  multiply<false>(call, plan, x, hidden);
}
void multiply_down(const ExpertsCall& call, const ColumnPlan& plan, const Image& x, bf16* y) {
  multiply<true>(call, plan, x, y);
}

}  // namespace onelane::cuda::moe
