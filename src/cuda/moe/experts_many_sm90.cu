// The products of experts_many.h.
//
// Blocks stay, and take units in turns: of one tile 128 rows of weights, over all of k. A thread copies activations
// into a ring of quads, two warps copy weights into a ring of stages as experts_units.h has them, a third makes the
// factors of their scales, and all run ahead into the next unit; two warpgroups multiply 64 rows each, decoded in
// registers, a block of 32 values at a time while the tensor cores are at the one before.
#include <algorithm>

#include "cuda/moe/experts_many.h"
#include "cuda/moe/experts_units.h"
#include "cuda/moe/experts_weights.h"
#include "cuda/ptx/cluster.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/ring.h"

namespace onelane::cuda::moe {
namespace {

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kMultiplying = 2;
constexpr int kThreads = (kMultiplying + 1) * kGroup;
constexpr int kMultiplyRegisters = 216, kCopyRegisters = 72;
constexpr int kRows = 64 * kMultiplying;  // of weights, in a unit
constexpr int kWeightCopiers = 64;        // threads
constexpr int kFactorMakers = 32;

constexpr int kQuadSlots = 4, kQuadBytes = (kMostColumns * Image::column_bytes() + 1023) / 1024 * 1024;
// A slot of the ring of stages: weights; in the first one of a quad also, of each row, the factors of the quad's blocks
// and what its segment is units of.
constexpr int kFactorsAt = kRows * kStageBytes, kUnitsAt = kFactorsAt + kRows * 8;
constexpr int kStageSlots = 7, kStageSlotBytes = kUnitsAt + kRows * 4;
constexpr int kOutStride = 64 + 8;                              // bf16; no two words of a warp in one bank
constexpr int kOutBytes = kMostColumns * (kOutStride * 2 + 4);  // of a warpgroup: bf16, then a word a column

constexpr int kStageRing = kQuadSlots * kQuadBytes;
constexpr int kOutsAt = kStageRing + kStageSlots * kStageSlotBytes;
constexpr int kBarriers = kOutsAt + kMultiplying * kOutBytes;  // of full slots, then of empty ones; of each ring
constexpr int kSharedBytes = kBarriers + 2 * (kQuadSlots + kStageSlots) * 8;
static_assert(kSharedBytes <= 227 * 1024 && kOutsAt % 16 == 0);

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

// Thread 4 r + p copies piece p of rows r, r + 16, ...
template <bool kDown>
__device__ __forceinline__ void copy_weights(const ManyArgs& args, Stages ring) {
  const int thread = threadIdx.x % kGroup, piece = thread % 4;
  const uint32_t place = piece_place(thread / 4, piece);
  for_each_unit(args, [&](const ManyTile& tile, int part) {
    const Layout& layout = layout_of(args, tile);
    const std::byte* from = row_of<kDown>(layout, tile.expert, part, thread / 4).data + piece * 16;
    const uint32_t apart = (kDown ? 16 : 8) * layout.row_bytes;
    for (int left = layout.row_bytes / kStageBytes; left > 0; --left) {
      ptx::mbarrier_wait_in_block(ring.empty(), ring.round ^ 1);
#pragma unroll
      for (int j = 0; j < kRows / 16; ++j) ptx::copy_async<16>(ring.slot() + place + j * 1024, from + j * apart);
      ptx::mbarrier_arrive_after_copies(ring.full());
      from += kStageBytes;
      ring.next();
    }
  });
}

// The codes of a row's four blocks in a quad.
__device__ __forceinline__ uint32_t quad_codes(const Layout& layout, const uint8_t* row, int quad) {
  if (layout.fp4) return __ldg(reinterpret_cast<const uint32_t*>(row) + quad);
  if (layout.block_shift == 7) return ptx::load_byte(row + quad) * 0x01010101u;
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) word |= ptx::load_byte(row + 4 * quad + i) << (8 * i);
  return word;
}

// A warp: a lane has rows of its number and 32, 64, 96 more.
template <bool kDown>
__device__ __forceinline__ void make_factors(const ManyArgs& args, Stages ring) {
  constexpr int kEach = kRows / 32;
  const int lane = threadIdx.x % 32;
  for_each_unit(args, [&](const ManyTile& tile, int part) {
    const Layout& layout = layout_of(args, tile);
    const int top = layout.fp4 ? kFp4Top : kFp8Top, stages = layout.fp4 ? 1 : 2;  // of a quad
    const int quads = args.x.quads;
    const uint8_t* rows[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) rows[j] = row_of<kDown>(layout, tile.expert, part, lane + 32 * j).scale;
    for (int segment = 0; segment < kSegments; ++segment) {
      const int first = first_quad(quads, segment), end = first + segment_quads(quads, segment);
      uint32_t largest[kEach] = {};
#pragma unroll 4
      for (int quad = first; quad < end; ++quad) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          largest[j] = __vmaxu2(largest[j], larger_codes(quad_codes(layout, rows[j], quad)));
        }
      }
#pragma unroll
      for (int j = 0; j < kEach; ++j) largest[j] = largest_code(largest[j]);
      for (int quad = first; quad < end; ++quad) {
        uint32_t words[kEach];
#pragma unroll
        for (int j = 0; j < kEach; ++j) words[j] = quad_codes(layout, rows[j], quad);
        for (int stage = 0; stage < stages; ++stage) {
          ptx::mbarrier_wait_in_block(ring.empty(), ring.round ^ 1);
          // They are read of a quad's first stage.
#pragma unroll
          for (int j = 0; j < kEach; ++j) {
            if (stage > 0) break;
            const ScaleFactors factors(largest[j], top);
            const int row = lane + 32 * j;
            ptx::store_shared(ring.slot() + kFactorsAt + factor_place(row),
                              make_uint2(factors.of_two(words[j], 0), factors.of_two(words[j], 2)));
            const float unit = layout.fp4 ? fp4_unit(largest[j]) : fp8_unit(largest[j]);
            ptx::store_shared(ring.slot() + kUnitsAt + row * 4, __float_as_uint(unit));
          }
          ptx::mbarrier_arrive(ring.full());
          ring.next();
        }
      }
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

// The weights of a lane, rows g and g + 8 of its warp's 16, block by block of a unit's quads. What comes next is asked
// for as soon as there are registers for it, so that products hide how long it takes. Stages are kept until
// release_quad().
template <bool kFp4>
class LaneWeights {
 public:
  // Waits for the first stage.
  __device__ __forceinline__ explicit LaneWeights(const Stages& ring) : ring_(ring), held_(ring) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    weights_ =
        warp * 1024 + (kFp4 ? piece_place(lane % 16, lane / 16) : piece_place(lane / 4, lane % 4 / 2) + lane % 2 * 8);
    row_ = warp * 16 + lane / 4;
    ptx::mbarrier_wait_in_block(ring_.full(), ring_.round);
    load(0);
    load_factors();
  }
  // Blocks in order; `more`: whether a quad follows.
  __device__ __forceinline__ void decode(int block, bool more, Operands& a) {
    if ((!kFp4 || block % 2 == 0) && (block < 4 - kPortion || more)) {
      if (!kFp4 ? block % 2 == 1 : block == 2) {
        ring_.next();
        ptx::mbarrier_wait_in_block(ring_.full(), ring_.round);
      }
      load((block / kPortion + 1) % (4 / kPortion));
    }
    const uint32_t(&words)[4] = words_[block / kPortion % 2];
    if constexpr (kFp4) {
      expand_fp4(words[block % 2 * 2], words[block % 2 * 2 + 1], a);
    } else {
      expand_fp8(words, a);
    }
    scale_rows(a, factors_[0][block / 2], factors_[1][block / 2], block % 2 == 1);
    if (block == 3 && more) load_factors();
  }
  // Of the quad that is held, row g or with `half` g + 8.
  __device__ __forceinline__ float unit(int half) const {
    return __uint_as_float(ptx::load_shared(held_.slot() + kUnitsAt + (row_ + 8 * half) * 4));
  }
  // Its products are done.
  __device__ __forceinline__ void release_quad() {
#pragma unroll
    for (int i = 0; i < (kFp4 ? 1 : 2); ++i) {
      release(held_, threadIdx.x % 32);
      held_.next();
    }
  }
  // Behind the last stage.
  __device__ __forceinline__ Stages end() const {
    Stages ring = ring_;
    ring.next();
    return ring;
  }

 private:
  static constexpr int kPortion = kFp4 ? 2 : 1;  // blocks that are loaded at once

  __device__ __forceinline__ void load(int portion) {
    const uint32_t at = ring_.slot() + weights_;
    if constexpr (kFp4) {
      ptx::load_matrices(words_[portion % 2], at ^ (portion * 32));
    } else {
      load_fp8(at, portion % 2, words_[portion % 2]);
    }
  }
  // Of a quad.
  __device__ __forceinline__ void load_factors() {
    const uint4 four = ptx::load_shared_four(ring_.slot() + kFactorsAt + factor_place(row_));
    factors_[0][0] = four.x, factors_[0][1] = four.y, factors_[1][0] = four.z, factors_[1][1] = four.w;
  }

  Stages ring_, held_;
  uint32_t weights_, row_;
  uint32_t words_[2][4], factors_[2][2];
};

// What a warpgroup has of a unit: sums of 64 rows for kTiles times 8 columns.
template <int kTiles>
using UnitSums = float[kTiles][4];

// Sums the products of a unit.
template <bool kFp4, int kTiles>
__device__ __forceinline__ void sum_unit(const ManyArgs& args, Quads& quads, Stages& stages, UnitSums<kTiles>& total) {
  constexpr int kColumns = 8 * kTiles, kPanel = kColumns * 128;
  const int lane = threadIdx.x % 32;
  LaneWeights<kFp4> weights(stages);
  UnitSums<kTiles> d = {};
  Operands a[2];  // of blocks by turns
  // No sum of the unit is a zero that this changes.
#pragma unroll
  for (int j = 0; j < kTiles; ++j) total[j][0] = total[j][1] = total[j][2] = total[j][3] = -0.0f;

  const auto begin = [&](int block, bool add) {
    const uint64_t at = ptx::matrix_after(ptx::swizzled_matrix(quads.slot()), block / 2 * kPanel + block % 2 * 64);
    ptx::wgmma_fence();
    ptx::wgmma_f16(d, a[block % 2][0], at, add);
    ptx::wgmma_f16(d, a[block % 2][1], ptx::matrix_after(at, 32), true);
    ptx::wgmma_commit();
  };
  // A quad, whose activations are there, and the weights of its first block. Nothing is in flight at its end: the
  // compiler does not follow products around a loop. The other warpgroup's are.
  const auto add_quad = [&](bool first, bool last, bool more) {
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      begin(block, block > 0 || !first);
      if (block == 3 && !more) break;
      if (block > 0) ptx::wgmma_wait<1>();
      weights.decode((block + 1) % 4, more, a[(block + 1) % 2]);
    }
    Quads following = quads;
    following.next();
    if (more) ptx::mbarrier_wait_in_block(following.full(), following.round);
    ptx::wgmma_wait<0>();
    ptx::hold(d);
    if (last) {
      const float rows[2] = {weights.unit(0), weights.unit(1)};
      const uint32_t units = quads.slot() + 2 * kPanel + lane % 4 * 8;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const float2 column = ptx::load_shared_floats(units + j * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float sum = __fmul_rn(__fmul_rn(d[j][i], i % 2 == 0 ? column.x : column.y), rows[i / 2]);
          total[j][i] = __fadd_rn(total[j][i], sum);
        }
      }
      ptx::hold(total);
    }
    // What was loaded has been used: by products that are done, and by sums of this unit, which are behind a branch.
    release(quads, lane);
    quads = following;
    weights.release_quad();
  };
  weights.decode(0, true, a[0]);
  ptx::mbarrier_wait_in_block(quads.full(), quads.round);
  const int count = args.x.quads;
  int segment = 0, done = 0, of_segment = segment_quads(count, 0);
#pragma unroll 1
  for (int q = 1; q <= count; ++q) {
    const bool last = ++done == of_segment;
    add_quad(done == 1, last, q < count);
    if (last) done = 0, of_segment = segment_quads(count, ++segment);
  }
  stages = weights.end();
  if (count < kSegments) {  // a segment without values: zero
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total[j][i] += 0.0f;
    }
  }
}

// What a thread of a warpgroup keeps for all, of the column of its number: the pair's weight, or of down the pair.
template <bool kDown>
__device__ __forceinline__ uint32_t column_word(const ManyArgs& args, const ManyTile& tile) {
  const int column = threadIdx.x % kGroup;
  if (column >= tile.columns) return 0;
  const Column* of = args.columns + tile.first + column;
  return kDown ? static_cast<uint32_t>(__ldcg(&of->pair)) : __float_as_uint(__ldcg(&of->weight));
}

// What becomes of the sums, through `staging`, the warpgroup's part of shared memory, so that rows are written whole.
// `word`: of column_word.
template <bool kDown, int kTiles>
__device__ __forceinline__ void store_unit(const ManyArgs& args, const ManyTile& tile, int part, bf16* staging,
                                           uint32_t word, const UnitSums<kTiles>& total) {
  constexpr int kOuts = kDown ? 64 : 32;
  const int thread = threadIdx.x % kGroup, group = threadIdx.x / kGroup, lane = thread % 32, g = lane / 4, t = lane % 4;
  uint32_t* words = reinterpret_cast<uint32_t*>(staging + kMostColumns * kOutStride);
  if (thread < 8 * kTiles) words[thread] = word;
  ptx::named_barrier(1 + group, kGroup);
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const float(&of)[4] = total[j];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 8 * j + 2 * t + i;
      bf16* to = staging + column * kOutStride + thread / 32 * (kOuts / 4) + g;
      if constexpr (kDown) {
        to[0] = float_to_bf16(of[i]);
        to[8] = float_to_bf16(of[2 + i]);
      } else {
        to[0] = float_to_bf16(activation(of[i], of[2 + i], __uint_as_float(words[column]), args.limit));
      }
    }
  }
  ptx::named_barrier(1 + group, kGroup);
  constexpr int kLanes = kOuts / 8;  // that write a column
  const int64_t out = (part * kMultiplying + group) * kOuts + thread % kLanes * 8;
  for (int column = thread / kLanes; column < tile.count; column += kGroup / kLanes) {
    const int row = kDown ? static_cast<int>(words[column]) : tile.first + column;
    *reinterpret_cast<uint4*>(args.out + static_cast<int64_t>(row) * args.out_width + out) =
        *reinterpret_cast<const uint4*>(staging + column * kOutStride + thread % kLanes * 8);
  }
  ptx::named_barrier(1 + group, kGroup);
}

template <bool kDown>
__device__ __forceinline__ void multiply_units(const ManyArgs& args, std::byte* shared, Quads quads, Stages stages) {
  bf16* staging = reinterpret_cast<bf16*>(shared + kOutsAt + threadIdx.x / kGroup * kOutBytes);
  for_each_unit(args, [&](const ManyTile& tile, int part) {
    const auto make = [&]<int kColumns>() {
      UnitSums<kColumns / 8> total;
      const uint32_t word = column_word<kDown>(args, tile);  // long before it is needed
      if (layout_of(args, tile).fp4) {
        sum_unit<true, kColumns / 8>(args, quads, stages, total);
      } else {
        sum_unit<false, kColumns / 8>(args, quads, stages, total);
      }
      store_unit<kDown, kColumns / 8>(args, tile, part, staging, word, total);
    };
    switch (tile.columns) {
      case 32:
        return make.template operator()<32>();
      case 48:
        return make.template operator()<48>();
      case 64:
        return make.template operator()<64>();
      case 80:
        return make.template operator()<80>();
      case 96:
        return make.template operator()<96>();
      default:
        return make.template operator()<kMostColumns>();
    }
  });
}

template <bool kDown>
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
      ptx::mbarrier_init(stages.barriers + i * 8, kWeightCopiers + kFactorMakers);
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
    } else if (thread >= kGroup - kFactorMakers) {
      make_factors<kDown>(args, stages);
    }
  } else {
    ptx::take_registers<kMultiplyRegisters>();
    multiply_units<kDown>(args, memory, quads, stages);
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
  launch(*call.stage, kDown ? "multiply_many_experts down" : "multiply_many_experts up", multiply_many_experts<kDown>,
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
