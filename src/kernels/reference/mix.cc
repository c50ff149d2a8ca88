#include "kernels/reference/mix.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/vector_ops.h"
#include "numerics/formats.h"

namespace onelane::reference {
namespace {

void divide_by_row_sums(double (&comb)[kStreams][kStreams], double eps) {
  for (auto& row : comb) {
    double sum = eps;
    for (const double value : row) sum += value;
    for (double& value : row) value /= sum;
  }
}

void divide_by_column_sums(double (&comb)[kStreams][kStreams], double eps) {
  for (int k = 0; k < kStreams; ++k) {
    double sum = eps;
    for (const auto& row : comb) sum += row[k];
    for (auto& row : comb) row[k] /= sum;
  }
}

}  // namespace

std::vector<double> mix_products(const bf16* stream, int dim, const float* fn, int count, float eps) {
  const int width = kStreams * dim;
  const std::vector<float> x = to_floats(stream, width);
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double scale = 1.0 / std::sqrt(squares / width + eps);
  std::vector<double> m(count);
  for (int i = 0; i < count; ++i) {
    const float* weights = fn + offset(i, width);
    double sum = 0;
    for (int d = 0; d < width; ++d) sum += static_cast<double>(weights[d]) * x[d];
    m[i] = sum * scale;
  }
  return m;
}

void sinkhorn(double (&comb)[kStreams][kStreams], float eps, int iterations) {
  for (auto& row : comb) {
    const double max = *std::max_element(std::begin(row), std::end(row));
    double sum = 0;
    for (double& value : row) sum += value = std::exp(value - max);
    for (double& value : row) value = value / sum + eps;
  }
  divide_by_column_sums(comb, eps);
  for (int i = 1; i < iterations; ++i) {
    divide_by_row_sums(comb, eps);
    divide_by_column_sums(comb, eps);
  }
}

void collapse(const bf16* stream, int dim, const float* w, bf16* out) {
  for (int d = 0; d < dim; ++d) {
    double sum = 0;
    for (int j = 0; j < kStreams; ++j) sum += static_cast<double>(w[j]) * bf16_to_float(stream[offset(j, dim) + d]);
    out[d] = float_to_bf16(static_cast<float>(sum));
  }
}

}  // namespace onelane::reference
