// Sparse-MLA decode on Hopper: one cluster of blocks a row and group of heads, one launch.
//
//   grid: rows x groups of H heads x splits; the `splits` blocks of a row and group are a cluster
//   block: 4 warpgroups; walks its share of the row's entries in chunks of up to 8 * kUnits. Warpgroup w owns dims
//   [128 w, 128 w + 128) of everything that has dims, so that only scores go from one to another
//
//   records -> registers      a chunk ahead, all loads in flight at once
//   registers -> tile         decoded to bf16 once, for both products
//   S^T[entries, H] = KV Q^T  wgmma, over the warpgroup's dims; the four partial scores are added through shared memory
//   P = 2^(S - M)             M: the largest score so far, rounded up to an integer; a warp takes a head
//   O^T[128, H] += KV^T P     wgmma, on the warpgroup's part of the tile (its dims are the rows)
//   merge                     a block owns an equal share of the outputs and receives the partial sums for it from all
//                             blocks through distributed shared memory; sink, inverse RoPE and cast come after that
//
// Heads are the narrow side of both products, so that 8, 16 or 32 of them waste nothing and a row's heads can go to
// several clusters: a block then sends and merges less, for which it decodes as much as before.
//
// M is an integer, so that moving from one M to another is a shift of exponents. The bits of P, once rounded to bf16,
// do not depend on M, hence not on splits or chunks: those change only the order of float sums.
//
// A unit is 8 entries of one list. A row's units, first those of the window, are dealt out evenly among the blocks at
// run time, whatever its lengths are.
#include "cuda/attention/cluster.h"
#include "cuda/attention/merge.h"
#include "cuda/attention/softmax.h"
#include "cuda/ptx/cluster.h"
#include "cuda/ptx/wgmma.h"

namespace onelane::cuda {
namespace {

constexpr int kGroups = 4;  // of 4 warps
constexpr int kThreads = 128 * kGroups;
constexpr int kWarps = kThreads / 32;
constexpr int larger(int a, int b) { return a > b ? a : b; }

// Shared memory of a block, in bytes from its start.
template <int H, bool kSplit>
struct Layout {
  static constexpr int kUnits = H == 32 ? 14 : kFewUnits;  // what fits
  static constexpr int kEntries = kUnits * 8;
  static constexpr int kItems = kDim / 32 * H / 8;

  // bf16 [kBlocks][entries][64], [kBlocks][H][64] and [kEntries / 64][H][64], in rows of 128 swizzled bytes.
  static constexpr int kTile = 0;
  static constexpr int kTileBlock = kUnits * 1024;
  static constexpr int kQ = kTile + kBlocks * kTileBlock;
  static constexpr int kP = kQ + kBlocks * H * 128;
  // float [kGroups][H][kScoreStride], see score_place; later, split, the sums received: [splits][items] of kItemBytes.
  static constexpr int kScores = kP + (kUnits + 7) / 8 * H * 128;
  static constexpr int kScoreStride = (kEntries + 31) / 32 * 32;
  static constexpr int kScoreBytes = kGroups * H * kScoreStride * 4;
  static constexpr int kReceivedBytes = attention::most_received(kItems) * kItemBytes;
  static constexpr int kReceived = kSplit ? kScores : kTile;  // unsplit they take the place of tile and query
  static constexpr int kPlaces = kScores + (kSplit ? larger(kScoreBytes, kReceivedBytes) : kScoreBytes);
  static constexpr int kMask = kPlaces + kEntries * 16;       // uint8 [2][kEntries]: 1 where there is no entry
  static constexpr int kParts = kMask + 2 * kEntries;         // float2 [splits][H]: M and the sum of 2^(S - M)
  static constexpr int kShift = kParts + kMaxSplits * H * 8;  // float [H]: from the last M to this one
  static constexpr int kSinks = kShift + H * 4;               // float [H]
  static constexpr int kAngles = kSinks + H * 4;              // float [kRope]
  static constexpr int kBarrier = kAngles + kRope * 4;
  static constexpr int kBytes = kBarrier + 8;

  static_assert(kQ % 1024 == 0 && kP % 1024 == 0 && kScores % 1024 == 0, "swizzle atoms");
  static_assert(kItems * kItemBytes <= kP, "a block's own sums take the place of tile and query");
  static_assert(kBytes <= 232448, "what a block of sm_90 may have");
  static_assert(kBytes <= attention::block_shared_bytes(ONELANE_PATH_CLUSTER, H, kSplit ? 2 : 1), "what the plan says");
};

template <int W, int X, int H, bool kSplit>
__global__ void __launch_bounds__(kThreads, 1) cluster_attention(const __grid_constant__ AttentionParams p) {
  using At = Layout<H, kSplit>;
  constexpr int kPairs = H / 8;                // of a thread's columns in a matrix: 8 j + 2 t, + 1
  constexpr int kMine = (At::kUnits + 3) / 4;  // units of a chunk of which a warp decodes its warpgroup's dims
  constexpr int kRowTiles = (At::kUnits + 7) / 8;
  constexpr int kWarpHeads = (H + kWarps - 1) / kWarps;
  constexpr bool kOneChunk = H == 32;  // what does not fit is for wide.cu
  ONELANE_DYNAMIC_SHARED(uint8_t, shared_memory);
  const uint32_t shared = ptx::shared_address(shared_memory);
  const auto floats = [&](int at) { return reinterpret_cast<float*>(shared_memory + at); };

  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same for all lanes, and known to be
  const int lane = threadIdx.x % 32;
  const int t = lane % 4;
  const int group = warp / 4;
  const int first_unit = warp % 4;  // of a chunk, of those this warp decodes: every fourth
  const UnitLane mine(lane);
  const uint8_t* nothing = no_record();
  const int splits = kSplit ? p.splits : 1;
  const int rank = kSplit ? ptx::block_rank() : 0;
  const int work = kSplit ? ptx::cluster_index() : blockIdx.x;
  const int row = work >> p.groups_log2;
  const int first_head = (work - (row << p.groups_log2)) * H;
  const int first_item = kSplit ? Items<H>::first(p, rank) : 0;
  const int items_end = kSplit ? Items<H>::first(p, rank + 1) : Items<H>::kCount;
  const int items_stride = kSplit ? Items<H>::stride(p) : Items<H>::kCount;

  if (kSplit && threadIdx.x == 0) {
    ptx::mbarrier_init(shared + At::kBarrier, 1);
    ptx::mbarrier_expect(shared + At::kBarrier, splits * ((items_end - first_item) * kItemBytes + H * 8));
  }
  ptx::wait_for_previous_kernel();

  // Lengths, indices and records are three loads in a chain. Full lists are the rule: indices are asked for as if, and
  // again where they are not full.
  const int window_length = p.window.length(row);
  const int extra_length = p.extra.length(row);
  Share share = Share::of<kSplit>(p, p.window.width, p.extra.width, rank);
  const int32_t* window_indices = p.window.indices + row * p.window.index_stride;
  const int32_t* extra_indices = p.extra.indices + row * p.extra.index_stride;
  const int e = threadIdx.x;  // the entry of a chunk whose place this thread looks up
  int index = -1;
  const auto load_index = [&](int first) {
    if (e < At::kEntries) index = share.index(window_indices, extra_indices, first + e / 8, e % 8);
  };
  load_index(share.begin);

  // Needed at the very end; asked for now, and put aside when the first records have come. Angles take two loads.
  float aside = -INFINITY;
  if (threadIdx.x < H) aside = load_sink(p, first_head + threadIdx.x);
  const int angle = static_cast<int>(threadIdx.x) - (kThreads - kRope);
  const int position = angle < 0 || p.positions == nullptr ? 0 : __ldcg(p.positions + row);
  const auto put_aside = [&] {
    if (threadIdx.x < H) floats(At::kSinks)[threadIdx.x] = aside;
    if (angle >= 0) floats(At::kAngles)[angle] = aside;
  };

  // The warpgroup's dims of Q.
  {
    const uint16_t* q = p.q + (static_cast<int64_t>(row) * p.heads + first_head) * kDim + group * 128;
    const int eighth = threadIdx.x % 8, from = threadIdx.x / 8 % 16;
#pragma unroll
    for (int i = 0; i < H / 8; ++i) {
      const int line = i * 16 + from;  // of heads, then blocks
      const int head = line % H, half = line / H;
      ptx::copy_async(shared + At::kQ + ((2 * group + half) * H + head) * 128 + (eighth ^ (head % 8)) * 16,
                      q + head * kDim + half * 64 + eighth * 8);
    }
  }

  if (window_length != share.window || extra_length != share.extra) {
    share = Share::of<kSplit>(p, window_length, extra_length, rank);
    load_index(share.begin);
  }

  // Puts the place of entry e of the chunk that begins at unit `first` where all find it; its mask into copy `copy`.
  const auto put_place = [&](int first, int copy) {
    if (e >= At::kEntries) return;
    const RecordPlace place = share.place<W, X>(p, first + e / 8, index, nothing);
    reinterpret_cast<longlong2*>(shared_memory + At::kPlaces)[e] =
        make_longlong2(reinterpret_cast<int64_t>(place.data), place.to_scales);
    shared_memory[At::kMask + copy * At::kEntries + e] = place.none;
  };
  const auto places_of = [&](int unit, RecordPlace(&place)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const longlong2 at =
          reinterpret_cast<const longlong2*>(shared_memory + At::kPlaces)[unit * 8 + mine.entry + 4 * i];
      place[i] = {reinterpret_cast<const uint8_t*>(at.x), static_cast<int32_t>(at.y), false};
    }
  };
  // A warp's units: their parts of this warpgroup's dims. What is bf16 is copied.
  GroupPart part_of[kMine];
  uint32_t scale_of[kMine][2];
  const uint32_t tile = shared + At::kTile + 2 * group * At::kTileBlock + first_unit * 1024;
  const bool copies = is_plain<W>(2 * group + 1);
  static_assert(W == X || (W == ONELANE_KV_V41_FP8 && X == ONELANE_KV_V41_FP4));
  // Units of the chunk that begins at `first`, and one more if they are odd: it has no entries.
  const auto padded_units = [&](int first) { return min(At::kUnits, (share.end - first + 1) / 2 * 2); };
  const auto load_chunk = [&](int first) {
    if (W == ONELANE_KV_BF16) return;
    const int units = padded_units(first);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int unit = first_unit + 4 * i;
      if (unit >= units) break;
      RecordPlace place[2];
      places_of(unit, place);
      if constexpr (W != ONELANE_KV_BF16) {
        if (W != X && share.is_extra(first + unit)) {
          load_group<X>(place, group, mine, part_of[i]);
          load_scales<X>(place, group, mine, scale_of[i]);
        } else {
          load_group<W>(place, group, mine, part_of[i]);
          load_scales<W>(place, group, mine, scale_of[i]);
        }
      }
    }
  };
  const auto copy_plain = [&](int first) {
    const int units = padded_units(first);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int unit = first_unit + 4 * i;
      if (unit >= units) break;
      RecordPlace place[2];
      places_of(unit, place);
#pragma unroll
      for (int half = W == ONELANE_KV_BF16 ? 0 : 1; half < 2; ++half) {
        const uint32_t at = tile + i * 4096 + half * At::kTileBlock + mine.place(4 * mine.block + mine.t);
        const int offset = (W == ONELANE_KV_BF16 ? (2 * group + half) * 128 : 448) + 64 * mine.block + 16 * mine.t;
        ptx::copy_async(at, place[0].data + offset);
        ptx::copy_async(of_fourth(at), place[1].data + offset);
      }
    }
  };

  put_place(share.begin, 0);
  __syncthreads();
  if (copies) copy_plain(share.begin);
  ptx::copies_commit();
  load_chunk(share.begin);
  if (angle >= 0 && p.positions != nullptr) {
    aside = __ldcg(p.angles + static_cast<int64_t>(min(max(position, 0), p.angles_count - 1)) * kRope + angle);
  }

  constexpr int kTurns = (At::kEntries / 4 + 31) / 32;  // of a warp's lanes through a chunk, a quad of entries each
  float o[2][H / 2];                    // of blocks 2 group and 2 group + 1: the first product writes them
  float most[kWarpHeads];               // M of the warp's heads
  float2 total[kWarpHeads];             // see add_pairs
  float2 of_pairs[kWarpHeads][kTurns];  // 2^(S - M) of the lane's entries in a chunk, two by two
#pragma unroll
  for (int k = 0; k < kWarpHeads; ++k) {
    most[k] = -INFINITY;
    total[k] = make_float2(0, 0);
  }
  // Adds a chunk's 2^(S - M) to the totals, in the order that suits the threads of wide.cu, so that the bits are the
  // same: 64 entries after the others; of these, entries 8 j + 2 t and + 1 of all j, two by two. The four t are added
  // at the very end. Lane 2 j + u of 16 has t = 2 u and 2 u + 1.
  const auto add_pairs = [&] {
#pragma unroll
    for (int k = 0; k < kWarpHeads; ++k) {
      if (H < kWarps && warp >= H) break;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        float2 sum = of_pairs[k][turn];
#pragma unroll
        for (int distance = 2; distance < 16; distance *= 2) {
          sum.x += __shfl_xor_sync(0xffffffff, sum.x, distance);
          sum.y += __shfl_xor_sync(0xffffffff, sum.y, distance);
        }
        const float2 other =
            make_float2(__shfl_xor_sync(0xffffffff, sum.x, 16), __shfl_xor_sync(0xffffffff, sum.y, 16));
        const bool second = lane >= 16;
        total[k].x = (total[k].x + (second ? other.x : sum.x)) + (second ? sum.x : other.x);
        total[k].y = (total[k].y + (second ? other.y : sum.y)) + (second ? sum.y : other.y);
      }
    }
  };
  if (share.begin >= share.end) {
    put_aside();
    __syncthreads();
    if constexpr (kSplit) ptx::cluster_arrive();
  }

  int copy = 0;
  for (int first = share.begin; first < share.end; first += At::kUnits, copy ^= 1) {
    const int units = min(At::kUnits, share.end - first);
    const int steps = (units + 1) / 2;  // of 16 entries
    const int padded = 2 * steps;
    const int next = first + At::kUnits;
    const bool more = !kOneChunk && next < share.end;
    if (!kOneChunk && copies && first > share.begin) {
      copy_plain(first);
      ptx::copies_commit();
    }
    if (more) load_index(next);

    // To the tile, 64 entries at a time, and their partial scores, which are computed while the next are decoded. Units
    // past the last, up to an even number, become something finite.
    float s[kRowTiles][H / 2];
#pragma unroll
    for (int part = 0; part < kRowTiles; ++part) {
      if (part * 8 >= units) break;
      const auto decode = [&]<bool kTwoSteps>() {
#pragma unroll
        for (int i = part * 2; i < part * 2 + 2 && i < kMine; ++i) {
          const int unit = first + first_unit + 4 * i;
          if (unit >= first + padded) break;
          if (W != X && share.is_extra(unit)) {
            store_group<X, kTwoSteps>(part_of[i], scale_of[i], group, mine, tile + i * 4096, At::kTileBlock);
          } else {
            store_group<W, kTwoSteps>(part_of[i], scale_of[i], group, mine, tile + i * 4096, At::kTileBlock);
          }
        }
      };
      if constexpr (W != ONELANE_KV_BF16) {
        bool two_steps = false;
#pragma unroll
        for (int i = part * 2; i < part * 2 + 2 && i < kMine; ++i) {
          const int unit = first + first_unit + 4 * i;
          if (unit >= first + padded) break;
          const int largest = static_cast<int>(max(scale_of[i][0], scale_of[i][1]));
          two_steps |= largest > (W != X && share.is_extra(unit) ? kLargestStep<X> : kLargestStep<W>);
        }
        if (__any_sync(0xffffffff, two_steps)) {
          decode.template operator()<true>();
        } else {
          decode.template operator()<false>();
        }
      }
      if (part == 0) ptx::copies_wait();
      ptx::fence_async_proxy();
      ptx::named_barrier(1 + group, 128);
      ptx::wgmma_fence();
      const uint64_t entries = ptx::swizzled_matrix(shared + At::kTile + 2 * group * At::kTileBlock + part * 8192);
      const uint64_t query = ptx::swizzled_matrix(shared + At::kQ + 2 * group * H * 128);
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        ptx::Wgmma<H>::template product<false>(s[part], entries + (step / 4 * At::kTileBlock + step % 4 * 32) / 16,
                                               query + (step / 4 * H * 128 + step % 4 * 32) / 16, step > 0);
      }
      ptx::wgmma_commit();
    }
    if (first == share.begin) put_aside();
    ptx::wgmma_wait<0>();
    {
      // score_place(), with what is known at compile time taken out.
      const int entry = warp % 4 * 16;
      float* to = floats(At::kScores) + (group * H + 2 * t) * At::kScoreStride + lane / 4;
      float* at[2] = {to + (entry ^ (t * 8)), to + ((entry + 8) ^ (t * 8))};
#pragma unroll
      for (int part = 0; part < kRowTiles; ++part) {
        if (part * 8 >= units || (At::kUnits % 8 != 0 && part * 64 + entry >= At::kScoreStride)) break;
#pragma unroll
        for (int i = 0; i < H / 2; ++i) {
          at[i / 2 % 2][(i / 4 * 8 + i % 2) * At::kScoreStride + part * 64] = s[part][i];
        }
      }
    }
    __syncthreads();
    if (more) put_place(next, copy ^ 1);

    // P of the warp's heads, a quad of entries a lane and turn.
#pragma unroll
    for (int k = 0; k < kWarpHeads; ++k) {
      const int head = warp + k * kWarps;
      if (H < kWarps && head >= H) break;
      float4 x[kTurns];
      float largest = -INFINITY;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int entry = (turn * 32 + lane) * 4;
        x[turn] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (entry >= steps * 16) continue;
        const uint32_t none =
            *reinterpret_cast<const uint32_t*>(shared_memory + At::kMask + copy * At::kEntries + entry);
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int from = 0; from < kGroups; ++from) {
          const float4 part = *reinterpret_cast<const float4*>(
              floats(At::kScores) + (from * H + head) * At::kScoreStride + score_place(head, entry));
          sum.x += part.x;
          sum.y += part.y;
          sum.z += part.z;
          sum.w += part.w;
        }
        const auto score = [&](float value, uint32_t masked) {
          if (masked != 0) return -INFINITY;
          value = score_of(value, p.scale_log2);
          largest = fmaxf(largest, for_largest(value));
          return value;
        };
        x[turn] = make_float4(score(sum.x, none & 0xff), score(sum.y, none & 0xff00), score(sum.z, none & 0xff0000),
                              score(sum.w, none & 0xff000000));
      }
      const auto [base, shift] = raise(most[k], warp_max(largest));
      if (lane == 0) floats(At::kShift)[head] = shift;
      total[k].x *= shift, total[k].y *= shift;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int entry = (turn * 32 + lane) * 4;
        of_pairs[k][turn] = make_float2(0, 0);
        if (entry >= steps * 16) continue;
        const float4 weights = make_float4(ptx::exp2_approx(x[turn].x - base), ptx::exp2_approx(x[turn].y - base),
                                           ptx::exp2_approx(x[turn].z - base), ptx::exp2_approx(x[turn].w - base));
        of_pairs[k][turn] = make_float2(weights.x + weights.y, weights.z + weights.w);
        const uint32_t to = shared + At::kP + (entry / 64 * H + head) * 128 + ((entry % 64 / 8) ^ (head % 8)) * 16;
        ptx::store_shared(to + entry % 8 * 2,
                          make_uint2(ptx::pack_bf16(weights.x, weights.y), ptx::pack_bf16(weights.z, weights.w)));
      }
    }
    ptx::fence_async_proxy();
    __syncthreads();
    if (kSplit && !more) ptx::cluster_arrive();  // scores are read: their place may receive sums
    if (more) load_chunk(next);

    // Outputs.
    if (!kOneChunk && first > share.begin) {
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const float2 shift = *reinterpret_cast<const float2*>(floats(At::kShift) + 8 * j + 2 * t);
        if (shift.x == 1 && shift.y == 1) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          o[0][4 * j + i] *= i % 2 == 0 ? shift.x : shift.y;
          o[1][4 * j + i] *= i % 2 == 0 ? shift.x : shift.y;
        }
      }
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint64_t values = ptx::swizzled_matrix(shared + At::kTile + (2 * group + m) * At::kTileBlock);
      const uint64_t weights = ptx::swizzled_matrix(shared + At::kP);
#pragma unroll
      for (int step = 0; step < (At::kUnits + 1) / 2; ++step) {
        if (step >= steps) break;
        ptx::Wgmma<H>::template product<true>(o[m], values + step * 2048 / 16,
                                              weights + (step / 4 * H * 128 + step % 4 * 32) / 16,
                                              (!kOneChunk && first > share.begin) || step > 0);
      }
      ptx::wgmma_commit();
    }
    add_pairs();
    if (more) {
      ptx::wgmma_wait<0>();
      __syncthreads();  // the tile may be written again
    }
    if (kOneChunk) break;
  }
  ptx::let_next_kernel_start();

  // M and the sums of P to all blocks, sums of outputs to their owners.
  if constexpr (kSplit) {
    ptx::cluster_wait();
  } else {
    ptx::wgmma_wait<0>();
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < kWarpHeads; ++k) {
    const int head = warp + k * kWarps;
    if (H < kWarps && head >= H) break;
    float sum = total[k].x + total[k].y;
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    const uint32_t at = shared + At::kParts + (rank * H + head) * 8;
    if constexpr (kSplit) {
      if (lane < splits) {
        ptx::store_async(ptx::in_block(at, lane), make_float2(most[k], sum),
                         ptx::in_block(shared + At::kBarrier, lane));
      }
    } else if (lane == 0) {
      ptx::store_shared(at, make_float2(most[k], sum));
    }
  }
  const bool any = share.begin < share.end;
  // Sums of dims g and g + 8 of 16, of heads 2 t and 2 t + 1: 16 bytes at [g][t] of an item's half.
  const auto sums = [&](int m, int j) {
    return any ? make_float4(o[m][4 * j], o[m][4 * j + 1], o[m][4 * j + 2], o[m][4 * j + 3]) : make_float4(0, 0, 0, 0);
  };
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    if constexpr (kSplit) {
      if (m == 0) {
        ptx::wgmma_wait<1>();
      } else {
        ptx::wgmma_wait<0>();
      }
    }
    const int chunk = (2 * group + m) * 2 + warp % 4 / 2;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int item = chunk * kPairs + j;
      const int owner = kSplit ? Items<H>::owner(p, item) : 0;
      const int slot = kSplit ? rank * items_stride + item - Items<H>::first(p, owner) : item;
      const uint32_t to = shared + At::kReceived + slot * kItemBytes + warp % 2 * (kItemBytes / 2) + lane * 16;
      if constexpr (kSplit) {
        ptx::store_async(ptx::in_block(to, owner), sums(m, j), ptx::in_block(shared + At::kBarrier, owner));
      } else {
        ptx::store_shared(to, sums(m, j));
      }
    }
  }
  if constexpr (kSplit) {
    ptx::mbarrier_wait(shared + At::kBarrier, 0);
  } else {
    __syncthreads();
  }

  // An item a warp: 8 dims of a head a lane.
  for (int item = first_item + warp; item < items_end; item += kWarps) {
    const int chunk = item / kPairs;
    const int head = item % kPairs * 8 + lane % 8;
    const int octet = lane / 8;
    const int dim = chunk * 32 + octet * 8;
    const float2* parts = reinterpret_cast<const float2*>(shared_memory + At::kParts) + head;
    constexpr int kMost = kSplit ? kMaxSplits : 1;
    float2 of_part[kMost];
    float largest = -INFINITY;
#pragma unroll
    for (int part = 0; part < kMost; ++part) {
      of_part[part] = part < splits ? parts[part * H] : make_float2(-INFINITY, 0);
      largest = fmaxf(largest, of_part[part].x);
    }
    const bool empty = largest == -INFINITY;
    float value[8] = {};
    float sum = 0;
    // The second two octets read their dims in another order, i ^ 1, so that they meet the first in no bank.
    const int twist = octet / 2;
    const float* source = floats(At::kReceived) + (item - first_item) * (kItemBytes / 4) +
                          octet / 2 * (kItemBytes / 8) + lane % 8 / 2 * 4 + octet % 2 * 2 + lane % 2;
    const float* even = source + twist * 16;
    const float* odd = source + (twist ^ 1) * 16;
#pragma unroll
    for (int part = 0; part < kMost; ++part) {
      if (part % 4 == 0 && part >= splits) break;
      const bool there = part < splits;
      const float factor = empty ? 0.0f : ptx::exp2_approx(of_part[part].x - largest);  // 0 where it is not there
      sum += of_part[part].y * factor;
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        value[i] += (there ? even[i * 16] : 0.0f) * factor;
        value[i + 1] += (there ? odd[i * 16] : 0.0f) * factor;
      }
      even += items_stride * (kItemBytes / 4);
      odd += items_stride * (kItemBytes / 4);
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float first = value[i], second = value[i + 1];
      value[i] = twist == 0 ? first : second;
      value[i + 1] = twist == 0 ? second : first;
    }
    const float scale =
        inverse_denominator(p, row, first_head + head, largest, sum, floats(At::kSinks)[head], dim == 0);
#pragma unroll
    for (float& v : value) v *= scale;
    finish_octet(p, dim, output_place(p, row, first_head + head, dim), value, floats(At::kAngles));
  }
}

template <int W, int X, int H>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  if (params.splits > 1) {
    return launch_hopper(cluster_attention<W, X, H, true>, params, H, kThreads, Layout<H, true>::kBytes, stream);
  }
  return launch_hopper(cluster_attention<W, X, H, false>, params, H, kThreads, Layout<H, false>::kBytes, stream);
}

}  // namespace

cudaError_t launch_cluster(const attention::ListFormats& formats, int block_heads, const AttentionParams& params,
                           cudaStream_t stream) {
  return with_formats(formats, [&]<int W, int X>() {
    switch (block_heads) {
      case 8:
        return launch<W, X, 8>(params, stream);
      case 16:
        return launch<W, X, 16>(params, stream);
      case 32:
        return launch<W, X, 32>(params, stream);
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t count_cluster_places(int32_t (&places)[8]) {
  // All kernels here fill a multiprocessor; one stands for them.
  const auto kernel = cluster_attention<ONELANE_KV_V4, ONELANE_KV_V4, 16, true>;
  constexpr int kBytes = Layout<16, true>::kBytes;
  cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  for (int blocks = 1; blocks <= 8 && status == cudaSuccess; ++blocks) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kBytes;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(blocks);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = 1;
    status = cudaOccupancyMaxActiveClusters(&places[blocks - 1], kernel, &config);
  }
  return status;
}

}  // namespace onelane::cuda
