// Engram: table lookup, projection, gated write into the stream (spec/model.md 7.1).
#include <algorithm>
#include <cmath>

#include "kernels/reference/linear.h"
#include "kernels/reference/stages.h"
#include "kernels/reference/vector_ops.h"
#include "numerics/formats.h"

namespace onelane::reference {
namespace {

constexpr int kTableBlock = 32;

// The row's table values in column order, bf16 [columns * width].
std::vector<bf16> look_up(const EngramArgs& args, const int32_t* table_rows) {
  std::vector<bf16> values;
  for (int column = 0; column < args.columns; ++column) {
    const uint8_t* codes = args.table + offset(table_rows[column], args.width);
    const uint8_t* scales = args.table_scale + offset(table_rows[column], args.width / kTableBlock);
    for (int i = 0; i < args.width; ++i) {
      values.push_back(float_to_bf16(e4m3_to_float(codes[i]) * e8m0_to_float(scales[i / kTableBlock])));
    }
  }
  return values;
}

// sigmoid of the signed root of the normalised product of copy and key; a product of exactly 0 gives 0.5.
float gate(const EngramArgs& args, int copy, const bf16* x, const bf16* key) {
  const bf16* q_weight = args.q_weight + offset(copy, args.dim);
  const bf16* k_weight = args.k_weight + offset(copy, args.dim);
  double x_squares = 0;
  double key_squares = 0;
  double product = 0;
  for (int d = 0; d < args.dim; ++d) {
    const double x_value = bf16_to_float(x[d]);
    const double key_value = bf16_to_float(key[d]);
    x_squares += x_value * x_value;
    key_squares += key_value * key_value;
    product += x_value * bf16_to_float(q_weight[d]) * bf16_to_float(k_weight[d]) * key_value;
  }
  const double norms =
      std::sqrt(x_squares / args.dim + args.norm_eps) * std::sqrt(key_squares / args.dim + args.norm_eps);
  const double dot = product / norms / std::sqrt(static_cast<double>(args.dim));
  if (dot == 0) return 0.5f;
  return static_cast<float>(sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6)), dot)));
}

}  // namespace

void engram(const StepRows& rows, const EngramArgs& args) {
  for (int row = 0; row < rows.count; ++row) {
    const std::vector<bf16> values = look_up(args, args.table_rows + offset(row, args.columns));
    const std::vector<bf16> projected = multiply_rounded(args.wkv, values.data(), 1);
    const bf16* value = projected.data() + offset(kStreams, args.dim);
    for (int j = 0; j < kStreams; ++j) {
      bf16* x = args.stream + offset(row * kStreams + j, args.dim);
      const float g = gate(args, j, x, projected.data() + offset(j, args.dim));
      for (int d = 0; d < args.dim; ++d) x[d] = float_to_bf16(bf16_to_float(x[d]) + g * bf16_to_float(value[d]));
    }
  }
}

}  // namespace onelane::reference
