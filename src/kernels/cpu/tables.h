// Scales of weight blocks as floats, with the factor that the expansion of the codes leaves out.
#pragma once

#include <array>

namespace onelane::cpu {

// 2^(code - 127) * 256 for e4m3 weights: their bits, read as a half float, are 2^-8 of the value.
extern const std::array<float, 256> kFp8WeightScale;
// 2^(code - 127) / 2 for e2m1 weights, which are expanded to twice their value.
extern const std::array<float, 256> kFp4WeightScale;

}  // namespace onelane::cpu
