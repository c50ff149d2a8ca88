// Products of many rows: bound by the tensor cores. A block makes a tile of 128 outputs of 128 or 32 rows; lines of
// weights and of activations come through a ring of stages. Weights are the first operand, as in few_rows.cu, and sums
// are taken in the same order.
#include "base/check.h"
#include "cuda/linear/format.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kOuts = 128;    // of a block: 2 warps times kOutTiles
constexpr int kOutTiles = 4;  // of 16 outputs, of a warp
constexpr int kRowWarps = 4;
constexpr int kMostStages = 4, kFewestStages = 2;

// A stage of the ring: weights, activations (panels of a line a row), scales as floats.
template <class F, int kRows>
struct Stages {
  static constexpr int kWeights = kOuts * kLine;
  static constexpr int kActivations = F::kActLines * kRows * kLine;
  static constexpr int kWeightScales = F::kScaled ? F::kUnits * kOuts * 4 : 0;
  static constexpr int kActScales = F::kQuantised ? F::kUnits * kRows * 4 : 0;
  static constexpr int kBytes = kWeights + kActivations + kWeightScales + kActScales;
  static constexpr int kTotals = kOuts * kRows * 4;
};

// Waits until the second oldest of `stages` is there: all but the last `stages` - 2 copies.
__device__ __forceinline__ void wait_for_next(int stages) {
  if (stages == 4) ptx::copies_wait<2>();
  if (stages == 3) ptx::copies_wait<1>();
  if (stages == 2) ptx::copies_wait<0>();
}

template <class F, int kRows>
__global__ void __launch_bounds__(kThreads, 1) multiply_many(const __grid_constant__ Pieces pieces, int ring_stages) {
  using S = Stages<F, kRows>;
  constexpr int kRowTiles = kRows / (8 * kRowWarps);
  ONELANE_DYNAMIC_SHARED(uint8_t, shared);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const Piece& piece = piece_of(pieces, blockIdx.x);
  const int row_blocks = (piece.rows + kRows - 1) / kRows;
  const int first_out = (blockIdx.x - piece.first_block) / row_blocks * kOuts;
  const int first_row = (blockIdx.x - piece.first_block) % row_blocks * kRows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int warp_out = warp / kRowWarps * (16 * kOutTiles), warp_row = warp % kRowWarps * (8 * kRowTiles);
  const int64_t row_bytes = F::row_bytes(piece.in);
  float* totals = reinterpret_cast<float*>(shared + ring_stages * S::kBytes);  // [sum][thread]

  const int scale_row = piece.first_out + min(first_out + static_cast<int>(threadIdx.x), piece.outs - 1);
  uint32_t codes[F::kUnits];  // the scales of the last issued line of row `threadIdx.x`, on their way
  const auto issue = [&](const Place& place, uint8_t* to) {
    if (place.there(piece)) {
      const int chunk = threadIdx.x % 8;
      const int blocks = place.end - place.block;  // may be more than a line
      const uint32_t weights = static_cast<uint32_t>(__cvta_generic_to_shared(to));
      if (chunk * 16 < blocks * F::kBlockBytes) {
        const std::byte* from = piece.data + static_cast<int64_t>(place.block) * F::kBlockBytes + chunk * 16;
#pragma unroll
        for (int row = threadIdx.x / 8; row < kOuts; row += kThreads / 8) {
          const int64_t matrix_row = piece.first_out + min(first_out + row, piece.outs - 1);
          ptx::copy_async(weights + row * kLine + chunk_place<F::kWeightBytes>(row, chunk) * 16,
                          from + matrix_row * row_bytes);
        }
      }
      const uint32_t activations = weights + S::kWeights;
#pragma unroll
      for (int panel = 0; panel < F::kActLines; ++panel) {
        const int at = panel * kLine + chunk * 16;
        if (at >= blocks * F::kActBlockBytes) break;
        const int64_t begin = static_cast<int64_t>(place.block) * F::kActBlockBytes + at;
#pragma unroll
        for (int row = threadIdx.x / 8; row < kRows; row += kThreads / 8) {
          const int x_row = min(first_row + row, piece.rows - 1);
          const uint8_t* from = F::kQuantised ? piece.codes + static_cast<int64_t>(x_row) * piece.in
                                              : reinterpret_cast<const uint8_t*>(piece.x + x_row * piece.x_stride);
          ptx::copy_async(activations + (panel * kRows + row) * kLine + chunk_place<F::kActBytes>(row, chunk) * 16,
                          from + begin);
        }
      }
      if constexpr (F::kQuantised) {
        // scale_stride is whole tiles of rows, so there is no end to mind.
        const uint32_t scales = activations + S::kActivations + S::kWeightScales;
        for (int i = threadIdx.x; i < F::kUnits * kRows / 4; i += kThreads) {
          const int unit = i / (kRows / 4), row = i % (kRows / 4) * 4;
          const int block = place.block + unit * (F::kUnit / kBlock);
          if (block >= place.end) break;
          ptx::copy_async(scales + (unit * kRows + row) * 4,
                          piece.code_scales +
                              static_cast<int64_t>(block * kBlock >> piece.act_shift) * piece.scale_stride + first_row +
                              row);
        }
      }
    }
    ptx::copies_commit();
    if constexpr (F::kScaled) {
#pragma unroll
      for (int unit = 0; unit < F::kUnits; ++unit) {
        const int block = place.block + unit * (F::kUnit / kBlock);
        const bool wanted = threadIdx.x < kOuts && place.there(piece) && block < place.end;
        codes[unit] = wanted ? weight_scale(piece, scale_row, block * kBlock) : 0;
      }
    }
  };
  const auto store_codes = [&](uint8_t* to) {
    if constexpr (F::kScaled) {
      if (threadIdx.x >= kOuts) return;
      float* scales = reinterpret_cast<float*>(to + S::kWeights + S::kActivations);
#pragma unroll
      for (int unit = 0; unit < F::kUnits; ++unit) scales[unit * kOuts + threadIdx.x] = F::factor(codes[unit]);
    }
  };

  float acc[kOutTiles][kRowTiles][4] = {};
  const auto for_each_sum = [&](auto visit) {
#pragma unroll
    for (int i = 0; i < kOutTiles * kRowTiles * 4; ++i) visit(totals[i * kThreads + threadIdx.x], i);
  };
  for_each_sum([](float& total, int) { total = 0; });

  // Lines are cut where segments are.
  Place next = Place::of_segment(piece, F::kUnit, 0);
  for (int i = 0; i < ring_stages - 1; ++i) {
    issue(next, shared + i * S::kBytes);
    store_codes(shared + i * S::kBytes);
    next = next.after(piece, F::kUnit, F::kBlocks);
  }
  int slot = 0, free_slot = ring_stages - 1;
  uint8_t* uncoded = nullptr;
  for (Place place = Place::of_segment(piece, F::kUnit, 0); place.there(piece);) {
    if (uncoded != nullptr) store_codes(uncoded);
    wait_for_next(ring_stages);
    __syncthreads();
    uncoded = shared + free_slot * S::kBytes;
    issue(next, uncoded);
    next = next.after(piece, F::kUnit, F::kBlocks);

    const uint8_t* weights = shared + slot * S::kBytes;
    const uint8_t* activations = weights + S::kWeights;
    const float* weight_scales = reinterpret_cast<const float*>(activations + S::kActivations);
    const float* act_scales = weight_scales + S::kWeightScales / 4;
    constexpr int kUnitBlocks = F::kUnit / kBlock;
#pragma unroll 1
    for (int unit = 0; unit < F::kUnits; ++unit) {
      if (place.block + unit * kUnitBlocks >= place.end) break;
      float d[kOutTiles][kRowTiles][4] = {};
#pragma unroll
      for (int u = 0; u < F::kUnitSteps; ++u) {
        constexpr int kPanelSteps = F::kSteps / F::kActLines;
        const int s = unit * F::kUnitSteps + u;
        uint32_t x[kRowTiles][2 * F::kProducts];
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          const int row = warp_row + n * 8 + g;
          F::activations(
              load_part<F::kActBytes>(activations + (s / kPanelSteps * kRows + row) * kLine, row, s % kPanelSteps, t),
              x[n]);
        }
#pragma unroll
        for (int m = 0; m < kOutTiles; ++m) {
          const int row = warp_out + m * 16 + g;
          uint32_t a[F::kProducts][4];
          F::weights(load_part<F::kWeightBytes>(weights + row * kLine, row, s, t),
                     load_part<F::kWeightBytes>(weights + (row + 8) * kLine, row + 8, s, t), a);
#pragma unroll
          for (int n = 0; n < kRowTiles; ++n) F::multiply(d[m][n], a, x[n]);
        }
      }
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        float2 act_scale = make_float2(1, 1);
        if constexpr (F::kQuantised) {
          act_scale = *reinterpret_cast<const float2*>(act_scales + unit * kRows + warp_row + n * 8 + 2 * t);
        }
#pragma unroll
        for (int m = 0; m < kOutTiles; ++m) {
          float scale[2] = {};
          if constexpr (F::kScaled) {
            scale[0] = weight_scales[unit * kOuts + warp_out + m * 16 + g];
            scale[1] = weight_scales[unit * kOuts + warp_out + m * 16 + g + 8];
          }
          F::promote(acc[m][n], d[m][n], scale[0], scale[1], act_scale);
        }
      }
    }

    const int segment = place.segment;
    place = place.after(piece, F::kUnit, F::kBlocks);
    if (place.segment != segment) {
      for_each_sum([&](float& total, int i) {
        float& sum = acc[i / (4 * kRowTiles)][i / 4 % kRowTiles][i % 4];
        total += sum;
        sum = 0;
      });
    }
    slot = slot + 1 == ring_stages ? 0 : slot + 1;
    free_slot = free_slot + 1 == ring_stages ? 0 : free_slot + 1;
  }
  ptx::copies_wait();

  for_each_sum([&](float& total, int i) {
    const int row = first_row + warp_row + i / 4 % kRowTiles * 8 + 2 * t + i % 2;
    const int out = first_out + warp_out + i / (4 * kRowTiles) * 16 + g + i % 4 / 2 * 8;
    if (row < piece.rows && out < piece.outs) store_output(piece, row, out, total);
  });
}

template <class F, int kRows>
bool launch_many(const Stage& stage, Pieces& pieces) {
  using S = Stages<F, kRows>;
  const int limit = shared_memory_limit();
  int stages = kMostStages;
  while (stages > kFewestStages && S::kTotals + stages * S::kBytes > limit) --stages;
  const int bytes = S::kTotals + stages * S::kBytes;
  if (bytes > limit) return false;
  const int blocks = tile_blocks(pieces, kOuts, kRows);
  launch(stage, "multiply_many", multiply_many<F, kRows>, dim3(blocks), dim3(kThreads), bytes, pieces, stages);
  return true;
}

}  // namespace

void multiply_many_rows(const Stage& stage, const PieceKind& kind, Pieces& pieces) {
  int rows = 0;
  for (int i = 0; i < pieces.count; ++i) rows = std::max(rows, pieces.piece[i].rows);
  if (rows > 64 && stage.arch == 90 && multiply_many_rows_sm90(stage, kind, pieces)) return;
  with_format(kind, [&](auto format) {
    using F = decltype(format);
    // Where there is little shared memory, small tiles.
    if (rows > 64 && launch_many<F, 128>(stage, pieces)) return;
    ONELANE_CHECK((launch_many<F, 32>(stage, pieces)), "the device has less shared memory than any known one");
  });
}

}  // namespace onelane::cuda
