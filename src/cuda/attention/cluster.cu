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
#include "cuda/ptx/cluster.h"
#include "cuda/ptx/wgmma.h"

namespace onelane::cuda {
namespace {

constexpr int kGroups = 4;  // of 4 warps
constexpr int kThreads = 128 * kGroups;
constexpr int kWarps = kThreads / 32;
constexpr int kDim = ONELANE_ATTENTION_DIM;
constexpr int kRope = ONELANE_ATTENTION_ROPE_DIM;
constexpr int kBlocks = kDim / 64;  // of 64 dims: 128 bytes of bf16, two of them a warpgroup's
constexpr int kMaxSplits = 8;
constexpr int kItemBytes = 32 * 8 * 4;  // 32 dims of 8 heads as floats: what a warp merges at a time

constexpr int larger(int a, int b) { return a > b ? a : b; }

// Shared memory of a block, in bytes from its start.
template <int H, bool kSplit>
struct Layout {
  static constexpr int kUnits = H == 64 ? 8 : H == 32 ? (kSplit ? 12 : 14) : 20;  // what fits
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
  static constexpr int kReceivedBytes = (kItems + kMaxSplits) * kItemBytes;  // shares differ by one item
  static constexpr int kReceived = kSplit ? kScores : kTile;  // unsplit they take the place of tile and query
  static constexpr int kPlaces = kScores + (kSplit ? larger(kScoreBytes, kReceivedBytes) : kScoreBytes);
  static constexpr int kMask = kPlaces + 2 * kEntries * 8;    // uint8 [2][kEntries]: 1 where there is no entry
  static constexpr int kParts = kMask + 2 * kEntries;         // float2 [splits][H]: M and the sum of 2^(S - M)
  static constexpr int kShift = kParts + kMaxSplits * H * 8;  // float [H]: from the last M to this one
  static constexpr int kSinks = kShift + H * 4;               // float [H]
  static constexpr int kAngles = kSinks + H * 4;              // float [kRope]
  static constexpr int kBarrier = kAngles + kRope * 4;
  static constexpr int kBytes = kBarrier + 8;

  static_assert(kQ % 1024 == 0 && kP % 1024 == 0 && kScores % 1024 == 0, "swizzle atoms");
  static_assert(kSplit || kItems * kItemBytes <= kP, "the sums of an unsplit row");
  static_assert(kBytes <= 232448, "what a block of sm_90 may have");
};

// Where the score of an entry lies in a head's row, so that neither 8 entries by 4 pairs of heads nor 32 quads of
// entries meet in a bank.
__device__ __forceinline__ int score_place(int head, int entry) { return entry ^ (head / 2 % 4 * 8); }

// The outputs, as items of 32 dims by 8 heads, dealt out to the blocks of a cluster: item / (H / 8) is the chunk of
// dims.
template <int H>
struct Items {
  static constexpr int kCount = Layout<H, false>::kItems;
  static __device__ __forceinline__ int owner(int item, int splits) { return item * splits / kCount; }
  static __device__ __forceinline__ int first(int rank, int splits) { return (rank * kCount + splits - 1) / splits; }
};

// The units of a row and which of them are a block's.
struct Share {
  int window, extra;  // lengths
  int window_units;
  int begin, end;

  __device__ __forceinline__ Share(int window_length, int extra_length, int rank, int splits)
      : window(window_length), extra(extra_length), window_units((window_length + 7) / 8) {
    const int units = window_units + (extra_length + 7) / 8;
    begin = units * rank / splits;
    end = units * (rank + 1) / splits;
  }

  // The index of entry `e` of the chunk that begins at unit `first`; -1 past the end.
  __device__ __forceinline__ int index(const AttentionParams& p, int row, int first, int e) const {
    const int unit = first + e / 8;
    const bool from_extra = unit >= window_units;
    const EntryList& list = from_extra ? p.extra : p.window;
    const int slot = (unit - (from_extra ? window_units : 0)) * 8 + e % 8;
    if (unit >= end || slot >= (from_extra ? extra : window)) return -1;
    return __ldg(list.indices + row * list.index_stride + slot);
  }
};

template <int W, int X, int H, bool kSplit>
__global__ void __launch_bounds__(kThreads, 1) cluster_attention(const __grid_constant__ AttentionParams p) {
  using At = Layout<H, kSplit>;
  constexpr int kPairs = H / 8;          // of a thread's columns in a matrix: 8 j + 2 t, + 1
  constexpr int kMine = At::kUnits / 2;  // units of a chunk that a warp decodes
  constexpr int kRowTiles = (At::kUnits + 7) / 8;
  constexpr int kWarpHeads = (H + kWarps - 1) / kWarps;
  extern __shared__ __align__(1024) uint8_t shared_memory[];
  const uint32_t shared = ptx::shared_address(shared_memory);
  const auto floats = [&](int at) { return reinterpret_cast<float*>(shared_memory + at); };

  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int group = warp / 4;
  const int block = 2 * group + warp % 2;  // of dims, that this warp decodes, for units `parity`, + 2, ...
  const int parity = warp / 2 % 2;
  const int splits = kSplit ? p.splits : 1;
  const int rank = kSplit ? blockIdx.x % splits : 0;
  const int work = blockIdx.x / splits;
  const int row = work / (p.heads / H);
  const int first_head = work % (p.heads / H) * H;
  const int first_item = Items<H>::first(rank, splits);
  const int items_end = Items<H>::first(rank + 1, splits);

  if (kSplit && threadIdx.x == 0) {
    ptx::mbarrier_init(shared + At::kBarrier, 1);
    ptx::mbarrier_expect(shared + At::kBarrier, splits * ((items_end - first_item) * kItemBytes + H * 8));
  }
  ptx::wait_for_previous_kernel();

  // Lengths, indices and records are three loads in a chain. Full lists are the rule: indices are asked for as if, and
  // again where they are not full.
  const int window_length = p.window.length(row);
  const int extra_length = p.extra.length(row);
  Share share(p.window.width, p.extra.width, rank, splits);
  const int e = threadIdx.x;  // the entry of a chunk whose place this thread looks up
  int index = e < At::kEntries ? share.index(p, row, share.begin, e) : -1;

  // Needed at the very end; asked for now, and put aside when the first records have come. Angles take two loads.
  float aside = -INFINITY;
  if (threadIdx.x < H && p.sink != nullptr) aside = __ldg(p.sink + first_head + threadIdx.x);
  const int angle = static_cast<int>(threadIdx.x) - (kThreads - kRope);
  const int position = p.positions == nullptr ? 0 : __ldg(p.positions + row);
  const auto put_aside = [&] {
    if (threadIdx.x < H) floats(At::kSinks)[threadIdx.x] = aside;
    if (angle >= 0) floats(At::kAngles)[angle] = aside;
  };

  // The warpgroup's dims of Q.
  {
    const uint16_t* q = p.q + (static_cast<int64_t>(row) * p.heads + first_head) * kDim;
    for (int i = threadIdx.x % 128; i < 2 * H * 8; i += 128) {
      const int eighth = i % 8, head = i / 8 % H, at = 2 * group + i / (8 * H);
      ptx::copy_async(shared + At::kQ + (at * H + head) * 128 + (eighth ^ (head % 8)) * 16,
                      q + head * kDim + at * 64 + eighth * 8, 16);
    }
  }

  if (window_length != share.window || extra_length != share.extra) {
    share = Share(window_length, extra_length, rank, splits);
    index = e < At::kEntries ? share.index(p, row, share.begin, e) : -1;
  }

  // Looks up entry e of the chunk that begins at unit `first` and puts its place and mask into copy `copy`.
  const auto put_place = [&](int first, int copy) {
    if (e >= At::kEntries) return;
    const RecordPlace place =
        first + e / 8 >= share.window_units ? place_of<X>(p.extra, index) : place_of<W>(p.window, index);
    reinterpret_cast<RecordPlace*>(shared_memory + At::kPlaces)[copy * At::kEntries + e] = place;
    shared_memory[At::kMask + copy * At::kEntries + e] = place.data16 == kNoRecord;
  };
  const auto place_in = [&](int copy, int unit) {
    return reinterpret_cast<const RecordPlace*>(shared_memory + At::kPlaces)[copy * At::kEntries + unit * 8 + g];
  };
  // A warp's blocks are all plain or all to be decoded.
  const bool plain = is_plain<W>(block);
  static_assert(W == X || (W == ONELANE_KV_V41_FP8 && X == ONELANE_KV_V41_FP4));
  RawShare raw[kMine];
  const auto load_chunk = [&](int first, int copy) {
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int unit = parity + 2 * i;
      const bool from_extra = first + unit >= share.window_units;
      if (W != X && from_extra) {
        raw[i] = load_share<X>(p.extra, place_in(copy, unit), block, t);
      } else {
        raw[i] = load_share<W>(from_extra ? p.extra : p.window, place_in(copy, unit), block, t);
      }
    }
  };
  const uint32_t tile = shared + At::kTile + block * At::kTileBlock + g * 128;
  const auto copy_plain = [&](int first, int copy) {
    for (int unit = parity; unit < (share.end - first + 1) / 2 * 2 && unit < At::kUnits; unit += 2) {
      const EntryList& list = first + unit >= share.window_units ? p.extra : p.window;
      const RecordPlace place = place_in(copy, unit);
      const bool none = place.data16 == kNoRecord;
      const uint64_t at = uint64_t{place.data16} * 16 + (W == ONELANE_KV_BF16 ? block * 128 : 448) + t * 32;
      const uint8_t* from = list.pages + (none ? 0 : at);
      ptx::copy_async(tile + unit * 1024 + ((2 * t) ^ g) * 16, from, none ? 0 : 16);
      ptx::copy_async(tile + unit * 1024 + ((2 * t + 1) ^ g) * 16, from + (none ? 0 : 16), none ? 0 : 16);
    }
  };

  put_place(share.begin, 0);
  __syncthreads();
  if (plain) {
    copy_plain(share.begin, 0);
  } else {
    load_chunk(share.begin, 0);
  }
  if (angle >= 0 && p.positions != nullptr) {
    aside = __ldg(p.angles + static_cast<int64_t>(min(max(position, 0), p.angles_count - 1)) * kRope + angle);
  }

  float o[2][H / 2] = {};   // of blocks 2 group and 2 group + 1
  float most[kWarpHeads];   // M of the warp's heads
  float total[kWarpHeads];  // sums of 2^(S - M) over the lane's entries
#pragma unroll
  for (int k = 0; k < kWarpHeads; ++k) {
    most[k] = -INFINITY;
    total[k] = 0;
  }
  if (share.begin >= share.end) {
    put_aside();
    __syncthreads();
    if constexpr (kSplit) ptx::cluster_arrive();
  }

  int copy = 0;
  for (int first = share.begin; first < share.end; first += At::kUnits, copy ^= 1) {
    const int units = min(At::kUnits, share.end - first);
    const int steps = (units + 1) / 2;  // of 16 entries
    const int next = first + At::kUnits;
    const bool more = next < share.end;
    if (more && e < At::kEntries) index = share.index(p, row, next, e);

    // To the tile. Units past the last, up to an even number, become zeros.
    const auto decode_chunk = [&]<bool kTwoSteps>() {
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const int unit = parity + 2 * i;
        if (unit >= 2 * steps) break;
        uint32_t v[8];
        if (X == ONELANE_KV_V41_FP4 && first + unit >= share.window_units) {
          decode_e2m1(raw[i], v);
        } else {
          decode_e4m3<kTwoSteps>(raw[i], v);
        }
        ptx::store_shared(tile + unit * 1024 + ((2 * t) ^ g) * 16, make_uint4(v[0], v[1], v[2], v[3]));
        ptx::store_shared(tile + unit * 1024 + ((2 * t + 1) ^ g) * 16, make_uint4(v[4], v[5], v[6], v[7]));
      }
    };
    if (plain) {
      if (first > share.begin) copy_plain(first, copy);
    } else {
      bool two_steps = false;
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const bool is_e2m1 = X == ONELANE_KV_V41_FP4 && first + parity + 2 * i >= share.window_units;
        two_steps |= !is_e2m1 && raw[i].scale > kLargestOneStep;
      }
      if (__any_sync(0xffffffff, two_steps)) {
        decode_chunk.template operator()<true>();
      } else {
        decode_chunk.template operator()<false>();
      }
    }
    ptx::copies_wait();
    ptx::fence_async_proxy();
    ptx::named_barrier(1 + group, 128);

    // Partial scores.
    {
      float s[kRowTiles][H / 2];
      ptx::wgmma_fence();
#pragma unroll
      for (int tiles = 0; tiles < kRowTiles; ++tiles) {
        if (tiles * 8 >= units) break;
#pragma unroll
        for (int step = 0; step < 8; ++step) {
          const int at = 2 * group + step / 4;
          ptx::Wgmma<H>::k_major(
              s[tiles], ptx::swizzled_matrix(shared + At::kTile + at * At::kTileBlock + tiles * 8192 + step % 4 * 32),
              ptx::swizzled_matrix(shared + At::kQ + at * H * 128 + step % 4 * 32), step > 0);
        }
      }
      ptx::wgmma_commit();
      if (more) put_place(next, copy ^ 1);
      if (first == share.begin) put_aside();
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int tiles = 0; tiles < kRowTiles; ++tiles) {
        if (tiles * 8 >= units) break;
#pragma unroll
        for (int i = 0; i < H / 2; ++i) {
          const int head = i / 4 * 8 + 2 * t + i % 2;
          const int entry = tiles * 64 + warp % 4 * 16 + i / 2 % 2 * 8 + g;
          if (At::kUnits % 8 != 0 && entry >= At::kScoreStride) continue;
          floats(At::kScores)[(group * H + head) * At::kScoreStride + score_place(head, entry)] = s[tiles][i];
        }
      }
    }
    __syncthreads();
    if (more && !plain) load_chunk(next, copy ^ 1);

    // P of the warp's heads, a quad of entries a lane and turn.
    constexpr int kTurns = (At::kEntries / 4 + 31) / 32;
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
          value *= p.scale_log2;
          largest = fmaxf(largest, fmaxf(value, -1e30f));  // a NaN counts as very small here and stays in P
          return value;
        };
        x[turn] = make_float4(score(sum.x, none & 0xff), score(sum.y, none & 0xff00), score(sum.z, none & 0xff0000),
                              score(sum.w, none & 0xff000000));
      }
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, distance));
      }
      const float now = fmaxf(most[k], ceilf(largest));
      const float base = now == -INFINITY ? 0.0f : now;
      const float shift = now == most[k] ? 1.0f : ptx::exp2_approx(most[k] - now);
      if (lane == 0) floats(At::kShift)[head] = shift;
      most[k] = now;
      total[k] *= shift;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int entry = (turn * 32 + lane) * 4;
        if (entry >= steps * 16) continue;
        const float4 weights = make_float4(ptx::exp2_approx(x[turn].x - base), ptx::exp2_approx(x[turn].y - base),
                                           ptx::exp2_approx(x[turn].z - base), ptx::exp2_approx(x[turn].w - base));
        total[k] += (weights.x + weights.y) + (weights.z + weights.w);
        const uint32_t to = shared + At::kP + (entry / 64 * H + head) * 128 + ((entry % 64 / 8) ^ (head % 8)) * 16;
        ptx::store_shared(to + entry % 8 * 2,
                          make_uint2(ptx::pack_bf16(weights.x, weights.y), ptx::pack_bf16(weights.z, weights.w)));
      }
    }
    ptx::fence_async_proxy();
    __syncthreads();
    if (kSplit && !more) ptx::cluster_arrive();  // scores are read: their place may receive sums

    // Outputs.
    if (first > share.begin) {
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
      for (int step = 0; step < steps; ++step) {
        ptx::Wgmma<H>::m_major(
            o[m], ptx::swizzled_matrix(shared + At::kTile + (2 * group + m) * At::kTileBlock + step * 2048),
            ptx::swizzled_matrix(shared + At::kP + step / 4 * H * 128 + step % 4 * 32),
            first > share.begin || step > 0);
      }
      ptx::wgmma_commit();
    }
    if (more) {
      ptx::wgmma_wait<0>();
      ptx::named_barrier(1 + group, 128);  // the tile may be written again
    }
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
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      total[k] += __shfl_xor_sync(0xffffffff, total[k], distance);
    }
    const uint32_t at = shared + At::kParts + (rank * H + head) * 8;
    if constexpr (kSplit) {
      if (lane < splits) {
        ptx::store_async(ptx::in_block(at, lane), most[k], total[k], ptx::in_block(shared + At::kBarrier, lane));
      }
    } else if (lane == 0) {
      ptx::store_shared(at, make_float2(most[k], total[k]));
    }
  }
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
    const int dim = warp % 2 * 16 + g;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int item = chunk * kPairs + j;
      const int owner = Items<H>::owner(item, splits);
      const int owner_first = Items<H>::first(owner, splits);
      const int slot = rank * (Items<H>::first(owner + 1, splits) - owner_first) + item - owner_first;
      uint32_t to = shared + At::kReceived + slot * kItemBytes + (dim * 8 + 2 * t) * 4;
      if constexpr (kSplit) {
        to = ptx::in_block(to, owner);
        const uint32_t barrier = ptx::in_block(shared + At::kBarrier, owner);
        ptx::store_async(to, o[m][4 * j], o[m][4 * j + 1], barrier);
        ptx::store_async(to + 8 * 8 * 4, o[m][4 * j + 2], o[m][4 * j + 3], barrier);
      } else {
        ptx::store_shared(to, make_float2(o[m][4 * j], o[m][4 * j + 1]));
        ptx::store_shared(to + 8 * 8 * 4, make_float2(o[m][4 * j + 2], o[m][4 * j + 3]));
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
    const float* source = floats(At::kReceived) + (item - first_item) * (kItemBytes / 4) + octet * 64 + lane % 8;
#pragma unroll
    for (int part = 0; part < kMost; ++part) {
      if (part >= splits) break;
      const float factor = empty ? 0.0f : ptx::exp2_approx(of_part[part].x - largest);
      sum += of_part[part].y * factor;
      // Each octet reads its dims in another order, so that they meet in no bank.
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] += source[(i ^ octet) * 8] * factor;
      source += (items_end - first_item) * (kItemBytes / 4);
    }
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
      const bool swap = (octet & bit) != 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if ((i & bit) != 0) continue;
        const float low = value[i], high = value[i | bit];
        value[i] = swap ? high : low;
        value[i | bit] = swap ? low : high;
      }
    }
    // A sink far above the scores makes the denominator infinite and the output zero, as it should be.
    const float sink = floats(At::kSinks)[head];
    const float inverse = 1.0f / (sum + ptx::exp2_approx(sink * 1.4426950408889634f - largest));
#pragma unroll
    for (float& v : value) v = empty ? 0.0f : v * inverse;
    const int64_t head_row = static_cast<int64_t>(row) * p.heads + first_head + head;
    if (p.lse != nullptr && dim == 0) p.lse[head_row] = empty ? INFINITY : (largest + log2f(sum)) * 0.6931471805599453f;
    if (p.positions != nullptr && dim >= kDim - kRope) {
      const float* angles = floats(At::kAngles) + (dim - (kDim - kRope)) / 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float cosine = angles[i], sine = angles[kRope / 2 + i];
        const float x = value[2 * i], y = value[2 * i + 1];
        value[2 * i] = x * cosine + y * sine;
        value[2 * i + 1] = y * cosine - x * sine;
      }
    }
    if (p.output == ONELANE_OUT_BF16) {
      *reinterpret_cast<uint4*>(p.out + (head_row * kDim + dim) * 2) =
          make_uint4(ptx::pack_bf16(value[0], value[1]), ptx::pack_bf16(value[2], value[3]),
                     ptx::pack_bf16(value[4], value[5]), ptx::pack_bf16(value[6], value[7]));
      continue;
    }
    float magnitude = 0;
#pragma unroll
    for (const float v : value) magnitude = fmaxf(magnitude, fabsf(v));
    magnitude = fmaxf(magnitude, __shfl_xor_sync(0xffffffff, magnitude, 8));
    magnitude = fmaxf(magnitude, __shfl_xor_sync(0xffffffff, magnitude, 16));
    // 2^ceil(log2(x)) by its bits.
    const uint32_t bits = __float_as_uint(__fdiv_rn(fmaxf(magnitude, 1e-4f), 448.0f));
    const uint32_t code = ((bits - 1) >> 23) + 1;
    const float to_codes = __uint_as_float((254 - code) << 23);
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = ptx::pack_e4m3(value[2 * i] * to_codes, value[2 * i + 1] * to_codes);
    const uint2 codes = make_uint2(packed[0] | packed[1] << 16, packed[2] | packed[3] << 16);
    if (p.output == ONELANE_OUT_FP8) {
      *reinterpret_cast<uint2*>(p.out + head_row * kDim + dim) = codes;
      if (octet == 0) p.out_scales[head_row * (kDim / 32) + chunk] = static_cast<uint8_t>(code);
    } else {
      const int64_t group_row = head_row / 8;
      *reinterpret_cast<uint2*>(p.out + ((group_row * (kDim / 32) + chunk) * 8 + head % 8) * 32 + octet * 8) = codes;
      if (octet == 0) {
        const int byte = chunk * 8 + head % 8;
        const int64_t padded_rows = (p.rows + 3) / 4 * 4;
        const int64_t word = (first_head + head) / 8 * 32 + byte / 4;
        p.out_scales[(word * padded_rows + row) * 4 + byte % 4] = static_cast<uint8_t>(code);
      }
    }
  }
}

template <int W, int X, int H, bool kSplit>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  using At = Layout<H, kSplit>;
  const auto kernel = cluster_attention<W, X, H, kSplit>;
  // Once a process; the attribute belongs to the kernel, not to the launch, and capture does not record it.
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, At::kBytes);
  if (allowed != cudaSuccess) return allowed;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(params.rows) * (params.heads / H) * params.splits);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = At::kBytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(params.splits);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = kSplit ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, params);
}

template <int W, int X, int H>
cudaError_t launch_heads(const AttentionParams& params, cudaStream_t stream) {
  if (params.splits > kMaxSplits) return cudaErrorInvalidValue;
  return params.splits > 1 ? launch<W, X, H, true>(params, stream) : launch<W, X, H, false>(params, stream);
}

template <int W, int X>
cudaError_t launch_formats(int block_heads, const AttentionParams& params, cudaStream_t stream) {
  switch (block_heads) {
    case 8:
      return launch_heads<W, X, 8>(params, stream);
    case 16:
      return launch_heads<W, X, 16>(params, stream);
    case 32:
      return launch_heads<W, X, 32>(params, stream);
    case 64:
      return params.splits == 1 ? launch<W, X, 64, false>(params, stream) : cudaErrorInvalidValue;
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_cluster(const onelane_attention_plan& plan, const AttentionParams& params, cudaStream_t stream) {
  const int window = plan.shape.window_format;
  const int extra = plan.shape.extra_width > 0 ? plan.shape.extra_format : window;
  const int formats[2] = {plan.shape.window_width > 0 || extra == ONELANE_KV_V41_FP4 ? window : extra, extra};
  const auto is = [&](int w, int x) { return formats[0] == w && formats[1] == x; };
  if (is(ONELANE_KV_V4, ONELANE_KV_V4)) {
    return launch_formats<ONELANE_KV_V4, ONELANE_KV_V4>(plan.block_heads, params, stream);
  }
  if (is(ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP4)) {
    return launch_formats<ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP4>(plan.block_heads, params, stream);
  }
  if (is(ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP8)) {
    return launch_formats<ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP8>(plan.block_heads, params, stream);
  }
  if (is(ONELANE_KV_BF16, ONELANE_KV_BF16)) {
    return launch_formats<ONELANE_KV_BF16, ONELANE_KV_BF16>(plan.block_heads, params, stream);
  }
  return cudaErrorNotSupported;
}

}  // namespace onelane::cuda
