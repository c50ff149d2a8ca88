// Sparse-MLA decode on Hopper for many rows: one cluster of blocks a row and 64 heads, one launch.
//
// With rows enough to fill the chip, what counts is how often an entry passes through shared memory. Here 64 heads
// share it: they are the 64 rows of both products, and a block decodes an entry once for all of them.
//
//   block: 3 warpgroups. The last one brings chunks of 64 entries to bf16 in one of two tiles, a chunk ahead; the first
//   computes their scores and probabilities and the first 256 dims of the outputs, the second the other 256:
//
//     S[64 heads, entries] = Q KV^T     wgmma, both from shared memory
//     P = 2^(S - M)                     as in cluster.cu; to the other warpgroup through shared memory
//     O[64 heads, 256] += P KV          wgmma, P from registers
//
//   The merge of a split row is that of cluster.cu; sums are received where tiles and query were.
#include "cuda/attention/cluster.h"
#include "cuda/attention/merge.h"
#include "cuda/attention/softmax.h"
#include "cuda/ptx/cluster.h"
#include "cuda/ptx/wgmma.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 384;
constexpr int kWarps = kThreads / 32;
constexpr int kHeads = 64;
constexpr int kEntries = 64;  // of a chunk
constexpr int kUnits = kEntries / 8;
constexpr int kRound = 8;  // entries that a producing warp has in flight; two rounds are a warp's share of a chunk
static_assert(kEntries / 4 == 2 * kRound);

// Registers of a thread, by warpgroup.
constexpr int kRegisters[] = {232, 176, 96};
static_assert(kRegisters[0] + kRegisters[1] + kRegisters[2] <= 3 * 168, "what the block is launched with");

// Named barriers.
enum : int { kProducers = 1, kWeightsReady, kWeightsRead, kQueryReady };

// Shared memory of a block, in bytes from its start.
struct Wide {
  // bf16 [2][kBlocks][entries][64], [kBlocks][heads][64] and [heads][entries], in rows of 128 swizzled bytes.
  static constexpr int kTile = 0;
  static constexpr int kTileBlock = kEntries * 128;
  static constexpr int kTileBytes = kBlocks * kTileBlock;
  static constexpr int kQ = kTile + 2 * kTileBytes;
  static constexpr int kP = kQ + kBlocks * kHeads * 128;
  static constexpr int kData = kP + kHeads * 128;  // RecordPlace [2][entries], in two arrays
  static constexpr int kToScales = kData + 2 * kEntries * 8;
  static constexpr int kMask = kToScales + 2 * kEntries * 4;       // uint8 [2][entries]: 1 where there is no entry
  static constexpr int kParts = kMask + 2 * kEntries;              // float2 [splits][heads]: M and the sum of 2^(S - M)
  static constexpr int kShift = kParts + kMaxSplits * kHeads * 8;  // float [heads]: from the last M to this one
  static constexpr int kSinks = kShift + kHeads * 4;               // float [heads]
  static constexpr int kAngles = kSinks + kHeads * 4;              // float [kRope]
  static constexpr int kFull = kAngles + kRope * 4;                // barriers: a tile is there, [2]
  static constexpr int kEmpty = kFull + 16;                        // a tile may be written, [2]
  static constexpr int kSums = kEmpty + 16;                        // all sums have come
  static constexpr int kBytes = kSums + 8;
  static constexpr int kReceived = kTile;  // [splits][items] of kItemBytes: [8 heads][4 turned octets of dims]
  static_assert((Items<kHeads>::kCount + kMaxSplits) * kItemBytes <= kP);
  static_assert(kBytes <= 232448, "what a block of sm_90 may have");
  static_assert(kBytes == attention::block_shared_bytes(ONELANE_PATH_CLUSTER, kHeads, 1), "what the plan says");
};

// Place of an octet of dims in a head's row of an item, so that 8 heads do not meet in a bank.
__device__ __forceinline__ int octet_place(int head, int octet) { return octet ^ (head % 4); }

struct Block {
  int row, first_head, rank;
  Share share;
  int chunks;
};

// The last warpgroup: from records to tiles.
template <int W, int X>
__device__ __forceinline__ void produce(const AttentionParams& p, const Block& b, uint8_t* shared_memory,
                                        uint32_t shared) {
  const int thread = threadIdx.x % 128;
  const int warp = __shfl_sync(0xffffffff, thread / 32, 0);
  const int lane = threadIdx.x % 32;
  const int t = lane % 4;
  const int block = lane / 4;
  const bool odd = block % 2 != 0;
  const bool plain = is_plain<W>(block);
  const int32_t* window_indices = p.window.indices + b.row * p.window.index_stride;
  const int32_t* extra_indices = p.extra.indices + b.row * p.extra.index_stride;
  const bool looks_up = thread < kEntries;

  bool none = true;  // this thread's entry of the chunk whose place it put last
  const auto put_place = [&](int chunk, int index) {
    const RecordPlace place = b.share.place<W, X>(p, b.share.begin + chunk * kUnits, thread, index);
    const int at = chunk % 2 * kEntries + thread;
    reinterpret_cast<const uint8_t**>(shared_memory + Wide::kData)[at] = place.data;
    reinterpret_cast<int32_t*>(shared_memory + Wide::kToScales)[at] = place.to_scales;
    none = place.data == nullptr;
  };
  RawShare raw[kRound];
  const auto load = [&](int chunk, int i) {
    const int entry = warp + 4 * i;
    const int at = chunk % 2 * kEntries + entry;
    const RecordPlace place = {reinterpret_cast<const uint8_t**>(shared_memory + Wide::kData)[at],
                               reinterpret_cast<const int32_t*>(shared_memory + Wide::kToScales)[at]};
    RawShare& to = raw[i % kRound];
    if (plain) {
      const auto address = reinterpret_cast<uint64_t>(place.data);
      to.data.x = static_cast<uint32_t>(address);
      to.data.y = static_cast<uint32_t>(address >> 32);
      to.scale = 0;
      if (W == ONELANE_KV_V4 && address != 0) ptx::prefetch(place.data + 448 + t * 32);
    } else if (W != X && b.share.begin + chunk * kUnits + entry / 8 >= b.share.window_units) {
      to = load_share<X>(place, block, t);
    } else {
      to = load_share<W>(place, block, t);
    }
  };

  if (looks_up) put_place(0, b.share.index(window_indices, extra_indices, b.share.begin, thread));
  ptx::named_barrier(kProducers, 128);
#pragma unroll
  for (int i = 0; i < kRound; ++i) load(0, i);
  for (int chunk = 0; chunk < b.chunks; ++chunk) {
    const bool more = chunk + 1 < b.chunks;
    const int stage = chunk % 2;
    const int first = b.share.begin + chunk * kUnits;
    int index = -1;
    if (more && looks_up) index = b.share.index(window_indices, extra_indices, first + kUnits, thread);
    ptx::mbarrier_wait(shared + Wide::kEmpty + stage * 8, (chunk / 2 + 1) % 2);
    if (looks_up) shared_memory[Wide::kMask + stage * kEntries + thread] = none;
    const uint32_t tile = shared + Wide::kTile + stage * Wide::kTileBytes + block * Wide::kTileBlock + warp * 128;

    const auto round = [&]<int kFirst>() {
      // To the tile, and the entry that is kRound further on into the registers.
      const auto convert = [&]<bool kTwoSteps>() {
#pragma unroll
        for (int i = kFirst; i < kFirst + kRound; ++i) {
          RawShare& from = raw[i % kRound];
          const int entry = warp + 4 * i;
          const uint32_t at_first = tile + i * 512 + ((2 * t + odd) ^ (entry % 8)) * 16, at_second = at_first ^ 16;
          if (plain) {
            const uint64_t address = from.data.x | uint64_t{from.data.y} << 32;
            const int bytes = address == 0 ? 0 : 16;
            const auto* source =
                reinterpret_cast<const uint8_t*>(address) + (W == ONELANE_KV_BF16 ? block * 128 : 448) + t * 32;
            ptx::copy_async(at_first, bytes == 0 ? p.out : source + odd * 16, bytes);
            ptx::copy_async(at_second, bytes == 0 ? p.out : source + !odd * 16, bytes);
          } else {
            uint32_t v[8];
            if (X == ONELANE_KV_V41_FP4 && first + entry / 8 >= b.share.window_units) {
              decode_e2m1<kTwoSteps>(from, odd, v);
            } else {
              decode_e4m3<kTwoSteps>(from, odd, v);
            }
            ptx::store_shared(at_first, make_uint4(v[0], v[1], v[2], v[3]));
            ptx::store_shared(at_second, make_uint4(v[4], v[5], v[6], v[7]));
          }
          if (kFirst == 0) {
            load(chunk, i + kRound);
          } else if (more) {
            load(chunk + 1, i - kRound);
          }
        }
      };
      bool two_steps = false;
#pragma unroll
      for (int i = kFirst; i < kFirst + kRound; ++i) {
        const bool is_e2m1 = X == ONELANE_KV_V41_FP4 && first + (warp + 4 * i) / 8 >= b.share.window_units;
        two_steps |=
            !plain && static_cast<int>(raw[i % kRound].scale) > (is_e2m1 ? kLargestE4m3Step : kLargestE8m0Step);
      }
      if (W != ONELANE_KV_BF16 && __any_sync(0xffffffff, two_steps)) {
        convert.template operator()<true>();
      } else {
        convert.template operator()<false>();
      }
    };
    round.template operator()<0>();
    if (more && looks_up) put_place(chunk + 1, index);
    ptx::named_barrier(kProducers, 128);
    round.template operator()<kRound>();
    ptx::copies_wait();
    ptx::fence_async_proxy();
    ptx::mbarrier_arrive(shared + Wide::kFull + stage * 8);
  }
}

// The first two warpgroups: Q to shared memory, and what is needed at the end.
__device__ __forceinline__ void load_query(const AttentionParams& p, const Block& b, uint8_t* shared_memory,
                                           uint32_t shared) {
  float* sinks = reinterpret_cast<float*>(shared_memory + Wide::kSinks);
  float* angles = reinterpret_cast<float*>(shared_memory + Wide::kAngles);
  const uint16_t* q = p.q + (static_cast<int64_t>(b.row) * p.heads + b.first_head) * kDim;
#pragma unroll 4
  for (int i = threadIdx.x; i < kHeads * kBlocks * 8; i += 256) {
    const int eighth = i % 8, head = i / 8 % kHeads, block = i / (8 * kHeads);
    ptx::copy_async(shared + Wide::kQ + (block * kHeads + head) * 128 + (eighth ^ (head % 8)) * 16,
                    q + head * kDim + block * 64 + eighth * 8, 16);
  }
  const int i = static_cast<int>(threadIdx.x) - 128;
  if (i >= 0 && i < kHeads) {
    sinks[i] = load_sink(p, b.first_head + i);
  } else if (i >= kHeads && p.positions != nullptr) {
    const int64_t position = min(max(__ldg(p.positions + b.row), 0), p.angles_count - 1);
    angles[i - kHeads] = __ldg(p.angles + position * kRope + i - kHeads);
  }
  ptx::copies_wait();
  ptx::fence_async_proxy();
  ptx::named_barrier(kQueryReady, 256);
}

// All blocks of the cluster are through with tiles and query: sums may take their place.
template <bool kSplit>
__device__ __forceinline__ void all_have_read() {
  if constexpr (kSplit) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
}

// One of the first two warpgroups, from tiles to sums with their owners. o[4 j + 2 half + i] is that of head 16 warp +
// 8 half + g, dim 256 kGroup + 8 j + 2 t + i.
template <int kGroup, bool kSplit>
__device__ __forceinline__ void consume(const AttentionParams& p, const Block& b, uint8_t* shared_memory,
                                        uint32_t shared) {
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int head = warp * 16 + g;
  float* shifts = reinterpret_cast<float*>(shared_memory + Wide::kShift);
  const uint32_t weights = shared + Wide::kP + head * 128 + t * 4;  // of the second head 8 * 128 further on
  float o[128];
#pragma unroll
  for (float& v : o) v = 0;
  float most[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};  // in the first warpgroup, sums of 2^(S - M) over this thread's entries
  load_query(p, b, shared_memory, shared);
  const auto release = [&](int stage) {
    if (lane == 0) ptx::mbarrier_arrive(shared + Wide::kEmpty + stage * 8);
  };

  for (int chunk = 0; chunk < b.chunks; ++chunk) {
    const int stage = chunk % 2;
    const uint32_t tile = shared + Wide::kTile + stage * Wide::kTileBytes;
    uint32_t fragment[4][4];  // P, for four steps of 16 entries
    float shift[2];
    if constexpr (kGroup == 0) {
      ptx::mbarrier_wait(shared + Wide::kFull + stage * 8, chunk / 2 % 2);
      float s[32];
      const uint64_t query = ptx::swizzled_matrix(shared + Wide::kQ);
      const uint64_t entries = ptx::swizzled_matrix(tile);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step) {
        const int at = (step / 4 * Wide::kTileBlock + step % 4 * 32) / 16;
        ptx::Wgmma<64>::product<false>(s, query + at, entries + at, step > 0);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();

      float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t none =
            *reinterpret_cast<const uint16_t*>(shared_memory + Wide::kMask + stage * kEntries + 8 * j + 2 * t);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool masked = (none & (i % 2 == 0 ? 0xff : 0xff00)) != 0;
          float& score = s[4 * j + i];
          score = masked ? -INFINITY : score * p.scale_log2;
          if (!masked) largest[i / 2] = fmaxf(largest[i / 2], for_largest(score));
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffff, largest[half], 1));
        largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffff, largest[half], 2));
        const auto [base, factor] = raise(most[half], largest[half]);
        shift[half] = factor;
        total[half] *= factor;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float low = ptx::exp2_approx(s[4 * j + 2 * half] - base);
          const float high = ptx::exp2_approx(s[4 * j + 2 * half + 1] - base);
          total[half] += low + high;
          fragment[j / 2][j % 2 * 2 + half] = ptx::pack_bf16(low, high);
        }
      }
      if (chunk > 0) ptx::named_barrier(kWeightsRead, 256);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          ptx::store_shared(weights + half * 8 * 128 + (j ^ (head % 8)) * 16, fragment[j / 2][j % 2 * 2 + half]);
        }
      }
      if (t == 0) {
        shifts[head] = shift[0];
        shifts[head + 8] = shift[1];
      }
      ptx::named_arrive(kWeightsReady, 256);
    } else {
      ptx::mbarrier_wait(shared + Wide::kFull + stage * 8, chunk / 2 % 2);
      ptx::named_barrier(kWeightsReady, 256);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          fragment[j / 2][j % 2 * 2 + half] = ptx::load_shared(weights + half * 8 * 128 + (j ^ (head % 8)) * 16);
        }
      }
      shift[0] = shifts[head];
      shift[1] = shifts[head + 8];
      if (chunk + 1 < b.chunks) ptx::named_arrive(kWeightsRead, 256);
    }
    if (chunk > 0 && (shift[0] != 1 || shift[1] != 1)) {
#pragma unroll
      for (int i = 0; i < 128; ++i) o[i] *= shift[i / 2 % 2];
    }
    ptx::wgmma_fence();
    const uint64_t values = ptx::swizzled_matrices(tile + kGroup * 4 * Wide::kTileBlock, Wide::kTileBlock);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::wgmma_256(o, fragment[step], values + step * 2048 / 16, chunk > 0 || step > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    release(stage);
  }

  // M and the sums of P to all blocks, sums of outputs to their owners.
  all_have_read<kSplit>();
  const int splits = kSplit ? p.splits : 1;
  const int items_stride = kSplit ? Items<kHeads>::stride(p) : Items<kHeads>::kCount;
  if constexpr (kGroup == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(0xffffffff, total[half], 1);
      total[half] += __shfl_xor_sync(0xffffffff, total[half], 2);
      const uint32_t at = shared + Wide::kParts + (b.rank * kHeads + head + half * 8) * 8;
      for (int to = t; to < splits; to += 4) {
        if constexpr (kSplit) {
          ptx::store_async(ptx::in_block(at, to), most[half], total[half], ptx::in_block(shared + Wide::kSums, to));
        } else {
          ptx::store_shared(at, make_float2(most[half], total[half]));
        }
      }
    }
  }
#pragma unroll
  for (int q = 0; q < 8; ++q) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int item = (kGroup * 8 + q) * 8 + warp * 2 + half;
      const int owner = kSplit ? Items<kHeads>::owner(p, item) : 0;
      const int slot = kSplit ? b.rank * items_stride + item - Items<kHeads>::first(p, owner) : item;
      uint32_t to = shared + Wide::kReceived + slot * kItemBytes + g * 128 + t * 8;
      uint32_t barrier = shared + Wide::kSums;
      if constexpr (kSplit) {
        to = ptx::in_block(to, owner);
        barrier = ptx::in_block(barrier, owner);
      }
#pragma unroll
      for (int octet = 0; octet < 4; ++octet) {
        const float x = o[(q * 4 + octet) * 4 + 2 * half], y = o[(q * 4 + octet) * 4 + 2 * half + 1];
        if constexpr (kSplit) {
          ptx::store_async(to + octet_place(g, octet) * 32, x, y, barrier);
        } else {
          ptx::store_shared(to + octet_place(g, octet) * 32, make_float2(x, y));
        }
      }
    }
  }
}

template <int W, int X, bool kSplit>
__global__ void __launch_bounds__(kThreads, 1) wide_attention(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(1024) uint8_t shared_memory[];
  const uint32_t shared = ptx::shared_address(shared_memory);
  const auto floats = [&](int at) { return reinterpret_cast<float*>(shared_memory + at); };
  const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  const int splits = kSplit ? p.splits : 1;
  Block b;
  b.rank = kSplit ? ptx::block_rank() : 0;
  const int work = kSplit ? ptx::cluster_index() : blockIdx.x;
  b.row = work >> p.groups_log2;
  b.first_head = (work - (b.row << p.groups_log2)) * kHeads;
  const int first_item = kSplit ? Items<kHeads>::first(p, b.rank) : 0;
  const int items_end = kSplit ? Items<kHeads>::first(p, b.rank + 1) : Items<kHeads>::kCount;
  const int items_stride = kSplit ? Items<kHeads>::stride(p) : Items<kHeads>::kCount;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      ptx::mbarrier_init(shared + Wide::kFull + stage * 8, 128);
      ptx::mbarrier_init(shared + Wide::kEmpty + stage * 8, 8);
    }
    ptx::mbarrier_init(shared + Wide::kSums, 1);
    ptx::mbarrier_expect(shared + Wide::kSums, splits * ((items_end - first_item) * kItemBytes + kHeads * 8));
  }
  ptx::wait_for_previous_kernel();
  b.share = Share::of<kSplit>(p, p.window.length(b.row), p.extra.length(b.row), b.rank);
  b.chunks = (b.share.end - b.share.begin + kUnits - 1) / kUnits;
  __syncthreads();

  if (group == 2) {
    ptx::give_registers<kRegisters[2]>();
    if (b.chunks > 0) produce<W, X>(p, b, shared_memory, shared);
    all_have_read<kSplit>();
  } else if (group == 1) {
    ptx::take_registers<kRegisters[1]>();
    consume<1, kSplit>(p, b, shared_memory, shared);
  } else {
    ptx::take_registers<kRegisters[0]>();
    consume<0, kSplit>(p, b, shared_memory, shared);
  }
  ptx::let_next_kernel_start();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if constexpr (kSplit) {
    ptx::mbarrier_wait(shared + Wide::kSums, 0);
  } else {
    __syncthreads();
  }

  // An item a warp: 8 dims of a head a lane.
  for (int item = first_item + warp; item < items_end; item += kWarps) {
    const int head = item % 8 * 8 + lane % 8;
    const int octet = lane / 8;
    const float2* parts = reinterpret_cast<const float2*>(shared_memory + Wide::kParts) + head;
    float largest = -INFINITY;
    for (int part = 0; part < splits; ++part) largest = fmaxf(largest, parts[part * kHeads].x);
    float value[8] = {};
    float sum = 0;
    const float4* source =
        reinterpret_cast<const float4*>(floats(Wide::kReceived) + (item - first_item) * (kItemBytes / 4) +
                                        lane % 8 * 32 + octet_place(lane % 8, octet) * 8);
    for (int part = 0; part < splits; ++part) {
      const float2 of_part = parts[part * kHeads];
      const float factor = largest == -INFINITY ? 0.0f : ptx::exp2_approx(of_part.x - largest);
      sum += of_part.y * factor;
      const float4 low = source[0], high = source[1];
      const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] += v[i] * factor;
      source += items_stride * (kItemBytes / 16);
    }
    finish_octet(p, b.row, b.first_head + head, item / 8 * 32 + octet * 8, value, largest, sum,
                 floats(Wide::kSinks)[head], floats(Wide::kAngles));
  }
}

}  // namespace

cudaError_t launch_wide(const attention::ListFormats& formats, const AttentionParams& params, cudaStream_t stream) {
  return with_formats(formats, [&]<int W, int X>() {
    if (params.splits > 1) {
      return launch_hopper(wide_attention<W, X, true>, params, kHeads, kThreads, Wide::kBytes, stream);
    }
    return launch_hopper(wide_attention<W, X, false>, params, kHeads, kThreads, Wide::kBytes, stream);
  });
}

}  // namespace onelane::cuda
