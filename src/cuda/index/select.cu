// The best entries of a row, and its best blocks of entries: a block of threads a row.
//
// A score becomes an unsigned key in the same order. Three histograms, of 11, 11 and 10 bits from the top, find the key
// of the last entry that is picked and how many that have just this key are; a walk over all entries then gives every
// pick its place by counting those before it. So picks are ascending and ties go to the lower number, whatever thread
// sees what.
#include "cuda/index/index.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr int kInFlight = 8;  // keys that a thread asks for before it uses them

constexpr uint32_t kLowestKey = 0x007fffffu;   // of -inf
constexpr uint32_t kHighestKey = 0xffffffffu;  // above that of +inf

// In the order of the scores, which are no NaNs; -0 is 0.
__device__ __forceinline__ uint32_t key_of(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

struct Shared {
  uint32_t histogram[kBins];
  uint32_t of_warp[kWarps];
  uint32_t digit, above;
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

// Which are the best: all with a higher key, and the first `equal` with this one.
struct Threshold {
  uint32_t key;
  uint32_t equal;
};

// Of the best `count` of `n`, count < n. key(i) is that of the i-th.
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
    // Two bins a thread, the highest first: the last pick is where the count of those above passes what is wanted.
    const int bin = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
    const uint32_t upper = shared.histogram[bin], lower = shared.histogram[bin - 1];
    uint32_t total;
    const uint32_t above = sum_before(upper + lower, shared, total);
    if (above < found.equal && found.equal <= above + upper + lower) {
      const bool in_upper = found.equal <= above + upper;
      shared.digit = in_upper ? bin : bin - 1;
      shared.above = in_upper ? above : above + upper;
    }
    __syncthreads();
    found.key |= shared.digit << shift;
    found.equal -= shared.above;
  }
  return found;
}

// Calls take(place, i) for the best, place being how many of them stand before the i-th.
template <class Key, class Take>
__device__ __forceinline__ void take_best(int n, const Threshold& threshold, Shared& shared, Key key, Take take) {
  constexpr int kMine = 4;  // in a row
  uint32_t above = 0, equal = 0;
  for (int base = 0; base < n; base += kMine * kThreads) {
    const int first = base + kMine * static_cast<int>(threadIdx.x);
    uint32_t keys[kMine];
    uint32_t counts = 0;  // above in the lower half, equal in the upper
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      keys[j] = first + j < n ? key(first + j) : 0;
      if (first + j >= n) continue;
      counts += (keys[j] > threshold.key ? 1 : 0) + (keys[j] == threshold.key ? 0x10000 : 0);
    }
    uint32_t total;
    const uint32_t before = sum_before(counts, shared, total);
    uint32_t above_before = above + (before & 0xffff), equal_before = equal + (before >> 16);
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      if (first + j >= n) break;
      if (keys[j] > threshold.key) {
        take(above_before + min(equal_before, threshold.equal), first + j);
        ++above_before;
      } else if (keys[j] == threshold.key) {
        if (equal_before < threshold.equal) take(above_before + equal_before, first + j);
        ++equal_before;
      }
    }
    above += total & 0xffff;
    equal += total >> 16;
  }
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

// grid: the rows that have scores
__global__ void __launch_bounds__(kThreads)
    select_rows(const StepRows rows, const IndexChoice choice, const IndexScores scores, uint32_t* block_keys,
                int32_t* picks) {
  __shared__ Shared shared;
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int row = scores.first_row + blockIdx.x;
  const int visible = choice.visible(rows.position[row]);
  const float* of_row = scores.of_row(row);
  int32_t* to = picks + static_cast<int64_t>(row) * choice.topk;
  if (visible <= choice.topk) {
    for (int i = threadIdx.x; i < choice.topk; i += kThreads) to[i] = i < visible ? i : -1;
  } else {
    const auto key = [&](int i) { return key_of(of_row[i]); };
    const Threshold threshold = find_threshold(visible, choice.topk, shared, key);
    take_best(visible, threshold, shared, key, [&](uint32_t place, int i) { to[place] = i; });
  }
  if (choice.mode == IndexArgs::Candidates::kPublish) {
    const int64_t most_blocks = (scores.stride + choice.block_size - 1) / choice.block_size;
    publish(choice, of_row, visible, block_keys + blockIdx.x * most_blocks,
            choice.candidates + static_cast<int64_t>(row) * choice.candidate_words, shared);
  }
}

}  // namespace

void select_entries(const Stage& stage, const IndexChoice& choice, const IndexScores& scores, uint32_t* block_keys,
                    int32_t* picks) {
  launch(stage, "select_rows", select_rows, dim3(scores.rows), dim3(kThreads), 0, stage.rows, choice, scores,
         block_keys, picks);
}

}  // namespace onelane::cuda
