// Sparse-MLA decode for any device from compute capability 8.0 on: a block a part of a row, and if a row has several
// parts a second kernel that merges them.
//
//   attend_part   grid: rows x groups of H heads x splits. A block walks its share of the row's entries in chunks of 32
//                 and writes the outputs, or, split, its sums to the workspace
//   merge_parts   grid: rows x heads. Adds the parts' sums and writes the outputs
//
// A chunk, in a block of 8 warps. Warp w owns dims [64 w, 64 w + 64) of records and sums:
//
//   records -> registers      a chunk ahead
//   registers -> tile         decoded to bf16 once, for both products
//   S^T[entries, H] = KV Q^T  mma.sync; warps 2 k and 2 k + 1 over the 128 dims they decoded, 16 entries each. The four
//                             partial scores are added through shared memory
//   P = 2^(S - M)             M: the largest score so far, rounded up to an integer; a warp takes a head, a lane an
//   entry O^T[64, H] += KV^T P      mma.sync, on the warp's own dims of the tile
//
// Heads are the narrow side of both products, as in cluster.cu, and M is an integer for the reason told there: the bits
// of P depend neither on splits nor on chunks, which change only the order of float sums.
//
// A unit is 8 entries of one list. A row's units, first those of the window, are dealt out evenly among its parts at
// run time, whatever its lengths are. No atomics, no counters: a part's place in the workspace is its own, and
// merge_parts adds them in their order.
#include <climits>

#include "cuda/attention/any_record.h"
#include "cuda/attention/combine.h"
#include "cuda/attention/finish.h"
#include "cuda/attention/softmax.h"
#include "kernels/attention/layout.h"
#include "kernels/attention/plan.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "mma.sync of bf16 needs compute capability 8.0: leave older architectures out"
#endif

namespace onelane::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kDim = ONELANE_ATTENTION_DIM;
constexpr int kUnits = 4;  // of 8 entries, in a chunk
constexpr int kEntries = 8 * kUnits;
constexpr int kQuarters = 4;        // pairs of warps, in the first product
constexpr int kMergeThreads = 128;  // four dims each

// A call, with what the kernels here need beside its arguments.
struct CombineParams {
  AttentionParams call;
  RecordShape window, extra;
  float* sums;  // [rows, splits, heads, 512]
  float2*
      parts;  // [rows, splits, heads]: M and the sum of 2^(S - M); M is -inf, and `sums` not written, without entries
};

// Shared memory of a block, in bytes from its start.
template <int H>
struct Layout {
  // bf16 [8][kEntries][64] and [8][H][64]: rows of 128 bytes, their 16-byte pieces swizzled (piece ^ row % 8).
  static constexpr int kTileBlock = kEntries * 128;
  static constexpr int kTile = 0;
  static constexpr int kQ = kTile + 8 * kTileBlock;
  static constexpr int kScores = kQ + 8 * H * 128;  // float [kQuarters][H][kEntries], see score_place
  static constexpr int kPRow = 2 * kEntries + 16;   // so that the rows of a matrix lie in different banks
  static constexpr int kP = kScores + kQuarters * H * kEntries * 4;  // bf16 [H][kEntries], in rows of kPRow bytes
  static constexpr int kShift = kP + H * kPRow;                      // float [H]: 2^(last M - this one)
  static constexpr int kPlaces = kShift + H * 4;                     // FoundRecord [2][kEntries]
  static constexpr int kBytes = kPlaces + 2 * kEntries * 16;
  // At the end, in place of tile and queries: float [H][512], see sum_place.
  static constexpr int kSums = 0;

  static_assert(kPlaces % 16 == 0 && kP % 16 == 0 && H * kDim * 4 <= kScores);
  static_assert(kBytes == attention::block_shared_bytes(ONELANE_PATH_COMBINE, H, 1), "what the plan says");
};

// Where a head's row of sums holds a dim, likewise.
__device__ __forceinline__ int sum_place(int head, int dim) { return dim ^ (head / 2 % 4 * 8); }

// The units of a row and which of them are a part's.
struct Share {
  int window, extra;  // lengths
  int window_units;
  int begin, end;

  __device__ __forceinline__ Share(int window_length, int extra_length, int part, int splits)
      : window(window_length), extra(extra_length), window_units((window_length + 7) / 8) {
    const int64_t units = window_units + (extra_length + 7) / 8;
    begin = static_cast<int>(units * part / splits);
    end = static_cast<int>(units * (part + 1) / splits);
  }
  __device__ __forceinline__ bool in_extra(int unit) const { return unit >= window_units; }
  // The index of entry `e` of the chunk that begins at unit `first`; -1 past the end.
  __device__ __forceinline__ int index(const AttentionParams& p, int row, int first, int e) const {
    const int unit = first + e / 8;
    const EntryList& list = in_extra(unit) ? p.extra : p.window;
    const int slot = (unit - (in_extra(unit) ? window_units : 0)) * 8 + e % 8;
    if (unit >= end || slot >= (in_extra(unit) ? extra : window)) return -1;
    return __ldcg(list.indices + row * list.index_stride + slot);
  }
};

template <int H>
__global__ void __launch_bounds__(kThreads, H == 8 ? 2 : 1) attend_part(const __grid_constant__ CombineParams c) {
  using At = Layout<H>;
  constexpr int kTiles = H / 8;  // of 8 heads
  constexpr int kWarpHeads = H / kWarps;
  ONELANE_DYNAMIC_SHARED(uint8_t, shared_memory);
  const AttentionParams& p = c.call;
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory));
  const auto floats = [&](int at) { return reinterpret_cast<float*>(shared_memory + at); };

  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int quarter = warp / 2;
  const int part = static_cast<int>(blockIdx.x % static_cast<uint32_t>(p.splits));
  const int work = static_cast<int>(blockIdx.x / static_cast<uint32_t>(p.splits));
  const int row = work / (p.heads / H);
  const int first_head = work % (p.heads / H) * H;

  ptx::wait_for_previous_kernel();

  // The warp pair's dims of Q.
  const uint16_t* q = p.q + (static_cast<int64_t>(row) * p.heads + first_head) * kDim;
  for (int i = threadIdx.x % 64; i < 2 * H * 8; i += 64) {
    const int piece = i % 8, head = i / 8 % H, block = 2 * quarter + i / (8 * H);
    ptx::copy_async(shared + At::kQ + (block * H + head) * 128 + (piece ^ (head % 8)) * 16,
                    q + head * kDim + block * 64 + piece * 8);
  }
  ptx::copies_commit();

  const Share share(p.window.length(row), p.extra.length(row), part, p.splits);
  const int e = threadIdx.x;  // the entry of a chunk that this thread looks up
  int index = e < kEntries ? share.index(p, row, share.begin, e) : -1;

  // Puts the place of entry e of the chunk that begins at unit `first` into copy `copy`.
  const auto places = [&](int copy) {
    return reinterpret_cast<FoundRecord*>(shared_memory + At::kPlaces) + copy * kEntries;
  };
  const auto put_place = [&](int first, int copy) {
    if (e >= kEntries) return;
    const bool from_extra = share.in_extra(first + e / 8);
    places(copy)[e] = find_record(from_extra ? p.extra : p.window, from_extra ? c.extra : c.window, index);
  };
  const Stripe window_stripe = stripe_of(c.window.format, warp, t);
  const Stripe extra_stripe = stripe_of(c.extra.format, warp, t);
  const auto stripe_in = [&](int unit) {  // member by member, or both would have to lie in memory
    const bool from_extra = share.in_extra(unit);
    return Stripe{from_extra ? extra_stripe.coding : window_stripe.coding,
                  from_extra ? extra_stripe.data : window_stripe.data,
                  from_extra ? extra_stripe.scale : window_stripe.scale};
  };
  RawStripe raw[kUnits];
  const auto load_chunk = [&](int first, int copy) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      raw[unit] = load_stripe(places(copy)[unit * 8 + g], stripe_in(first + unit));
    }
  };

  put_place(share.begin, 0);
  __syncthreads();
  load_chunk(share.begin, 0);

  // Needed at the very end of an unsplit row: asked for while the first records are on their way. Head k of a warp is
  // warp + k * kWarps; of the sums a lane writes dims 128 i + 4 lane, of which only the last are rotated.
  const bool split = p.splits > 1;
  float sinks[kWarpHeads] = {};
  Rotation rotation;
  if (!split) {
#pragma unroll
    for (int k = 0; k < kWarpHeads; ++k) sinks[k] = load_sink(p, first_head + warp + k * kWarps);
    rotation = load_rotation(p, row, kDim - 128 + 4 * lane);
  }

  float o[4][kTiles][4] = {};  // dims 64 warp + 16 m + g (+ 8), heads 8 j + 2 t (+ 1)
  float most[kWarpHeads];      // M of the warp's heads
  float total[kWarpHeads];     // sums of 2^(S - M) over the lane's entries
#pragma unroll
  for (int k = 0; k < kWarpHeads; ++k) {
    most[k] = -INFINITY;
    total[k] = 0;
  }

  int copy = 0;
  for (int first = share.begin; first < share.end; first += kUnits, copy ^= 1) {
    const int next = first + kUnits;
    const bool more = next < share.end;
    if (more && e < kEntries) index = share.index(p, row, next, e);

      // To the tile. Where there is no entry it gets zeros, which a P of zero leaves harmless.
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      uint32_t v[8];
      decode_stripe(stripe_in(first + unit).coding, raw[unit], v);
      const uint32_t to = shared + At::kTile + warp * At::kTileBlock + (unit * 8 + g) * 128;
      ptx::store_shared(to + ((2 * t) ^ g) * 16, make_uint4(v[0], v[1], v[2], v[3]));
      ptx::store_shared(to + ((2 * t + 1) ^ g) * 16, make_uint4(v[4], v[5], v[6], v[7]));
    }
    ptx::copies_wait();
    ptx::named_barrier(1 + quarter, 64);

    // Partial scores: 16 entries, 128 dims in steps of 32.
    float s[kTiles][4] = {};
    const int half = warp % 2;
    const int r = lane % 8;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int block = 2 * quarter + step / 2;
      const int piece = step % 2 * 4;
      uint32_t kv[2][4];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int entry = half * 16 + lane / 8 % 2 * 8 + r;
        ptx::load_matrices(
            kv[k], shared + At::kTile + block * At::kTileBlock + entry * 128 + ((piece + 2 * k + lane / 16) ^ r) * 16);
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        uint32_t of_q[4];
        ptx::load_matrices(of_q, shared + At::kQ + (block * H + 8 * j + r) * 128 + ((piece + lane / 8) ^ r) * 16);
        ptx::mma_bf16(s[j], kv[0], of_q[0], of_q[1]);
        ptx::mma_bf16(s[j], kv[1], of_q[2], of_q[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = 8 * j + 2 * t + i % 2;
        const int entry = half * 16 + i / 2 * 8 + g;
        floats(At::kScores)[(quarter * H + head) * kEntries + score_place(head, entry)] = s[j][i];
      }
    }
    if (more) put_place(next, copy ^ 1);
    __syncthreads();
    if (more) load_chunk(next, copy ^ 1);

    // P of the warp's heads, an entry a lane.
    const bool none = places(copy)[lane].data == nullptr;
#pragma unroll
    for (int k = 0; k < kWarpHeads; ++k) {
      const int head = warp + k * kWarps;
      float score = 0;
#pragma unroll
      for (int from = 0; from < kQuarters; ++from) {
        score += floats(At::kScores)[(from * H + head) * kEntries + score_place(head, lane)];
      }
      score = none ? -INFINITY : score_of(score, p.scale_log2);
      const auto [base, shift] = raise(most[k], warp_max(none ? -INFINITY : for_largest(score)));
      const float weight = ptx::exp2_approx(score - base);
      total[k] = total[k] * shift + weight;
      if (lane == 0) floats(At::kShift)[head] = shift;
      reinterpret_cast<uint16_t*>(shared_memory + At::kP + head * At::kPRow)[lane] =
          static_cast<uint16_t>(ptx::pack_bf16(weight, weight));
    }
    __syncthreads();

    // Sums.
    uint32_t of_p[kTiles][4];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      ptx::load_matrices(of_p[j], shared + At::kP + (8 * j + r) * At::kPRow + lane / 8 * 16);
      const float shift[2] = {floats(At::kShift)[8 * j + 2 * t], floats(At::kShift)[8 * j + 2 * t + 1]};
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][j][i] *= shift[i % 2];
      }
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int entry = k * 16 + lane / 16 * 8 + r;
        uint32_t kv[4];
        ptx::load_matrices_transposed(
            kv, shared + At::kTile + warp * At::kTileBlock + entry * 128 + ((2 * m + lane / 8 % 2) ^ r) * 16);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) ptx::mma_bf16(o[m][j], kv, of_p[j][2 * k], of_p[j][2 * k + 1]);
      }
    }
    // No barrier here: a warp's part of the tile is next written by itself, and the rest after the barriers above.
  }
  ptx::let_next_kernel_start();

  // A head's sums to the warp that has its M.
  ptx::copies_wait();  // of a share without units
  __syncthreads();
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = 8 * j + 2 * t + i % 2;
        const int dim = 64 * warp + 16 * m + i / 2 * 8 + g;
        floats(At::kSums)[head * kDim + sum_place(head, dim)] = o[m][j][i];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kWarpHeads; ++k) {
    total[k] = warp_sum(total[k]);
    const int in_block = warp + k * kWarps;
    const int head = first_head + in_block;
    const int64_t part_head = (static_cast<int64_t>(row) * p.splits + part) * p.heads + head;
    if (split && lane == 0) c.parts[part_head] = make_float2(most[k], total[k]);
    if (split && most[k] == -INFINITY) continue;
#pragma unroll 1
    for (int dim = 4 * lane; dim < kDim; dim += 128) {
      const float4 sums =
          *reinterpret_cast<const float4*>(floats(At::kSums) + in_block * kDim + sum_place(in_block, dim));
      if (split) {
        *reinterpret_cast<float4*>(c.sums + part_head * kDim + dim) = sums;
      } else {
        finish(p, row, head, dim, sums, most[k], total[k], sinks[k], rotation);
      }
    }
  }
}

__global__ void __launch_bounds__(kMergeThreads, 8) merge_parts(const __grid_constant__ CombineParams c) {
  const AttentionParams& p = c.call;
  const int row = static_cast<int>(blockIdx.x / static_cast<uint32_t>(p.heads));
  const int head = static_cast<int>(blockIdx.x % static_cast<uint32_t>(p.heads));
  const int dim = 4 * threadIdx.x;
  const int lane = threadIdx.x % 32;

  // Inputs of the call: whoever wrote them was done before attend_part got past its own wait, and every block of
  // attend_part is past it when this kernel starts.
  const float sink = load_sink(p, head);
  const Rotation rotation = load_rotation(p, row, dim);
  ptx::wait_for_previous_kernel();

  // A lane looks at parts lane, lane + 32, ...; past the first-level cache, which may be older than attend_part.
  const int64_t first = static_cast<int64_t>(row) * p.splits * p.heads + head;  // its part s: + s * heads
  float most = -INFINITY;
  for (int part = lane; part < p.splits; part += 32) {
    most = fmaxf(most, __ldcg(c.parts + first + static_cast<int64_t>(part) * p.heads).x);
  }
  most = warp_max(most);
  float total = 0;
  float4 sums = make_float4(0, 0, 0, 0);
  for (int begin = 0; begin < p.splits; begin += 32) {
    float factor = 0;
    if (begin + lane < p.splits) {
      const float2 part = __ldcg(c.parts + first + static_cast<int64_t>(begin + lane) * p.heads);
      if (part.x != -INFINITY) {
        factor = ptx::exp2_approx(part.x - most);
        total += part.y * factor;
      }
    }
    const int parts = min(32, p.splits - begin);
#pragma unroll 8
    for (int i = 0; i < parts; ++i) {
      const float by = __shfl_sync(0xffffffff, factor, i);
      if (by == 0) continue;  // no entries: nothing was written
      const int64_t part_head = first + static_cast<int64_t>(begin + i) * p.heads;
      const float4 of_part = __ldcg(reinterpret_cast<const float4*>(c.sums + part_head * kDim + dim));
      sums.x += of_part.x * by;
      sums.y += of_part.y * by;
      sums.z += of_part.z * by;
      sums.w += of_part.w * by;
    }
  }
  ptx::let_next_kernel_start();
  finish(p, row, head, dim, sums, most, warp_sum(total), sink, rotation);
}

cudaError_t launch(void (*kernel)(CombineParams), int64_t blocks, int threads, int shared_bytes, bool dependent,
                   const CombineParams& params, cudaStream_t stream) {
  if (blocks > INT_MAX) return cudaErrorInvalidConfiguration;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, params);
}

template <int H>
cudaError_t launch_attend(bool dependent, const CombineParams& params, cudaStream_t stream) {
  // Every time: it is the present device's, and cheap.
  const cudaError_t allowed =
      cudaFuncSetAttribute(attend_part<H>, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout<H>::kBytes);
  if (allowed != cudaSuccess) return allowed;
  const int64_t blocks = int64_t{params.call.rows} * (params.call.heads / H) * params.call.splits;
  return launch(attend_part<H>, blocks, kThreads, Layout<H>::kBytes, dependent, params, stream);
}

RecordShape record_shape(onelane_kv_format format) {
  return {format, attention::record_data_bytes(format), attention::record_scale_bytes(format)};
}

}  // namespace

cudaError_t launch_combine(const onelane_attention_plan& plan, const AttentionParams& call, void* workspace,
                           cudaStream_t stream) {
  CombineParams params = {};
  params.call = call;
  params.window = record_shape(plan.shape.window_format);
  params.extra = record_shape(plan.shape.extra_format);
  params.sums = static_cast<float*>(workspace);
  params.parts = reinterpret_cast<float2*>(params.sums + size_t{static_cast<unsigned>(call.rows)} *
                                                             static_cast<size_t>(call.splits) *
                                                             static_cast<size_t>(call.heads) * kDim);
  const bool dependent = plan.device.arch >= 90;
  cudaError_t status = cudaErrorInvalidValue;
  switch (plan.block_heads) {
    case 8:
      status = launch_attend<8>(dependent, params, stream);
      break;
    case 16:
      status = launch_attend<16>(dependent, params, stream);
      break;
    case 32:
      status = launch_attend<32>(dependent, params, stream);
      break;
    default:
      break;
  }
  if (status != cudaSuccess || call.splits == 1) return status;
  return launch(merge_parts, int64_t{call.rows} * call.heads, kMergeThreads, 0, dependent, params, stream);
}

}  // namespace onelane::cuda
