// Products of shapes and addresses that do not come in whole 16 bytes, and what prepares activations for others.
#include "cuda/linear/decode.h"
#include "cuda/linear/piece.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float weight(const Piece& piece, Matrix::Kind kind, int row, int k) {
  const float value = code_value(kind, piece.data, static_cast<int64_t>(row) * piece.in + k);
  return kind == Matrix::Kind::kBf16 ? value : value * e8m0_to_float(weight_scale(piece, row, k));
}

// A warp for an output of a row.
__global__ void __launch_bounds__(kThreads) multiply_any(const __grid_constant__ Piece piece, Matrix::Kind kind) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (i >= static_cast<int64_t>(piece.rows) * piece.outs) return;
  const int row = static_cast<int>(i / piece.outs), out = static_cast<int>(i % piece.outs);
  float sum = 0;
  for (int k = lane; k < piece.in; k += 32) {
    float x;
    if (piece.codes != nullptr) {
      x = e4m3_to_float(piece.codes[static_cast<int64_t>(row) * piece.in + k]) *
          piece.code_scales[static_cast<int64_t>(k >> piece.act_shift) * piece.scale_stride + row];
    } else {
      x = bf16_to_float(piece.x[row * piece.x_stride + k]);
    }
    sum = fmaf(x, weight(piece, kind, piece.first_out + out, k), sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) store_output(piece, row, out, sum);
}

// Lanes take eight values each; in whole 16 bytes or not.
__global__ void __launch_bounds__(kThreads)
    quantise(const __grid_constant__ Piece piece, bool aligned, uint8_t* codes, float* scales) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int per_row = piece.in / 8;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool wanted = i < static_cast<int64_t>(piece.rows) * per_row;
  const int row = static_cast<int>(i / per_row), k = static_cast<int>(i % per_row) * 8;
  uint4 values[1] = {};
  if (wanted) {
    const bf16* x = piece.x + row * piece.x_stride + k;
    const auto pair = [&](int j) { return x[j] | static_cast<uint32_t>(x[j + 1]) << 16; };
    values[0] = aligned ? *reinterpret_cast<const uint4*>(x) : make_uint4(pair(0), pair(2), pair(4), pair(6));
  }
  uint2 eight[1];
  uint32_t scale;
  quantise_lane(values, piece.act_shift, eight, scale);
  if (!wanted) return;
  *reinterpret_cast<uint2*>(codes + static_cast<int64_t>(row) * piece.in + k) = eight[0];
  const int block = k >> piece.act_shift;
  if (block << piece.act_shift == k)
    scales[static_cast<int64_t>(block) * piece.scale_stride + row] = e8m0_to_float(scale);
}

__global__ void __launch_bounds__(kThreads) copy_rows(const __grid_constant__ Piece piece, bf16* to) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(piece.rows) * piece.in) return;
  to[i] = piece.x[i / piece.in * piece.x_stride + i % piece.in];
}

dim3 blocks_for(int64_t threads) { return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)); }

}  // namespace

void multiply_any_shape(const Stage& stage, Matrix::Kind kind, const Piece& piece) {
  launch(stage, "multiply_any", multiply_any, blocks_for(int64_t{32} * piece.rows * piece.outs), dim3(kThreads), 0,
         piece, kind);
}

void quantise_rows(const Stage& stage, Piece& piece) {
  constexpr int kRows = 128;  // the largest tile of rows
  piece.scale_stride = (piece.rows + kRows - 1) / kRows * kRows;
  uint8_t* codes = stage.workspace->take<uint8_t>(static_cast<size_t>(piece.rows) * piece.in);
  float* scales = stage.workspace->take<float>(static_cast<size_t>(piece.in >> piece.act_shift) * piece.scale_stride);
  const bool aligned = reinterpret_cast<uintptr_t>(piece.x) % 16 == 0 && piece.x_stride % 8 == 0;
  launch(stage, "quantise", quantise, blocks_for(static_cast<int64_t>(piece.rows) * (piece.in / 8)), dim3(kThreads), 0,
         piece, aligned, codes, scales);
  piece.codes = codes;
  piece.code_scales = scales;
}

void align_rows(const Stage& stage, Piece& piece) {
  bf16* copy = stage.workspace->take<bf16>(static_cast<size_t>(piece.rows) * piece.in);
  launch(stage, "copy_rows", copy_rows, blocks_for(static_cast<int64_t>(piece.rows) * piece.in), dim3(kThreads), 0,
         piece, copy);
  piece.x = copy;
  piece.x_stride = piece.in;
}

}  // namespace onelane::cuda
