#include "kernels/reference/linear.h"

#include <cstring>

#include "base/check.h"
#include "numerics/formats.h"
#include "numerics/quantize.h"

namespace onelane::reference {
namespace {

constexpr int kFp4Block = 32;

uint8_t byte_at(const std::byte* data, size_t index) { return std::to_integer<uint8_t>(data[index]); }

// Activation row `row` as the product sees it.
std::vector<double> activation_row(const Matrix& w, const ActivationRows& x, int row) {
  const bf16* source = x.data + static_cast<size_t>(row) * x.stride;
  std::vector<float> values(w.in);
  for (int k = 0; k < w.in; ++k) values[k] = bf16_to_float(source[k]);
  if (w.act_block > 0) requantize_fp8(values, w.act_block);
  return {values.begin(), values.end()};
}

}  // namespace

void decode_weight_row(const Matrix& w, int out, double* values) {
  const size_t row = out;
  switch (w.kind) {
    case Matrix::Kind::kFp8: {
      const int tiles = (w.in + w.block - 1) / w.block;
      const uint8_t* scales = w.scale + row / w.block * tiles;
      for (int k = 0; k < w.in; ++k) {
        const double scale = e8m0_to_float(scales[k / w.block]);
        values[k] = e4m3_to_float(byte_at(w.data, row * w.in + k)) * scale;
      }
      return;
    }
    case Matrix::Kind::kFp4: {
      const uint8_t* scales = w.scale + row * (w.in / kFp4Block);
      for (int k = 0; k < w.in; ++k) {
        const uint8_t pair = byte_at(w.data, (row * w.in + k) / 2);
        const double scale = e8m0_to_float(scales[k / kFp4Block]);
        values[k] = e2m1_to_float(static_cast<uint8_t>(k % 2 == 0 ? pair : pair >> 4)) * scale;
      }
      return;
    }
    case Matrix::Kind::kBf16:
      for (int k = 0; k < w.in; ++k) {
        bf16 code;
        std::memcpy(&code, w.data + (row * w.in + k) * sizeof(code), sizeof(code));
        values[k] = bf16_to_float(code);
      }
      return;
    case Matrix::Kind::kNone:
      break;
  }
  ONELANE_CHECK(false, "a product needs a matrix");
}

std::vector<float> multiply(const Matrix& w, const ActivationRows& x, int first, int count) {
  ONELANE_CHECK(first >= 0 && first + count <= w.out, "weight rows out of range");
  std::vector<std::vector<double>> activations;
  for (int row = 0; row < x.count; ++row) activations.push_back(activation_row(w, x, row));
  std::vector<double> weights(w.in);
  std::vector<float> y(static_cast<size_t>(x.count) * count);
  for (int out = 0; out < count; ++out) {
    decode_weight_row(w, first + out, weights.data());
    for (int row = 0; row < x.count; ++row) {
      const std::vector<double>& activation = activations[row];
      double sum = 0;
      for (int k = 0; k < w.in; ++k) sum += activation[k] * weights[k];
      y[static_cast<size_t>(row) * count + out] = static_cast<float>(sum);
    }
  }
  return y;
}

std::vector<float> multiply(const Matrix& w, const bf16* x, int rows) {
  return multiply(w, {x, rows, static_cast<size_t>(w.in)}, 0, w.out);
}

std::vector<bf16> multiply_rounded(const Matrix& w, const bf16* x, int rows) {
  const std::vector<float> y = multiply(w, x, rows);
  std::vector<bf16> rounded(y.size());
  for (size_t i = 0; i < y.size(); ++i) rounded[i] = float_to_bf16(y[i]);
  return rounded;
}

}  // namespace onelane::reference
