// Elementary operations on one row, shared by the stages of the reference kernels.
#pragma once

#include <vector>

#include "kernels/kernels.h"
#include "kernels/rope.h"

namespace onelane::reference {

inline size_t offset(int row, int width) { return static_cast<size_t>(row) * static_cast<size_t>(width); }

double sigmoid(double x);

std::vector<float> to_floats(const bf16* values, int count);

// A.6: out[i] = round(weight[i] * (x[i] * rsqrt(mean(x^2) + eps))); weight null: no weight. `out` may be `x`.
void rms_norm(const bf16* x, const bf16* weight, int width, float eps, bf16* out);

// Rotates the last 64 of `width` values by the position's angles (3.2) and rounds them; the others stay.
void rope_tail(bf16* values, int width, const RopeAngles& angles, bool inverse = false);

// Natural-order Walsh-Hadamard transform of 128 values, scaled by 128^-0.5 and rounded (3.4). Butterflies of stride
// 1, 2, ... 64 in float: EXACT.
void hadamard(bf16* values);

// Encodes a row of bf16 values as record `index` of a block.
void store_record(const RecordBlock& block, int index, const bf16* values);

// Decodes record `index` of a block into record_width(block.format) floats.
void load_record(const RecordBlock& block, int index, float* values);

// Where a compressed entry (or index key) of a sequence lies: record `index` of `block`.
struct EntryPlace {
  RecordBlock block;
  int index = 0;
};
EntryPlace entry_place(const StepRows& rows, const PagedCache& cache, int slot, int entry);

}  // namespace onelane::reference
