// The stage `experts` in pieces. A *pair* is one row's use of one expert: pair row * topk + slot for the routed ones,
// pair rows * topk + row for the shared one. Pairs of the same expert stand together as columns of a *tile*, so that
// its weights are read once for all of them.
//
//   prepare   x -> codes; pairs -> tiles
//   up        a[pair] = round(weight * silu(w1 x) * (w3 x)) of every tile
//   quantise  a -> codes
//   down      y[pair] = round(w2 a)
//   sum       y[row], slots in order, the shared expert last
//
// Every column of a product is computed for itself, in an order that the matrix's shape fixes: which tile a pair is in,
// and where, changes no bit.
#pragma once

#include "cuda/numerics.h"
#include "cuda/stages.h"

namespace onelane::cuda::moe {

// What the products have in common; arrays of pairs are indexed by pair.
struct ExpertsCall {
  const Stage* stage = nullptr;
  const ExpertsArgs* args = nullptr;
  const ExpertPointers* experts = nullptr;  // on the device

  int rows() const { return stage->rows.count; }
  int routed_pairs() const { return rows() * args->topk; }
  int pairs() const { return routed_pairs() + rows(); }
};

// Columns of one expert, kWidth at most.
template <int kWidth>
struct Tile {
  ExpertPointers expert;
  int32_t shared;  // 0 or 1
  int32_t count;
  int32_t pairs[kWidth];
};

// Activations as e4m3 codes, for the kernels of experts_product.cu: [count, ceil(width / 128) * 128], of each 128
// values first those of lane 0 of four, then lane 1 ...; of a lane 8 neighbouring values of each of the four blocks of
// 32, the even ones first. That is the order in which a lane has e2m1 weights after decoding.
struct Codes {
  uint8_t* codes = nullptr;
  float* scales = nullptr;  // [count, width / block]
  int width = 0;
  int block = 0;

  int64_t row_bytes() const { return (width + 127) / 128 * 128; }
};
Codes take_codes(const Stage& stage, int count, int width, int block);

// Fills `codes` from x [count, codes.width].
void quantise(const ExpertsCall& call, const bf16* x, int count, const Codes& codes);

// Tiles of all pairs, and how many there are, at most max_tiles. Shared ones first.
template <int kWidth>
int max_tiles(const ExpertsCall& call) {
  const int routed = call.routed_pairs();
  const int by_expert = call.args->expert_count + routed / kWidth;
  return (call.rows() + kWidth - 1) / kWidth + (routed < by_expert ? routed : by_expert);
}
// Quantises x into `codes` on the way.
template <int kWidth>
void prepare(const ExpertsCall& call, const Codes& codes, Tile<kWidth>* tiles, int32_t* tile_count);

// Whether the matrices are of the kinds and widths that up and down take: fp8 or fp4 at 16-byte addresses, activations
// quantised alike for all.
bool can_stream(const ExpertsArgs& args);

// All of the stage but the sum, into y [pairs, dim].
void stream_experts(const ExpertsCall& call, bf16* y);
// The same for any matrices, slowly.
void plain_experts(const ExpertsCall& call, bf16* y);

// a of the contract's formula, before its rounding, from gate and up before theirs.
__device__ __forceinline__ float activation(float gate, float up, float weight, float limit) {
  // Compared so that a NaN passes; nothing fused, so that every kernel gives the same bits.
  float g = round_bf16(gate), u = round_bf16(up);
  g = limit < g ? limit : g;
  u = u < -limit ? -limit : limit < u ? limit : u;
  return __fmul_rn(weight, __fmul_rn(__fdiv_rn(g, __fadd_rn(1.0f, expf(-g))), u));
}

}  // namespace onelane::cuda::moe
