// The stage `experts` in pieces. A *pair* is one row's use of one expert: pair row * topk + slot for the routed ones,
// pair rows * topk + row for the shared one. Pairs of the same expert stand together as columns of a *tile*, so that
// its weights are read once for all of them.
//
//   prepare   x -> its quantised values; pairs -> tiles
//   up        a[pair] = round(weight * silu(w1 x) * (w3 x)) of every tile
//   quantise  a -> its quantised values
//   down      y[pair] = round(w2 a)
//   sum       y[row], slots in order, the shared expert last
//
// With few rows there are fewer launches: up and down make the tiles, and down quantises (experts_few.h).
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

// Quantised activations: f16 operands [count, width] (experts_units.h), of each 8 neighbours in the order 0 2 4 6 1 3 5
// 7, which is that of weights after decoding (experts_weights.h); what they are units of, [count, kSegments].
struct Activations {
  uint16_t* values = nullptr;
  float* units = nullptr;
  int width = 0;  // whole blocks
  int block = 0;  // 32 or 128
};
Activations take_activations(const Stage& stage, int count, int width, int block);

// Fills `to` from x [count, to.width]. With `waited` the kernel behind it does not start before what the kernel ahead
// of it made is there.
void quantise(const ExpertsCall& call, const bf16* x, int count, const Activations& to, bool waited);

// Tiles of all pairs, and how many there are, at most max_tiles. Shared ones first.
template <int kWidth>
int max_tiles(const ExpertsCall& call) {
  const int routed = call.routed_pairs();
  const int by_expert = call.args->expert_count + routed / kWidth;
  return (call.rows() + kWidth - 1) / kWidth + (routed < by_expert ? routed : by_expert);
}
// Quantises the stage's rows into `x` on the way.
template <int kWidth>
void prepare(const ExpertsCall& call, const Activations& x, Tile<kWidth>* tiles, int32_t* tile_count);

// Whether the matrices are of the kinds and widths that up and down take: fp8 or fp4 at 16-byte addresses, multiples of
// 128 wide, activations quantised alike for all.
bool can_stream(const ExpertsArgs& args);

// All of the stage but the sum, into y [pairs, dim].
void stream_experts(const ExpertsCall& call, bf16* y);
// Where that is right, on Hopper alone and for many rows (experts_many.h): the same to the bit. Returns y.
bool many_rows(const ExpertsCall& call);
bf16* many_experts(const ExpertsCall& call);
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
