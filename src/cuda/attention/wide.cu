// Sparse-MLA decode on Hopper for many entries a block: one cluster of blocks a row and 64 or 32 heads, one launch.
//
// With rows enough to fill the chip, what counts is how often an entry passes through shared memory. Here 64 heads
// share it: they are the 64 rows of both products, and a block decodes an entry once for all of them. (32 heads leave
// half of the rows empty: that is not where the time goes.)
//
//   block: 4 warpgroups. The last two bring chunks of 64 entries to bf16 in one of two tiles, a chunk ahead, each warp
//   a unit of 8 by itself; the first computes their scores and probabilities and the first 128 dims of the outputs, the
//   second the other 384:
//
//     S[64 heads, entries] = Q KV^T     wgmma, both from shared memory
//     P = 2^(S - M)                     as in cluster.cu; to the other warpgroup through shared memory
//     O[64 heads, dims] += P KV         wgmma, P from registers
//
//   The merge of a split row is that of cluster.cu; sums are received where tiles and query were.
#include "cuda/attention/cluster.h"
#include "cuda/attention/merge.h"
#include "cuda/attention/softmax.h"
#include "cuda/ptx/cluster.h"
#include "cuda/ptx/wgmma.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = 64;     // of the products: heads, and nothing in particular beyond them
constexpr int kEntries = 64;  // of a chunk
constexpr int kUnits = kEntries / 8;
constexpr int kProducers = 8;  // warps, one for each unit of a chunk
static_assert(kProducers == kUnits);

// Which of the kernels: whether a row has several parts, and whether sums are taken as smaller blocks take them
// (plan.chunks_as_few), for which a score is the sum of four.
enum class Kind { kWhole, kSplit, kAsFew };

// Registers of a thread: the first warpgroup, the second, and those that produce.
constexpr int kScoring = 128, kSecond = 240, kProducing = 72;
static_assert(kScoring + kSecond + 2 * kProducing <= 4 * 128, "what the block is launched with");

// Shared memory of a block, in bytes from its start.
template <int H>
struct Layout {
  // bf16 [2][kBlocks][entries][64], [kBlocks][rows][64] and [rows][entries], in rows of 128 swizzled bytes.
  static constexpr int kTile = 0;
  static constexpr int kTileBlock = kEntries * 128;
  static constexpr int kTileBytes = kBlocks * kTileBlock;
  static constexpr int kQ = kTile + 2 * kTileBytes;
  static constexpr int kP = kQ + kBlocks * kRows * 128;
  static constexpr int kRaw = kP + kRows * 128;  // [warps][3][lanes] of 16 bytes: see produce()
  static constexpr int kRawWarp = 3 * 32 * 16;
  static constexpr int kMask = kRaw + kProducers * kRawWarp;  // uint8 [2][entries]: 1 where there is no entry
  static constexpr int kParts = kMask + 2 * kEntries;         // float2 [splits][heads]: M and the sum of 2^(S - M)
  static constexpr int kShift = kParts + kMaxSplits * H * 8;  // float [rows]: from the last M to this one
  static constexpr int kSinks = kShift + kRows * 4;           // float [heads]
  static constexpr int kAngles = kSinks + H * 4;              // float [kRope]
  static constexpr int kFull = kAngles + kRope * 4;           // barriers: a tile is there, [2]
  static constexpr int kEmpty = kFull + 16;                   // a tile may be written, [2]
  static constexpr int kQueryReady = kEmpty + 16;
  static constexpr int kWeightsReady = kQueryReady + 8;  // P is there
  static constexpr int kWeightsRead = kWeightsReady + 8;
  static constexpr int kSums = kWeightsRead + 8;  // all sums have come
  static constexpr int kBytes = kSums + 8;
  static constexpr int kReceived = kTile;  // [splits][items] of kItemBytes: [8 heads], see sums_place
  static_assert(attention::most_received(Items<H>::kCount) * kItemBytes <= kP);
  static_assert(kBytes <= 232448, "what a block of sm_90 may have");
  static_assert(kBytes <= attention::block_shared_bytes(ONELANE_PATH_CLUSTER, H, 2), "what the plan says");
};

// Where a head's row of an item has the sums of dims 2 t, + 1 of the octets 2 pair and 2 pair + 1: 16 bytes, so that 8
// heads do not meet in a bank.
__device__ __forceinline__ int sums_place(int head, int pair, int t) { return ((pair * 4 + t) ^ (head % 8)) * 16; }

struct Block {
  int row, first_head, rank;

  // Which entries are this block's. A load is in it.
  template <bool kSplit>
  __device__ __forceinline__ Share share(const AttentionParams& p) const {
    return Share::of<kSplit>(p, p.window.length(row), p.extra.length(row), rank);
  }
};

// How a block's units are cut into chunks. As smaller blocks have it: 8, 8 and 4 of the 20 that are a chunk there.
template <bool kAsFew>
struct Chunks {
  static constexpr int kOfFew = (kFewUnits + kUnits - 1) / kUnits;  // that are one there
  int units;

  __device__ __forceinline__ explicit Chunks(const Share& share) : units(share.end - share.begin) {}
  __device__ __forceinline__ int count() const {
    return kAsFew ? units / kFewUnits * kOfFew + (units % kFewUnits + kUnits - 1) / kUnits
                  : (units + kUnits - 1) / kUnits;
  }
  __device__ __forceinline__ int first(int chunk) const {
    return kAsFew ? chunk / kOfFew * kFewUnits + chunk % kOfFew * kUnits : chunk * kUnits;
  }
  __device__ __forceinline__ int units_of(int chunk) const {
    return min(kAsFew && chunk % kOfFew == kOfFew - 1 ? kFewUnits % kUnits : kUnits, units - first(chunk));
  }
};

// What this thread wrote and read before is done, for whoever waits for the barrier. Every thread arrives for itself: a
// lane that arrives for its warp would do, but racecheck does not see what the other lanes hand on that way.
constexpr int kWarpgroup = 128;

// A warp of the last two warpgroups: a unit of every chunk from records to the tile. A chunk's records are on their way
// while the one before is decoded: each group's registers take the next chunk's as soon as they are free.
template <int W, int X, int H, Kind kKind>
__device__ __forceinline__ void produce(const AttentionParams& p, const Block& b, uint8_t* shared_memory,
                                        uint32_t shared) {
  using Wide = Layout<H>;
  using Cut = Chunks<kKind == Kind::kAsFew>;
  constexpr bool kSplit = kKind != Kind::kWhole;
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % kProducers, 0);
  const int lane = threadIdx.x % 32;
  const UnitLane mine(lane);
  const uint8_t* nothing = no_record();
  const int32_t* window_indices = p.window.indices + b.row * p.window.index_stride;
  const int32_t* extra_indices = p.extra.indices + b.row * p.extra.index_stride;
  Share share;
  const auto look_up = [&](int unit, int(&index)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) index[i] = share.index(window_indices, extra_indices, unit, mine.entry + 4 * i);
  };
  // The warp's of a chunk; behind all units if it has none.
  const auto unit_of = [&](int chunk) {
    const Cut chunks(share);
    return warp < chunks.units_of(chunk) ? share.begin + chunks.first(chunk) + warp : share.end;
  };
  // Lengths, indices and records are three loads in a chain. Full lists are the rule: indices are asked for as if, and
  // again where they are not full.
  int index[2], next_index[2];
  const auto look_up_first = [&](int window_length, int extra_length) {
    share = Share::of<kSplit>(p, window_length, extra_length, b.rank);
    look_up(unit_of(0), index);
    look_up(unit_of(1), next_index);
  };
  look_up_first(p.window.width, p.extra.width);
  const int window_length = p.window.length(b.row), extra_length = p.extra.length(b.row);
  if (window_length != share.window || extra_length != share.extra) look_up_first(window_length, extra_length);
  const int chunks = Cut(share).count();
  if (chunks == 0) return;

  int unit = unit_of(0);  // whose records are in the registers
  const auto is_extra = [&](int of) { return W != X && share.is_extra(of); };
  RecordPlace place[2];
  const auto find = [&](int of, const int(&at)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) place[i] = share.place<W, X>(p, of, at[i], nothing);
  };
  GroupPart parts[4];
  // The last group goes by way of shared memory, where each lane has its own place: there are not registers for all.
  const uint32_t raw = shared + Wide::kRaw + warp * Wide::kRawWarp + lane * 16;
  const auto load = [&](int of, int group) {
    if constexpr (W != ONELANE_KV_BF16) {
      if (group == 3) {
        if (W == ONELANE_KV_V4) {
          ptx::copy_async(raw, (mine.block == 0 ? place[0].data : place[1].data) + 64 * 6 + 16 * mine.t);
          ptx::copy_async(raw + 512, place[0].data + 64 * 7 + 64 * mine.block + 16 * mine.t);
          ptx::copy_async(raw + 1024, place[1].data + 64 * 7 + 64 * mine.block + 16 * mine.t);
        } else {
          const int block = 6 + mine.block;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (is_extra(of)) {
              ptx::copy_async<X == ONELANE_KV_V41_FP4 ? 8 : 16>(raw + i * 512,
                                                                place[i].data + data_offset<X>(block, mine.t));
            } else {
              ptx::copy_async(raw + i * 512, place[i].data + data_offset<W>(block, mine.t));
            }
          }
        }
        ptx::copies_commit();
      } else if (is_extra(of)) {
        load_group<X>(place, group, mine, parts[group]);
      } else {
        load_group<W>(place, group, mine, parts[group]);
      }
    }
  };
  uint32_t raw_scales[2][4];
  const auto load_scales = [&](int of) {
    if constexpr (W != ONELANE_KV_BF16) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (is_extra(of)) {
          load_all_scales<X>(place[i], mine, raw_scales[i]);
        } else {
          load_all_scales<W>(place[i], mine, raw_scales[i]);
        }
      }
    }
  };
  find(unit, index);
  load_scales(unit);
#pragma unroll
  for (int group = 0; group < 4; ++group) load(unit, group);

  for (int chunk = 0, next = 0; chunk < chunks; ++chunk, unit = next) {
    const int stage = chunk % 2;
    const RecordPlace present[2] = {place[0], place[1]};
    next = unit_of(chunk + 1);
    find(next, next_index);
    look_up(unit_of(chunk + 2), next_index);
    const uint32_t tile = shared + Wide::kTile + stage * Wide::kTileBytes + warp * 1024;
    ptx::mbarrier_wait(shared + Wide::kEmpty + stage * 8, (chunk / 2 + 1) % 2);
    if (mine.block == 0 && mine.t == 0) {
      uint8_t* mask = shared_memory + Wide::kMask + stage * kEntries + warp * 8 + mine.entry;
      mask[0] = present[0].none;
      mask[4] = present[1].none;
    }

    if constexpr (W == ONELANE_KV_BF16) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const uint32_t first = tile + block * Wide::kTileBlock + mine.place(4 * mine.block + mine.t);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::copy_async(i == 0 ? first : of_fourth(first),
                          present[i].data + block * 128 + 64 * mine.block + 16 * mine.t);
          if (mine.block * 4 + mine.t == block) ptx::prefetch(place[i].data + block * 128);
        }
      }
      ptx::copies_commit();
      ptx::copies_wait();
    } else {
      uint32_t scales[2];
      const auto convert = [&]<int kFormat, bool kTwoSteps>() {
#pragma unroll
        for (int group = 0; group < 4; ++group) {
          const uint32_t to = tile + 2 * group * Wide::kTileBlock;
          if (group == 3) ptx::copies_wait();
          if (W == ONELANE_KV_V4 && group == 3) {
            // Block 6, of an entry a lane, and the plain one.
            uint32_t v[8];
            decode_e4m3<kTwoSteps>(ptx::load_shared_four(raw),
                                   ptx::permute(mine.block == 0 ? scales[0] : scales[1], 0, 0x4443), v);
            const uint32_t at = mine.place(2 * mine.t), at_plain = mine.place(4 * mine.block + mine.t);
            store_sixteen(to + (mine.block == 0 ? at : of_fourth(at)), v);
            ptx::store_shared(to + Wide::kTileBlock + at_plain, ptx::load_shared_four(raw + 512));
            ptx::store_shared(to + Wide::kTileBlock + of_fourth(at_plain), ptx::load_shared_four(raw + 1024));
          } else {
            if (group == 3) {
              parts[3].data[0] = ptx::load_shared_four(raw);
              parts[3].data[1] = ptx::load_shared_four(raw + 512);
            }
            const uint32_t scale[2] = {ptx::permute(scales[0], 0, 0x4440 + group),
                                       ptx::permute(scales[1], 0, 0x4440 + group)};
            store_group<kFormat, kTwoSteps>(parts[group], scale, group, mine, to, Wide::kTileBlock);
          }
          load(next, group);
        }
      };
      const auto either = [&]<int kFormat>() {
        scales[0] = pack_scales<kFormat>(raw_scales[0], mine);
        scales[1] = pack_scales<kFormat>(raw_scales[1], mine);
        load_scales(next);
        if (__any_sync(0xffffffff, above_largest_step<kFormat>(scales[0]) | above_largest_step<kFormat>(scales[1]))) {
          convert.template operator()<kFormat, true>();
        } else {
          convert.template operator()<kFormat, false>();
        }
      };
      if (is_extra(unit)) {
        either.template operator()<X>();
      } else {
        either.template operator()<W>();
      }
    }
    ptx::fence_async_proxy();
    ptx::mbarrier_arrive(shared + Wide::kFull + stage * 8);
  }
}

// The first two warpgroups: Q to shared memory.
template <int H>
__device__ __forceinline__ void load_query(const AttentionParams& p, const Block& b, uint32_t shared) {
  // A thread has the same 16 bytes of 64 dims of every 32nd head: places a constant apart.
  constexpr int kTimes = H / 32;
  const int head = threadIdx.x / 8, eighth = threadIdx.x % 8;
  const uint16_t* q = p.q + (static_cast<int64_t>(b.row) * p.heads + b.first_head + head) * kDim + eighth * 8;
  const uint32_t to = shared + Layout<H>::kQ + head * 128 + (eighth ^ (head % 8)) * 16;
#pragma unroll
  for (int i = 0; i < kBlocks * kTimes; ++i) {
    const int block = i / kTimes, time = i % kTimes;
    ptx::copy_async(to + (block * kRows + time * 32) * 128, q + time * 32 * kDim + block * 64);
  }
  ptx::copies_commit();
  ptx::copies_wait();
  ptx::fence_async_proxy();
  ptx::mbarrier_arrive(shared + Layout<H>::kQueryReady);
}

// What is needed at the end.
template <int H>
__device__ __forceinline__ void load_constants(const AttentionParams& p, const Block& b, uint8_t* shared_memory) {
  float* sinks = reinterpret_cast<float*>(shared_memory + Layout<H>::kSinks);
  float* angles = reinterpret_cast<float*>(shared_memory + Layout<H>::kAngles);
  const int i = threadIdx.x % 128;
  if (i < H) sinks[i] = load_sink(p, b.first_head + i);
  if (i >= 64 && p.positions != nullptr) {
    const int64_t position = min(max(__ldcg(p.positions + b.row), 0), p.angles_count - 1);
    angles[i - 64] = __ldcg(p.angles + position * kRope + i - 64);
  }
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

// Products of query and records of a chunk: s[4 j + 2 half + i] is that of head 16 warp + 8 half + g and of entry
// 8 j + 2 t + i.
template <int H>
__device__ __forceinline__ void score(uint32_t shared, uint32_t tile, float (&s)[32]) {
  using Wide = Layout<H>;
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
}
// The same as cluster.cu has them, sums of 128 dims each, added in order; of 32 entries at a time, which is what
// registers there are for, and of the first 32 alone if there are no more.
template <int H>
__device__ __forceinline__ void score_as_few(uint32_t shared, uint32_t tile, int units, float (&s)[32]) {
  using Wide = Layout<H>;
  constexpr int kParts = 4, kSteps = kDim / 16 / kParts;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 16; ++i) s[half * 16 + i] = 0;
    if (half == 1 && units <= kUnits / 2) break;
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      const uint32_t from = part * (kBlocks / kParts) * Wide::kTileBlock;
      const uint64_t query = ptx::swizzled_matrix(shared + Wide::kQ + from);
      const uint64_t entries = ptx::swizzled_matrix(tile + from);
      float sums[16];
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int at = (i / 4 * Wide::kTileBlock + i % 4 * 32) / 16;
        ptx::Wgmma<32>::product<false>(sums, query + at, entries + (at + half * 32 * 128 / 16), i > 0);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < 16; ++i) s[half * 16 + i] += sums[i];
    }
  }
}

// One of the first two warpgroups, from tiles to sums with their owners. o[4 j + 2 half + i] is that of head 16 warp +
// 8 half + g, dim kFirstDim + 8 j + 2 t + i. The first, which has the scores to do, takes a quarter of the dims: the
// second is at the outputs of a chunk while the first is at the scores of the next.
template <int kGroup, int H, Kind kKind>
__device__ __forceinline__ void consume(const AttentionParams& p, const Block& b, uint8_t* shared_memory,
                                        uint32_t shared) {
  using Wide = Layout<H>;
  constexpr bool kSplit = kKind != Kind::kWhole, kAsFew = kKind == Kind::kAsFew;
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int head = warp * 16 + g;
  float* shifts = reinterpret_cast<float*>(shared_memory + Wide::kShift);
  const uint32_t weights = shared + Wide::kP + head * 128 + t * 4;  // of the second head 8 * 128 further on
  constexpr int kFirstDim = kGroup == 0 ? 0 : 128, kDims = kGroup == 0 ? 128 : kDim - 128;
  float o[kDims / 2];
#pragma unroll
  for (float& v : o) v = 0;
  float most[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};  // in the first warpgroup, sums of 2^(S - M) over this thread's entries
  load_query<H>(p, b, shared);
  const Chunks<kAsFew> cut(b.share<kSplit>(p));
  const int chunks = cut.count();
  if constexpr (kGroup == 0) {
    ptx::mbarrier_wait(shared + Wide::kQueryReady, 0);
  } else {
    load_constants<H>(p, b, shared_memory);
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = chunk % 2;
    const uint32_t tile = shared + Wide::kTile + stage * Wide::kTileBytes;
    uint32_t fragment[4][4];  // P, for four steps of 16 entries
    float shift[2];
    if constexpr (kGroup == 0) {
      ptx::mbarrier_wait(shared + Wide::kFull + stage * 8, chunk / 2 % 2);
      float s[32];
      if constexpr (kAsFew) {
        score_as_few<H>(shared, tile, cut.units_of(chunk), s);
      } else {
        score<H>(shared, tile, s);
      }

      float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t none =
            *reinterpret_cast<const uint16_t*>(shared_memory + Wide::kMask + stage * kEntries + 8 * j + 2 * t);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool masked = (none & (i % 2 == 0 ? 0xff : 0xff00)) != 0;
          float& score = s[4 * j + i];
          score = masked ? -INFINITY : score_of(score, p.scale_log2);
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
        float of_pair[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float low = ptx::exp2_approx(s[4 * j + 2 * half] - base);
          const float high = ptx::exp2_approx(s[4 * j + 2 * half + 1] - base);
          of_pair[j] = low + high;
          fragment[j / 2][j % 2 * 2 + half] = ptx::pack_bf16(low, high);
        }
        // As cluster.cu adds them up.
#pragma unroll
        for (int distance = 1; distance < 8; distance *= 2) {
#pragma unroll
          for (int j = 0; j < 8; j += 2 * distance) of_pair[j] += of_pair[j + distance];
        }
        total[half] += of_pair[0];
      }
      if (chunk > 0) ptx::mbarrier_wait(shared + Wide::kWeightsRead, (chunk - 1) % 2);
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
      ptx::mbarrier_arrive(shared + Wide::kWeightsReady);
    } else {
      ptx::mbarrier_wait(shared + Wide::kFull + stage * 8, chunk / 2 % 2);
      ptx::mbarrier_wait(shared + Wide::kWeightsReady, chunk % 2);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          fragment[j / 2][j % 2 * 2 + half] = ptx::load_shared(weights + half * 8 * 128 + (j ^ (head % 8)) * 16);
        }
      }
      shift[0] = shifts[head];
      shift[1] = shifts[head + 8];
    }
    if (chunk > 0 && (shift[0] != 1 || shift[1] != 1)) {
#pragma unroll
      for (int i = 0; i < kDims / 2; ++i) o[i] *= shift[i / 2 % 2];
    }
    ptx::wgmma_fence();
    const uint64_t values = ptx::swizzled_matrices(tile + kFirstDim / 64 * Wide::kTileBlock, Wide::kTileBlock);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const bool add = chunk > 0 || step > 0;
      const auto product = [&]<int kPart>() {
        ptx::wgmma_128<kPart * 64>(o, fragment[step], values + (step * 2048 + 2 * kPart * Wide::kTileBlock) / 16, add);
      };
      product.template operator()<0>();
      if constexpr (kGroup == 1) {
        product.template operator()<1>();
        product.template operator()<2>();
      }
    }
    ptx::wgmma_commit();
    // Behind the products that take them: an arrival does not wait for loads.
    if constexpr (kGroup == 1) ptx::mbarrier_arrive(shared + Wide::kWeightsRead);
    ptx::wgmma_wait<0>();
    ptx::mbarrier_arrive(shared + Wide::kEmpty + stage * 8);
  }

  // M and the sums of P to all blocks, sums of outputs to their owners.
  all_have_read<kSplit>();
  const int splits = kSplit ? p.splits : 1;
  const int items_stride = kSplit ? Items<H>::stride(p) : Items<H>::kCount;
  if (warp * 16 >= H) return;  // rows without a head
  if constexpr (kGroup == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(0xffffffff, total[half], 1);
      total[half] += __shfl_xor_sync(0xffffffff, total[half], 2);
      const uint32_t at = shared + Wide::kParts + (b.rank * H + head + half * 8) * 8;
      for (int to = t; to < splits; to += 4) {
        if (kSplit && to != b.rank) {
          ptx::store_async(ptx::in_block(at, to), make_float2(most[half], total[half]),
                           ptx::in_block(shared + Wide::kSums, to));
        } else {
          ptx::store_shared(at, make_float2(most[half], total[half]));
        }
      }
    }
  }
#pragma unroll
  for (int q = 0; q < kDims / 32; ++q) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int item = (kFirstDim / 32 + q) * (H / 8) + warp * 2 + half;
      const int owner = kSplit ? Items<H>::owner(p, item) : 0;
      const int slot = kSplit ? b.rank * items_stride + item - Items<H>::first(p, owner) : item;
      const uint32_t here = shared + Wide::kReceived + slot * kItemBytes + g * 128;
      const auto sums = [&](int pair) {
        const float* of = o + (q * 4 + pair * 2) * 4 + 2 * half;
        return make_float4(of[0], of[1], of[4], of[5]);
      };
      if (kSplit && owner != b.rank) {
        const uint32_t to = ptx::in_block(here, owner);
        const uint32_t barrier = ptx::in_block(shared + Wide::kSums, owner);
        ptx::store_async(to + sums_place(g, 0, t), sums(0), barrier);
        ptx::store_async(to + sums_place(g, 1, t), sums(1), barrier);
      } else {
        ptx::store_shared(here + sums_place(g, 0, t), sums(0));
        ptx::store_shared(here + sums_place(g, 1, t), sums(1));
      }
    }
  }
}

template <int W, int X, int H, Kind kKind>
__global__ void __launch_bounds__(kThreads, 1) wide_attention(const __grid_constant__ AttentionParams p) {
  using Wide = Layout<H>;
  constexpr bool kSplit = kKind != Kind::kWhole;
  ONELANE_DYNAMIC_SHARED(uint8_t, shared_memory);
  const uint32_t shared = ptx::shared_address(shared_memory);
  const auto floats = [&](int at) { return reinterpret_cast<float*>(shared_memory + at); };
  const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  const int splits = kSplit ? p.splits : 1;
  Block b;
  b.rank = kSplit ? ptx::block_rank() : 0;
  const int work = kSplit ? ptx::cluster_index() : blockIdx.x;
  b.row = work >> p.groups_log2;
  b.first_head = (work - (b.row << p.groups_log2)) * H;
  const int first_item = kSplit ? Items<H>::first(p, b.rank) : 0;
  const int items_end = kSplit ? Items<H>::first(p, b.rank + 1) : Items<H>::kCount;
  const int items_stride = kSplit ? Items<H>::stride(p) : Items<H>::kCount;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      ptx::mbarrier_init(shared + Wide::kFull + stage * 8, 2 * kWarpgroup);
      ptx::mbarrier_init(shared + Wide::kEmpty + stage * 8, 2 * kWarpgroup);
    }
    ptx::mbarrier_init(shared + Wide::kQueryReady, 2 * kWarpgroup);
    ptx::mbarrier_init(shared + Wide::kWeightsReady, kWarpgroup);
    ptx::mbarrier_init(shared + Wide::kWeightsRead, kWarpgroup);
    ptx::mbarrier_init(shared + Wide::kSums, 1);
    ptx::mbarrier_expect(shared + Wide::kSums, (splits - 1) * ((items_end - first_item) * kItemBytes + H * 8));
  }
  ptx::wait_for_previous_kernel();
  __syncthreads();

  if (group >= 2) {
    ptx::give_registers<kProducing>();
    produce<W, X, H, kKind>(p, b, shared_memory, shared);
    all_have_read<kSplit>();
  } else if (group == 1) {
    ptx::take_registers<kSecond>();
    consume<1, H, kKind>(p, b, shared_memory, shared);
  } else {
    ptx::take_registers<kScoring>();
    consume<0, H, kKind>(p, b, shared_memory, shared);
  }
  ptx::let_next_kernel_start();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  __syncthreads();
  if constexpr (kSplit) ptx::mbarrier_wait(shared + Wide::kSums, 0);

  // What each part's sums count for, in the place of M; the denominator in that of the first part's.
  float2* parts = reinterpret_cast<float2*>(shared_memory + Wide::kParts);
  if (threadIdx.x < H) {
    float2* part = parts + threadIdx.x;
    float largest = -INFINITY;
    for (int i = 0; i < splits; ++i) largest = fmaxf(largest, part[i * H].x);
    const float base = largest == -INFINITY ? 0.0f : largest;
    float sum = 0;
    for (int i = 0; i < splits; ++i) sum += part[i * H].y * ptx::exp2_approx(part[i * H].x - base);
    const float scale = inverse_denominator(p, b.row, b.first_head + threadIdx.x, largest, sum,
                                            floats(Wide::kSinks)[threadIdx.x], b.rank == 0);
    for (int i = 0; i < splits; ++i) part[i * H].x = ptx::exp2_approx(part[i * H].x - base);
    part[0].y = scale;
  }
  __syncthreads();

  // An item a warp: 8 dims of a head a lane. A warp's are of the same heads.
  static_assert(kWarps % (H / 8) == 0);
  const int octet = lane / 8;
  const int head = (first_item + warp) % (H / 8) * 8 + lane % 8;
  const uint8_t* sums = shared_memory + Wide::kReceived + lane % 8 * 128 + octet % 2 * 8;
  for (int item = first_item + warp; item < items_end; item += kWarps) {
    const uint8_t* source = sums + (item - first_item) * kItemBytes;
    float value[8] = {};
    for (int part = 0; part < splits; ++part) {
      const float factor = parts[part * H + head].x;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = *reinterpret_cast<const float2*>(source + sums_place(lane, octet / 2, i));
        value[2 * i] += two.x * factor;
        value[2 * i + 1] += two.y * factor;
      }
      source += items_stride * kItemBytes;
    }
#pragma unroll
    for (float& v : value) v *= parts[head].y;
    const int dim = item / (H / 8) * 32 + octet * 8;
    finish_octet(p, dim, output_place(p, b.row, b.first_head + head, dim), value, floats(Wide::kAngles));
  }
}

}  // namespace

cudaError_t launch_wide(const attention::ListFormats& formats, int block_heads, const AttentionParams& params,
                        cudaStream_t stream) {
  return with_formats(formats, [&]<int W, int X>() {
    const auto launch = [&]<int H, Kind kKind>() {
      return launch_hopper(wide_attention<W, X, H, kKind>, params, H, kThreads, Layout<H>::kBytes, stream);
    };
    const bool split = params.splits > 1;
    if (block_heads == 32) {
      return split ? launch.template operator()<32, Kind::kSplit>() : launch.template operator()<32, Kind::kWhole>();
    }
    if (!split) return launch.template operator()<64, Kind::kWhole>();
    return params.chunks_as_few != 0 ? launch.template operator()<64, Kind::kAsFew>()
                                     : launch.template operator()<64, Kind::kSplit>();
  });
}

}  // namespace onelane::cuda
