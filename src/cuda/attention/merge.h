// What the Hopper kernels share: how a row's entries and outputs are dealt out to the blocks of a cluster, and what
// becomes of the merged sums.
#pragma once

#include <cstdint>

#include "cuda/attention/cluster.h"
#include "cuda/attention/finish.h"
#include "cuda/ptx/memory.h"
#include "kernels/attention/plan.h"

namespace onelane::cuda {

inline constexpr int kDim = ONELANE_ATTENTION_DIM;
inline constexpr int kRope = ONELANE_ATTENTION_ROPE_DIM;
inline constexpr int kBlocks = kDim / 64;  // of 64 dims: 128 bytes of bf16
inline constexpr int kMaxSplits = 8;
inline constexpr int kFewUnits = 20;  // of a chunk of cluster.cu with 8 or 16 heads
inline constexpr int kItemBytes = 32 * 8 * 4;  // 32 dims of 8 heads as floats: what a warp merges at a time

// n / p.splits
__device__ __forceinline__ int by_splits(const AttentionParams& p, int n) {
  return static_cast<int>(__umulhi(n, p.splits_magic));
}

// The outputs of H heads as items, dealt out to the blocks of a cluster: item / (H / 8) is the chunk of 32 dims.
template <int H>
struct Items {
  static constexpr int kCount = kDim / 32 * H / 8;
  static __device__ __forceinline__ int owner(const AttentionParams& p, int item) { return item * p.splits / kCount; }
  static __device__ __forceinline__ int first(const AttentionParams& p, int rank) {
    return by_splits(p, rank * kCount + p.splits - 1);
  }
  // Room for a block's items from one block, in items.
  static __device__ __forceinline__ int stride(const AttentionParams& p) { return by_splits(p, kCount + p.splits - 1); }
};

// The units of a row (8 entries of one list), first those of the window, and which of them are a block's.
struct Share {
  int window, extra;  // lengths
  int window_units;
  int begin, end;

  template <bool kSplit>
  static __device__ __forceinline__ Share of(const AttentionParams& p, int window, int extra, int rank) {
    const int window_units = (window + 7) / 8;
    const int units = window_units + (extra + 7) / 8;
    if (!kSplit) return {window, extra, window_units, 0, units};
    return {window, extra, window_units, by_splits(p, units * rank), by_splits(p, units * (rank + 1))};
  }

  __device__ __forceinline__ bool is_extra(int unit) const { return unit >= window_units; }

  // The index of entry `e` of a unit; -1 past the end. The pointers are the row's.
  __device__ __forceinline__ int index(const int32_t* window_indices, const int32_t* extra_indices, int unit,
                                       int e) const {
    const bool from_extra = is_extra(unit);
    const int slot = (unit - (from_extra ? window_units : 0)) * 8 + e;
    if (unit >= end || slot >= (from_extra ? extra : window)) return -1;
    return __ldcg((from_extra ? extra_indices : window_indices) + slot);
  }

  // Its place, given the index; `nothing` is no_record().
  template <int W, int X>
  __device__ __forceinline__ RecordPlace place(const AttentionParams& p, int unit, int index,
                                               const uint8_t* nothing) const {
    if (W != X && is_extra(unit)) return place_of<X>(p.extra, index, nothing);
    return place_of<W>(is_extra(unit) ? p.extra : p.window, index, nothing);
  }
};

// What a head's sums of 2^(S - most) * record are to be multiplied with, given that of 2^(S - most): `total`. `most` is
// -inf for a row without entries. Stores lse if `stores`.
__device__ __forceinline__ float inverse_denominator(const AttentionParams& p, int row, int head, float most,
                                                     float total, float sink, bool stores) {
  const bool empty = most == -INFINITY;
  if (stores && p.lse != nullptr) {
    p.lse[static_cast<int64_t>(row) * p.heads + head] = empty ? INFINITY : (most + log2f(total)) * 0.6931471805599453f;
  }
  // A sink far above the scores makes the denominator infinite and the output zero, as it should be.
  return empty ? 0.0f : ptx::reciprocal(total + ptx::exp2_approx(sink * 1.4426950408889634f - most));
}

// 8 dims from `dim` on of one head (of the grid's), `place` being theirs. Lanes 8 and 16 apart have the rest of the
// chunk of 32 dims. `angles`: the row's, if p.positions is not null.
__device__ __forceinline__ void finish_octet(const AttentionParams& p, int dim, const OutputPlace& place,
                                             float (&value)[8], const float* angles) {
  if (is_rotated(p, dim)) {
    const float* of_dim = angles + (dim - kFirstRotated) / 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float cosine = of_dim[i], sine = of_dim[kRope / 2 + i];
      const float x = value[2 * i], y = value[2 * i + 1];
      value[2 * i] = x * cosine + y * sine;
      value[2 * i + 1] = y * cosine - x * sine;
    }
  }
  if (p.output == ONELANE_OUT_BF16) {
    *reinterpret_cast<uint4*>(p.out + place.value * 2) =
        make_uint4(ptx::pack_bf16(value[0], value[1]), ptx::pack_bf16(value[2], value[3]),
                   ptx::pack_bf16(value[4], value[5]), ptx::pack_bf16(value[6], value[7]));
    return;
  }
  float magnitude = 0;
#pragma unroll
  for (const float v : value) magnitude = fmaxf(magnitude, fabsf(v));
  magnitude = fmaxf(magnitude, __shfl_xor_sync(0xffffffff, magnitude, 8));
  magnitude = fmaxf(magnitude, __shfl_xor_sync(0xffffffff, magnitude, 16));
  // 2^ceil(log2(x / 448)) by its bits: 448 is 1.75 * 2^8.
  const uint32_t bits = __float_as_uint(fmaxf(magnitude, 1e-4f));
  const uint32_t code = (bits >> 23) - 8 + ((bits & 0x7fffff) > 0x600000 ? 1 : 0);
  const float to_codes = __uint_as_float((254 - code) << 23);
  uint32_t packed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) packed[i] = ptx::pack_e4m3(value[2 * i] * to_codes, value[2 * i + 1] * to_codes);
  const uint2 codes = make_uint2(packed[0] | packed[1] << 16, packed[2] | packed[3] << 16);
  *reinterpret_cast<uint2*>(p.out + place.value) = codes;
  if (dim % 32 == 0) p.out_scales[place.scale] = static_cast<uint8_t>(code);
}

// Launches `kernel` with a block, or a cluster of params.splits, a row and `block_heads` heads.
template <class Kernel>
cudaError_t launch_hopper(Kernel kernel, AttentionParams params, int block_heads, int threads, int shared_bytes,
                          cudaStream_t stream) {
  if (params.splits > kMaxSplits) return cudaErrorInvalidValue;
  params.splits_magic = static_cast<uint32_t>((uint64_t{1} << 32) / static_cast<uint32_t>(params.splits)) + 1;
  params.groups_log2 = 0;
  while ((block_heads << params.groups_log2) < params.heads) ++params.groups_log2;
  const int64_t blocks = (int64_t{params.rows} << params.groups_log2) * params.splits;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  // Belongs to the kernel on the current device, not to the launch: a capture does not record it.
  const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(params.splits);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = params.splits > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, params);
}

// Calls launch.operator()<W, X>() for formats that attention::cluster_takes.
template <class Launch>
cudaError_t with_formats(const attention::ListFormats& formats, Launch&& launch) {
  switch (formats.window) {
    case ONELANE_KV_BF16:
      return launch.template operator()<ONELANE_KV_BF16, ONELANE_KV_BF16>();
    case ONELANE_KV_V4:
      return launch.template operator()<ONELANE_KV_V4, ONELANE_KV_V4>();
    case ONELANE_KV_V41_FP8:
      if (formats.extra == ONELANE_KV_V41_FP8) {
        return launch.template operator()<ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP8>();
      }
      return launch.template operator()<ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP4>();
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace onelane::cuda
