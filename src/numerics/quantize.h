// The block quantisers of the architecture (spec/model.md appendix A), writing codes and scales.
//
// A block is a run of consecutive values that shares one scale. A block that holds a NaN or an infinity gets a NaN
// scale: the fault stays visible downstream, in its own row, instead of being clamped into a plausible number.
#pragma once

#include <cstdint>
#include <span>

namespace onelane {

// A.1: e4m3 codes with a power-of-two scale. amax is floored at 1e-4 and multiplied by float(1/448); values are divided
// by the scale, clamped to +-448 and rounded to nearest even. Writes x.size() codes; returns the e8m0 scale code.
uint8_t quantize_fp8_block(std::span<const float> x, uint8_t* codes);

// A.3: e2m1 codes with a power-of-two scale; amax floored at 6 * 2^-126. Writes x.size() nibbles, two a byte, the even
// element in the low nibble (x.size() must be even); returns the e8m0 scale code.
uint8_t quantize_fp4_block(std::span<const float> x, uint8_t* packed);

// A.4: e2m1 codes with an e4m3 scale of amax / 6, amax floored at 6 * 2^-9; no second-level scale. Packing as above;
// returns the e4m3 scale code.
uint8_t quantize_nvfp4_block(std::span<const float> x, uint8_t* packed);

// bf16(float(q) * s) of each value after the quantiser above, block by block over the row; x.size() must be a multiple
// of `block`. In place.
void requantize_fp8(std::span<float> x, int block);
void requantize_fp4(std::span<float> x, int block);
void requantize_nvfp4(std::span<float> x, int block);

}  // namespace onelane
