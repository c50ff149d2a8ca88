#include "kernels/cpu/tables.h"

#include <cstddef>

#include "numerics/formats.h"

namespace onelane::cpu {
namespace {

std::array<float, 256> scale_table(float factor) {
  std::array<float, 256> table{};
  for (size_t code = 0; code < table.size(); ++code) table[code] = e8m0_to_float(static_cast<uint8_t>(code)) * factor;
  return table;
}

}  // namespace

const std::array<float, 256> kFp8WeightScale = scale_table(256.0f);
const std::array<float, 256> kFp4WeightScale = scale_table(0.5f);

}  // namespace onelane::cpu
