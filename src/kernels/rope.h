// Rotary position embedding over the last 64 dims (spec/model.md 3.2): adjacent pairs, complex multiply in float.
#pragma once

#include "kernels/kernels.h"

namespace onelane {

// The 32 frequencies base^(-2i/64), with YaRN when factor > 1: divided by `factor` above the correction range of
// beta_fast/beta_slow, blended inside it. YaRN adds no attention factor here (trap 8).
RopeFrequencies make_rope_frequencies(double base, double factor, double beta_fast, double beta_slow, double original_positions);

// Cosine and sine of every pair at `position`: the angle is float(position) * frequency rounded to float, its cosine
// and sine are accurate (taken in double), since near position 10^6 a fast sine is useless (trap 57).
struct RopeAngles {
  float cos[kRopeDim / 2];
  float sin[kRopeDim / 2];
};
RopeAngles rope_angles(const RopeFrequencies& table, int position);

// Rotates 64 values in place; `inverse` rotates by the negative angle. The caller rounds.
void rotate(float* values, const RopeAngles& angles, bool inverse = false);

}  // namespace onelane
