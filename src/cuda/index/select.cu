// The best entries of a row, and its best blocks of entries: a block of threads a row, or a cluster of blocks where
// rows are long and few.
//
// A histogram of the scores over bins of equal width between the lowest and the highest (rounding is monotone, so bins
// are in order whatever is rounded) finds the bin of the last entry that is picked, and the entries of this bin are
// ranked among themselves. A walk over all entries then gives every pick its place by counting those before it. So
// picks are ascending and ties go to the lower number, whatever thread sees what. A thread has its scores in registers.
// Blocks of a cluster have a stretch of the row each; they add up each other's histograms and rank the entries of all.
//
// Where a row has too many entries for that, or the bin has, as where all scores are the same, a score becomes an
// unsigned key in the same order, and three histograms, of 11, 11 and 10 bits from the top, find the last pick's.
#include "cuda/index/index.h"
#include "cuda/ptx/cluster.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr int kInFlight = 8;      // keys that a thread asks for before it uses them
constexpr int kMostRanked = 512;  // entries of a bin
constexpr int kCluster = 8;
constexpr int kAlone = 8192;  // entries for which a block is as fast as a cluster

constexpr uint32_t kLowestKey = 0x007fffffu;   // of -inf
constexpr uint32_t kHighestKey = 0xffffffffu;  // above that of +inf

// In the order of the scores, which are no NaNs; -0 is 0.
__device__ __forceinline__ uint32_t key_of(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

__device__ __forceinline__ float score_of(uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

// Which are the best: all with a higher key, and the first `equal` with this one.
struct Threshold {
  uint32_t key;
  uint32_t equal;
};

struct Shared {
  alignas(8) uint32_t histogram[kBins];
  uint32_t of_warp[kWarps], equal_of_warp[kWarps];
  uint32_t digit, above, members;  // of find_bin
  // What choose_in_registers wants as reset() leaves it: the range of this block's scores, how many of its entries are
  // among the members so far, and of entries in blocks before it, how many are above the last pick, or its equals.
  uint32_t lowest, highest;
  uint32_t count;
  uint32_t above_before, equal_before;
  uint32_t packed[kBins / 4];  // of a histogram that others read
  uint32_t place[kCluster];    // in `member`, of each block's first
  uint2 member[kMostRanked];   // entries in the bin of the last pick: key, number
  Threshold found;

  __device__ __forceinline__ void reset() {
    for (int i = threadIdx.x; i < kBins; i += kThreads) histogram[i] = 0;
    if (threadIdx.x != 0) return;
    digit = kBins;
    lowest = 0xffffffffu;
    highest = count = above_before = equal_before = 0;
  }
};

// The blocks that have a row together, and what they have in registers and as a histogram.
template <int kBlocks>
struct Team {
  static constexpr int kMine = kBlocks == 1 ? 32 : 16;  // scores that a thread has in registers
  static constexpr int kMost = kBlocks * kThreads * kMine;
  // Few where others read them, two a word: each 32 KiB that a block reads of others takes a microsecond.
  static constexpr int kRowBins = kBlocks == 1 ? kBins : kBins / 2;
  static_assert(kThreads * kMine < 1 << 16);

  // All threads meet, and see what each wrote before.
  static __device__ __forceinline__ void meet() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) return ptx::cluster_barrier();
#endif
    __syncthreads();
  }
  static __device__ __forceinline__ int rank() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) return ptx::block_rank();
#endif
    return 0;
  }
  // What block `rank` has where this one has `mine`.
  static __device__ __forceinline__ uint32_t of(int rank, const uint32_t& mine) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) return ptx::load_in_block(ptx::in_block(ptx::shared_address(&mine), rank));
#endif
    return mine;
  }
  static __device__ __forceinline__ void store(int rank, uint2& mine, uint2 v) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) return ptx::store_in_block(ptx::in_block(ptx::shared_address(&mine), rank), v);
#endif
    mine = v;
  }
  static __device__ __forceinline__ void add(int rank, uint32_t& mine, uint32_t v) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) return ptx::add_in_block(ptx::in_block(ptx::shared_address(&mine), rank), v);
#endif
    atomicAdd(&mine, v);
  }
};

// The sum of x over the threads before this one; `total`: over all. A barrier stands before and after.
__device__ __forceinline__ uint32_t sum_before(uint32_t x, Shared& shared, uint32_t& total) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t upto = x;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t before = __shfl_up_sync(0xffffffff, upto, distance);
    if (lane >= distance) upto += before;
  }
  __syncthreads();
  if (lane == 31) shared.of_warp[warp] = upto;
  __syncthreads();
  uint32_t of_warps = shared.of_warp[lane];
  total = __reduce_add_sync(0xffffffff, of_warps);
  of_warps = __reduce_add_sync(0xffffffff, lane < warp ? of_warps : 0);
  return of_warps + upto - x;
}

// Two neighbouring bins.
__device__ __forceinline__ uint2 two_bins(const Shared& shared, int two) {
  return reinterpret_cast<const uint2*>(shared.histogram)[two];
}

// The bin of the last of the best `wanted`, how many are in those above, and in it, to shared.digit, above and members.
// A thread brings what two bins have; the lower a thread, the higher they are. True for the one that has it.
__device__ __forceinline__ bool find_bin(Shared& shared, uint32_t wanted, int two, uint2 in) {
  uint32_t total;
  const uint32_t above = sum_before(in.x + in.y, shared, total);
  // The last pick is where the count of those above passes what is wanted.
  const bool has_it = above < wanted && wanted <= above + in.x + in.y;
  if (has_it) {
    const bool in_upper = wanted <= above + in.y;
    shared.digit = 2 * two + (in_upper ? 1 : 0);
    shared.above = in_upper ? above : above + in.y;
    shared.members = in_upper ? in.y : in.x;
  }
  return has_it;
}

// Of the best `count` of `n`, count < n, by the bits of the keys; key(i) is that of the i-th.
template <class Key>
__device__ __forceinline__ Threshold find_threshold(int n, int count, Shared& shared, Key key) {
  Threshold found = {0, static_cast<uint32_t>(count)};
  constexpr int kShifts[] = {21, 10, 0};
#pragma unroll 1
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = kShifts[pass];
    const uint32_t known = pass == 0 ? 0 : 0xffffffffu << kShifts[pass - 1];
    for (int i = threadIdx.x; i < kBins; i += kThreads) shared.histogram[i] = 0;
    __syncthreads();
    for (int first = threadIdx.x; first < n; first += kInFlight * kThreads) {
      uint32_t keys[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int i = first + j * kThreads;
        keys[j] = i < n ? key(i) : 0;
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (first + j * kThreads >= n || ((keys[j] ^ found.key) & known) != 0) continue;
        atomicAdd(&shared.histogram[(keys[j] & ~known) >> shift], 1);
      }
    }
    __syncthreads();
    const int two = kBins / 2 - 1 - static_cast<int>(threadIdx.x);
    find_bin(shared, found.equal, two, two_bins(shared, two));
    __syncthreads();
    found.key |= shared.digit << shift;
    found.equal -= shared.above;
  }
  return found;
}

// From the counts of a lane to those of all warps before its own. One barrier; no warp may still be reading the counts
// of an earlier call.
__device__ __forceinline__ void count_before(Shared& shared, uint32_t& above, uint32_t& equal) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  above = __reduce_add_sync(0xffffffff, above);
  equal = __reduce_add_sync(0xffffffff, equal);
  if (lane == 0) {
    shared.of_warp[warp] = above;
    shared.equal_of_warp[warp] = equal;
  }
  __syncthreads();
  above = __reduce_add_sync(0xffffffff, lane < warp ? shared.of_warp[lane] : 0);
  equal = __reduce_add_sync(0xffffffff, lane < warp ? shared.equal_of_warp[lane] : 0);
}

// Calls take(place, i) for the best, place being how many of them stand before the i-th. A warp has a stretch of all.
template <class Key, class Take>
__device__ __forceinline__ void take_best(int n, const Threshold& threshold, Shared& shared, Key key, Take take) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int stretch = (n + 32 * kWarps - 1) / (32 * kWarps) * 32;
  const int begin = min(warp * stretch, n), end = min(begin + stretch, n);
  uint32_t above = 0, equal = 0;
#pragma unroll kInFlight
  for (int i = begin + lane; i < end; i += 32) {
    const uint32_t k = key(i);
    above += k > threshold.key ? 1 : 0;
    equal += k == threshold.key ? 1 : 0;
  }
  __syncthreads();
  count_before(shared, above, equal);
  const uint32_t before = (1u << lane) - 1;
#pragma unroll 4
  for (int first = begin; first < end; first += 32) {
    const int i = first + lane;
    const uint32_t k = i < end ? key(i) : 0;  // no score's
    const uint32_t are_above = __ballot_sync(0xffffffff, k > threshold.key);
    const uint32_t are_equal = __ballot_sync(0xffffffff, i < end && k == threshold.key);
    const uint32_t equal_before = equal + __popc(are_equal & before);
    const bool is_taken = k > threshold.key || (i < end && k == threshold.key && equal_before < threshold.equal);
    if (is_taken) take(above + __popc(are_above & before) + min(equal_before, threshold.equal), i);
    above += __popc(are_above);
    equal += __popc(are_equal);
  }
}

// The best `count` of n scores, count < n <= Team::kMost, to `picks`; `shared` is as reset() leaves it. False, and
// nothing done, where scores are too close to each other or too far apart, or all but too few are -inf.
template <int kBlocks>
__device__ __forceinline__ bool choose_in_registers(const float* scores, int n, int count, Shared& shared,
                                                    int32_t* picks) {
  using Blocks = Team<kBlocks>;
  constexpr int kMine = Blocks::kMine;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = Blocks::rank();
  // A warp has a stretch of all entries. Past the end come some at -inf, after all others of these.
  const int turns = (n + kBlocks * kThreads - 1) / (kBlocks * kThreads);
  const int begin = (rank * kWarps + warp) * turns * 32 + lane;
  float mine[kMine];
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    mine[j] = -INFINITY;
    if (j < turns && begin + j * 32 < n) mine[j] = scores[begin + j * 32];
  }
  float low = INFINITY, high = -INFINITY;
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    if (j >= turns) break;
    low = fminf(low, mine[j] > -INFINITY ? mine[j] : INFINITY);
    high = fmaxf(high, mine[j]);
  }
  const uint32_t warp_lowest = __reduce_min_sync(0xffffffff, key_of(low));
  const uint32_t warp_highest = __reduce_max_sync(0xffffffff, key_of(high));
  __syncthreads();
  if (lane == 0) {
    atomicMin(&shared.lowest, warp_lowest);
    atomicMax(&shared.highest, warp_highest);
  }
  Blocks::meet();
  const uint32_t lowest = __reduce_min_sync(0xffffffff, Blocks::of(lane % kBlocks, shared.lowest));
  const uint32_t highest = __reduce_max_sync(0xffffffff, Blocks::of(lane % kBlocks, shared.highest));
  const float from = score_of(lowest), width = score_of(highest) - from;
  const float scale = (Blocks::kRowBins - 1) / width;
  if (!(width > 0 && scale > 0 && scale < INFINITY)) return false;
  // The bin as the lowest bits of a float of a unit's distance to the next.
  const auto bin_of = [&](float score) {
    return __float_as_uint((score - from) * scale + 0x1p23f) & (2 * Blocks::kRowBins - 1);
  };
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    if (j >= turns) break;
    if (mine[j] > -INFINITY) atomicAdd(&shared.histogram[bin_of(mine[j])], 1);
  }
  __syncthreads();
  // Of two bins a thread what each block has; the first the highest, and some threads none.
  const int two = Blocks::kRowBins / 2 - 1 - static_cast<int>(threadIdx.x);
  uint2 in[kBlocks] = {};
  if constexpr (kBlocks == 1) {
    in[0] = two_bins(shared, two);
  } else {
    if (two >= 0) {
      const uint2 own = two_bins(shared, two);
      shared.packed[two] = own.x | own.y << 16;
    }
    Blocks::meet();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint32_t packed = two >= 0 ? Blocks::of(block, shared.packed[two]) : 0;
      in[block] = make_uint2(packed & 0xffff, packed >> 16);
    }
  }
  uint2 of_all = make_uint2(0, 0);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) of_all.x += in[block].x, of_all.y += in[block].y;
  if (find_bin(shared, count, two, of_all)) {
    uint32_t place = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      shared.place[block] = place;
      place += shared.digit % 2 == 0 ? in[block].x : in[block].y;
    }
  }
  __syncthreads();
  const uint32_t bin = shared.digit, members = shared.members;
  const uint32_t wanted = count - shared.above;
  if (bin == kBins || members > kMostRanked) return false;
  // Every block gets all members, and those after this one the number of entries that are above.
  const uint32_t place = shared.place[rank];
  uint32_t higher = 0;
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    if (j >= turns) break;
    if (mine[j] == -INFINITY) continue;
    const uint32_t of = bin_of(mine[j]);
    higher += of > bin ? 1 : 0;
    if (of != bin) continue;
    const uint32_t to = place + atomicAdd(&shared.count, 1);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      Blocks::store(block, shared.member[to], make_uint2(key_of(mine[j]), begin + j * 32));
    }
  }
  if constexpr (kBlocks > 1) {
    higher = __reduce_add_sync(0xffffffff, higher);
    if (higher > 0 && rank < lane && lane < kBlocks) Blocks::add(lane, shared.above_before, higher);
  }
  Blocks::meet();
  if (threadIdx.x < members) {
    const uint2 member = shared.member[threadIdx.x];
    uint32_t above = 0, equal_before = 0;
    for (uint32_t i = 0; i < members; ++i) {
      const uint2 other = shared.member[i];
      above += other.x > member.x ? 1 : 0;
      equal_before += other.x == member.x && other.y < member.y ? 1 : 0;
    }
    if (above + equal_before + 1 == wanted) shared.found = {member.x, equal_before + 1};
  }
  __syncthreads();
  const float last = score_of(shared.found.key);
  const uint32_t equal_wanted = shared.found.equal;
  if (threadIdx.x < place) {  // a member in a block before this one
    const uint32_t key = shared.member[threadIdx.x].x;
    if (key > shared.found.key) atomicAdd(&shared.above_before, 1);
    if (key == shared.found.key) atomicAdd(&shared.equal_before, 1);
  }

  uint32_t above = 0, equal = 0;
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    if (j >= turns) break;
    above += mine[j] > last ? 1 : 0;
    equal += mine[j] == last ? 1 : 0;
  }
  count_before(shared, above, equal);
  above += shared.above_before;
  equal += shared.equal_before;
  const uint32_t before = (1u << lane) - 1;
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    if (j >= turns) break;
    const bool is_above = mine[j] > last, is_equal = mine[j] == last;
    const uint32_t are_above = __ballot_sync(0xffffffff, is_above);
    const uint32_t are_equal = __ballot_sync(0xffffffff, is_equal);
    if ((are_above | are_equal) == 0) continue;
    const uint32_t equal_before = equal + __popc(are_equal & before);
    if (is_above || (is_equal && equal_before < equal_wanted)) {
      picks[above + __popc(are_above & before) + min(equal_before, equal_wanted)] = begin + j * 32;
    }
    above += __popc(are_above);
    equal += __popc(are_equal);
  }
  return true;
}

// The bits of the best blocks of a row; those at -inf are none.
__device__ __forceinline__ void publish(const IndexChoice& choice, const float* scores, int visible, uint32_t* keys,
                                        uint32_t* bits, Shared& shared) {
  for (int i = threadIdx.x; i < choice.candidate_words; i += kThreads) bits[i] = 0;
  const int blocks = (visible + choice.block_size - 1) / choice.block_size;
  for (int block = threadIdx.x; block < blocks; block += kThreads) {
    const int end = min((block + 1) * choice.block_size, visible);
    float best = -INFINITY;
    for (int i = block * choice.block_size; i < end; ++i) best = fmaxf(best, scores[i]);
    keys[block] = block + 1 == blocks ? kHighestKey : key_of(best);  // the newest always stays
  }
  __syncthreads();
  const auto key = [&](int block) { return keys[block]; };
  const auto add = [&](int block) {
    if (keys[block] > kLowestKey) atomicOr(bits + block / 32, 1u << (block % 32));
  };
  if (blocks <= choice.topk_blocks) {
    for (int block = threadIdx.x; block < blocks; block += kThreads) add(block);
    return;
  }
  const Threshold threshold = find_threshold(blocks, choice.topk_blocks, shared, key);
  take_best(blocks, threshold, shared, key, [&](uint32_t, int block) { add(block); });
}

// grid: the rows that have scores, kBlocks blocks each
template <int kBlocks>
__global__ void __launch_bounds__(kThreads)
    select_rows(const StepRows rows, const IndexChoice choice, const IndexScores scores, uint32_t* block_keys,
                int32_t* picks) {
  ONELANE_DYNAMIC_SHARED(uint4, memory);
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  ptx::let_next_kernel_start();
  const int scored = blockIdx.x / kBlocks, row = scores.first_row + scored;
  const int visible = choice.visible(rows.position[row]);
  const float* of_row = scores.of_row(row);
  int32_t* to = picks + static_cast<int64_t>(row) * choice.topk;
  shared.reset();
  ptx::wait_for_previous_kernel();
  const bool chooses = visible > choice.topk, together = kBlocks > 1 && visible > kAlone;
  bool chosen = false;
  if (chooses && together && visible <= Team<kBlocks>::kMost) {
    chosen = choose_in_registers<kBlocks>(of_row, visible, choice.topk, shared, to);
    if (!chosen) Team<kBlocks>::meet();  // others read this block's shared memory
  }
  if (Team<kBlocks>::rank() != 0) return;
  if (chooses && !together && visible <= Team<1>::kMost) {
    chosen = choose_in_registers<1>(of_row, visible, choice.topk, shared, to);
  }
  if (!chooses) {
    for (int i = threadIdx.x; i < choice.topk; i += kThreads) to[i] = i < visible ? i : -1;
  } else if (!chosen) {
    const auto key = [&](int i) { return key_of(of_row[i]); };
    const Threshold threshold = find_threshold(visible, choice.topk, shared, key);
    take_best(visible, threshold, shared, key, [&](uint32_t place, int i) { to[place] = i; });
  }
  if (choice.mode == IndexArgs::Candidates::kPublish) {
    __syncthreads();
    const int64_t most_blocks = (scores.stride + choice.block_size - 1) / choice.block_size;
    publish(choice, of_row, visible, block_keys + scored * most_blocks,
            choice.candidates + static_cast<int64_t>(row) * choice.candidate_words, shared);
  }
}

}  // namespace

void select_entries(const Stage& stage, const IndexChoice& choice, const IndexScores& scores, uint32_t* block_keys,
                    int32_t* picks) {
  const bool together = stage.arch >= 90 && scores.stride > kAlone && scores.rows * kCluster <= stage.processors;
  const int blocks = together ? kCluster : 1;
  launch_clusters(stage, "select_rows", together ? select_rows<kCluster> : select_rows<1>, blocks,
                  dim3(scores.rows * blocks), dim3(kThreads), sizeof(Shared), stage.rows, choice, scores, block_keys,
                  picks);
}

}  // namespace onelane::cuda
