// Products with the checkpoint's matrices: y = x W^T (kernels.h Matrix), for every stage that has one.
#pragma once

#include <initializer_list>
#include <span>

#include "cuda/stage.h"

namespace onelane::cuda {

// One product. Activations are quantised first where the matrix says so (act_block > 0), in blocks of act_block.
struct Product {
  const Matrix* weights = nullptr;
  int first_out = 0;        // rows [first_out, first_out + outs) of the matrix
  int outs = 0;             // 0: all
  const bf16* x = nullptr;  // [rows, x_stride], the first weights->in values of each
  int64_t x_stride = 0;
  int rows = 0;
  // One of the two: y[row * y_stride + out - first_out], rounded to bf16, or float as summed.
  bf16* rounded = nullptr;
  float* exact = nullptr;
  int64_t y_stride = 0;
  bool add = false;  // to what `exact` holds
};

// Products that do not depend on each other, in as few launches as they fit. Any shape that the loader admits; fast for
// whole blocks of 32 along `in`. Every y is a function of its row of x and the matrix alone, to the bit.
void multiply_all(const Stage& stage, std::span<const Product> products);
inline void multiply(const Stage& stage, std::initializer_list<Product> products) {
  multiply_all(stage, {products.begin(), products.size()});
}

}  // namespace onelane::cuda
