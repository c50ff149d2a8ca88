// Products of bf16 rows with few outputs, where reading the weights is all the work: a warp keeps its weights in
// registers, 32 columns of them, and takes the rows in tiles of 16. Each of a block's warps has its own columns; their
// sums are added in shared memory, warp by warp. A row's sums are the same in any tile and any place of it.
//
// Of 32 columns lane 4 g + t has the 8 from 8 t on, of rows g and g + 8 and of output g: of the two products over 16
// columns the first takes the lanes' first four. Rows and weights agree on it, which is all that a product asks for.
#pragma once

#include "cuda/ptx/mma.h"
#include "kernels/kernels.h"

namespace onelane::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kTileColumns = 32;  // of a warp
inline constexpr int kSumStride = 40;  // floats between the rows of a warp's sums: keeps stores off each other's banks

struct RowTile {
  uint4 low, high;
};

// A lane's part of rows [first_row, first_row + 16); zeros past `rows`, and everywhere unless `wanted`.
__device__ __forceinline__ RowTile load_row_tile(const bf16* x, int64_t stride, int first_row, int rows, int column,
                                                 bool wanted, int lane) {
  const int row = first_row + lane / 4;
  const bf16* from = x + row * stride + column + 8 * (lane % 4);
  RowTile tile = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
  if (wanted && row < rows) tile.low = *reinterpret_cast<const uint4*>(from);
  if (wanted && row + 8 < rows) tile.high = *reinterpret_cast<const uint4*>(from + 8 * stride);
  return tile;
}

__device__ __forceinline__ void store_row_tile(bf16* x, int64_t stride, int first_row, int rows, int column,
                                               const RowTile& tile, int lane) {
  const int row = first_row + lane / 4;
  bf16* to = x + row * stride + column + 8 * (lane % 4);
  if (row < rows) *reinterpret_cast<uint4*>(to) = tile.low;
  if (row + 8 < rows) *reinterpret_cast<uint4*>(to + 8 * stride) = tile.high;
}

__device__ __forceinline__ void multiply_row_tile(float (&sum)[4], const RowTile& x, const uint4& weights) {
  const uint32_t first[4] = {x.low.x, x.high.x, x.low.y, x.high.y};
  const uint32_t second[4] = {x.low.z, x.high.z, x.low.w, x.high.w};
  ptx::mma_bf16(sum, first, weights.x, weights.y);
  ptx::mma_bf16(sum, second, weights.z, weights.w);
}

// Sums of a warp: float [16 rows][kSumStride].
__device__ __forceinline__ void store_sums(float* sums, const float (&sum)[4], int first_output, int lane) {
  float* to = sums + lane / 4 * kSumStride + first_output + 2 * (lane % 4);
  *reinterpret_cast<float2*>(to) = make_float2(sum[0], sum[1]);
  *reinterpret_cast<float2*>(to + 8 * kSumStride) = make_float2(sum[2], sum[3]);
}

// Four neighbouring outputs of a row over all warps.
template <int kWarps>
__device__ __forceinline__ float4 add_sums(const float* sums, int row, int first_output) {
  float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    const float4 part = *reinterpret_cast<const float4*>(sums + (warp * kTileRows + row) * kSumStride + first_output);
    total.x += part.x;
    total.y += part.y;
    total.z += part.z;
    total.w += part.w;
  }
  return total;
}

}  // namespace onelane::cuda
