// Collapse and mixing products of the hyper-connection stream, shared by mix_streams and head.
#include "kernels/cpu/targets.h"
//
#include "kernels/cpu/linear-inl.h"

#if defined(ONELANE_CPU_STREAMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONELANE_CPU_STREAMS_INL_H_
#undef ONELANE_CPU_STREAMS_INL_H_
#else
#define ONELANE_CPU_STREAMS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {

inline double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// out = round(sum_j w[j] * stream[j]) as floats, padded; `stream` is one row's 4 copies.
inline HWY_ATTR void CollapseRow(const bf16* stream, int dim, const float* w, float* out) {
  const DD d;
  const DH dh;
  int i = 0;
  for (; i + L <= dim; i += L) {
    VD sum = hn::Mul(hn::Set(d, w[0]), WidenBf16(stream + i));
    for (int j = 1; j < kStreams; ++j) {
      sum = hn::MulAdd(hn::Set(d, w[j]), WidenBf16(stream + offset(j, dim) + i), sum);
    }
    hn::StoreU(RoundBf16(dh, hn::DemoteTo(dh, sum)), dh, out + i);
  }
  for (; i < dim; ++i) {
    double sum = 0;
    for (int j = 0; j < kStreams; ++j) sum += static_cast<double>(w[j]) * bf16_to_float(stream[offset(j, dim) + i]);
    out[i] = round_bf16(static_cast<float>(sum));
  }
  for (; i < padded(dim); ++i) out[i] = 0;
}

// Outputs [begin, end) of fn [count, 4 * dim] with padded stream rows, unscaled: m [rows, kMixes].
inline HWY_ATTR void MixProducts(const float* fn, int width, int begin, int end, const double* const* x, int rows,
                                 double* m) {
  for (int n = begin; n < end; n += kOutputs) {
    PlainRows<float> weights;
    for (int c = 0; c < kOutputs; ++c) weights.row[c] = fn + offset(std::min(n + c, end - 1), width);
    TileRows<false>(weights, width, x, rows, hn::Zero(D4()), [&](int row, const double* sums) HWY_ATTR {
      std::copy_n(sums, std::min(kOutputs, end - n), m + offset(row, kMixes) + n);
    });
  }
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
