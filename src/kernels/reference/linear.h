// Matrix products of the reference kernels: decode a weight row, take its dot product with every activation row.
//
// Both factors are exact (a code times a power of two), products and sums are double: what is left is the one rounding
// that the caller's contract asks for.
#pragma once

#include <vector>

#include "kernels/kernels.h"

namespace onelane::reference {

// Row `out` of the matrix, decoded: values [w.in]. A NaN scale gives NaN values.
void decode_weight_row(const Matrix& w, int out, double* values);

// Activation rows of a product; row r starts at data + r * stride.
struct ActivationRows {
  const bf16* data = nullptr;
  int count = 0;
  size_t stride = 0;
};

// x * W^T for the weight rows [first, first + count), not rounded to bf16: float [x.count, count]. Activations are
// quantised by A.1 in blocks of w.act_block first, unless it is 0.
std::vector<float> multiply(const Matrix& w, const ActivationRows& x, int first, int count);

// All of W, from contiguous activation rows [rows, w.in]: float [rows, w.out].
std::vector<float> multiply(const Matrix& w, const bf16* x, int rows);

// The same, rounded to bf16: what every linear of the model except gate, pooling, mixing and head yields (A.7).
std::vector<bf16> multiply_rounded(const Matrix& w, const bf16* x, int rows);

}  // namespace onelane::reference
