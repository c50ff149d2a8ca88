#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace onelane {

RopeFrequencies make_rope_frequencies(double base, double factor, double beta_fast, double beta_slow, double original_positions) {
  RopeFrequencies table;
  // The dimension at which a frequency turns `n` times over the original context.
  const auto correction = [&](double turns) {
    return kRopeDim * std::log(original_positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  const double low = std::max(std::floor(correction(beta_fast)), 0.0);
  const double high = std::min(std::ceil(correction(beta_slow)), kRopeDim - 1.0);
  for (int i = 0; i < kRopeDim / 2; ++i) {
    // Single precision on purpose, twice rounded: the published tables, which the model was trained with, are made so.
    const float plain = 1.0f / std::pow(static_cast<float>(base), static_cast<float>(2 * i) / kRopeDim);
    table.frequency[i] = plain;
    if (factor <= 1.0) continue;
    const auto ramp = static_cast<float>(std::clamp((i - low) / std::max(high - low, 0.001), 0.0, 1.0));
    const float smooth = 1.0f - ramp;
    table.frequency[i] = plain / static_cast<float>(factor) * (1.0f - smooth) + plain * smooth;
  }
  return table;
}

RopeAngles rope_angles(const RopeFrequencies& table, int position) {
  RopeAngles angles;
  for (int i = 0; i < kRopeDim / 2; ++i) {
    const float angle = static_cast<float>(position) * table.frequency[i];
    angles.cos[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
    angles.sin[i] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
  return angles;
}

void rotate(float* values, const RopeAngles& angles, bool inverse) {
  for (int i = 0; i < kRopeDim / 2; ++i) {
    const float even = values[2 * i];
    const float odd = values[2 * i + 1];
    const float sine = inverse ? -angles.sin[i] : angles.sin[i];
    values[2 * i] = even * angles.cos[i] - odd * sine;
    values[2 * i + 1] = even * sine + odd * angles.cos[i];
  }
}

}  // namespace onelane
