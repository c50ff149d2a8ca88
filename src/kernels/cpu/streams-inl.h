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

inline float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// out = round(sum_j w[j] * stream[j]) as floats, padded; `stream` is one row's 4 copies.
inline HWY_ATTR void CollapseRow(const bf16* stream, int dim, const float* w, float* out) {
  const DF d;
  int i = 0;
  for (; i + N <= dim; i += N) {
    VF sum = hn::Mul(hn::Set(d, w[0]), LoadBf16(d, stream + i));
    for (int j = 1; j < kStreams; ++j) {
      sum = hn::MulAdd(hn::Set(d, w[j]), LoadBf16(d, stream + offset(j, dim) + i), sum);
    }
    hn::StoreU(RoundBf16(d, sum), d, out + i);
  }
  for (; i < dim; ++i) {
    float sum = w[0] * bf16_to_float(stream[i]);
    for (int j = 1; j < kStreams; ++j) sum = std::fma(w[j], bf16_to_float(stream[offset(j, dim) + i]), sum);
    out[i] = round_bf16(sum);
  }
  for (; i < padded(dim); ++i) out[i] = 0;
}

// Outputs [begin, end) of fn [count, 4 * dim] with padded stream rows, unscaled: m [rows, kMixes].
inline HWY_ATTR void MixProducts(const float* fn, int width, int begin, int end, const float* const* x, int rows,
                                 float* m) {
  const ToFloat store{m, kMixes};
  for (int n = begin; n < end; n += kOutputs) {
    FloatRows weights;
    for (int c = 0; c < kOutputs; ++c) weights.row[c] = fn + offset(std::min(n + c, end - 1), width);
    TileRows(weights, width, x, rows,
             [&](int row, V4 sums) HWY_ATTR { store(row, n, std::min(kOutputs, end - n), sums); });
  }
}

}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
