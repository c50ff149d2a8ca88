#include "kernels/reference/vector_ops.h"

#include <array>
#include <cmath>

#include "base/check.h"
#include "numerics/formats.h"

namespace onelane::reference {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

std::vector<float> to_floats(const bf16* values, int count) {
  std::vector<float> floats(count);
  for (int i = 0; i < count; ++i) floats[i] = bf16_to_float(values[i]);
  return floats;
}

void rms_norm(const bf16* x, const bf16* weight, int width, float eps, bf16* out) {
  double squares = 0;
  for (int i = 0; i < width; ++i) {
    const double value = bf16_to_float(x[i]);
    squares += value * value;
  }
  const auto scale = static_cast<float>(1.0 / std::sqrt(squares / width + eps));
  for (int i = 0; i < width; ++i) {
    const float normed = bf16_to_float(x[i]) * scale;
    out[i] = float_to_bf16(weight == nullptr ? normed : bf16_to_float(weight[i]) * normed);
  }
}

void rope_tail(bf16* values, int width, const RopeAngles& angles, bool inverse) {
  bf16* tail = values + (width - kRopeDim);
  std::vector<float> turned = to_floats(tail, kRopeDim);
  rotate(turned.data(), angles, inverse);
  for (int i = 0; i < kRopeDim; ++i) tail[i] = float_to_bf16(turned[i]);
}

void hadamard(bf16* values) {
  std::vector<float> v = to_floats(values, kIndexDim);
  for (int stride = 1; stride < kIndexDim; stride *= 2) {
    for (int i = 0; i < kIndexDim; ++i) {
      if ((i & stride) != 0) continue;
      const float a = v[i];
      const float b = v[i + stride];
      v[i] = a + b;
      v[i + stride] = a - b;
    }
  }
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kIndexDim)));
  for (int i = 0; i < kIndexDim; ++i) values[i] = float_to_bf16(v[i] * scale);
}

void store_record(const RecordBlock& block, int index, const bf16* values) {
  const std::vector<float> floats = to_floats(values, record_width(block.format));
  encode_record(block.format, floats.data(), block.data(index), block.scales(index));
}

void load_record(const RecordBlock& block, int index, float* values) {
  decode_record(block.format, block.data(index), block.scales(index), values);
}

EntryPlace entry_place(const StepRows& rows, const PagedCache& cache, int slot, int entry) {
  const int page = entry / cache.per_page;
  ONELANE_CHECK(page < rows.pages_per_slot, "an entry beyond the sequence's page table");
  return {cache.block(rows.page_table[offset(slot, rows.pages_per_slot) + page]), entry % cache.per_page};
}

}  // namespace onelane::reference
