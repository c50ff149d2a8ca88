// Hyper-connection arithmetic on one row's stream [4, dim] (spec/model.md 2.2).
#pragma once

#include <vector>

#include "kernels/kernels.h"

namespace onelane::reference {

// m[i] = (fn[i] . flatten(X)) * rsqrt(mean(X^2) + eps) for `count` rows of fn: one statistic over all 4 * dim values.
std::vector<double> mix_products(const bf16* stream, int dim, const float* fn, int count, float eps);

// In place: m[8..24] scaled and biased -> the doubly stochastic comb [4][4]. `iterations` counts the first softmax and
// column pass.
void sinkhorn(double (&comb)[kStreams][kStreams], float eps, int iterations);

// out[d] = round(sum_j w[j] X[j][d])
void collapse(const bf16* stream, int dim, const float* w, bf16* out);

}  // namespace onelane::reference
