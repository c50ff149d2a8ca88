// Router and experts (spec/model.md section 5).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "kernels/reference/linear.h"
#include "kernels/reference/stages.h"
#include "kernels/reference/vector_ops.h"
#include "numerics/formats.h"

namespace onelane::reference {
namespace {

float router_score(float z) {
  const double softplus = z > 20.0f ? z : std::log1p(std::exp(static_cast<double>(z)));
  return static_cast<float>(std::sqrt(softplus));
}

// Numbers of the topk largest biased scores, best first, ties to the lower number. A NaN counts as -inf, so that the
// choice stays a choice of experts.
void choose(const float* scores, const RouteArgs& args, int32_t* ids) {
  std::vector<float> biased(args.experts);
  for (int e = 0; e < args.experts; ++e) {
    const float value = scores[e] + args.bias[e];
    biased[e] = std::isnan(value) ? -std::numeric_limits<float>::infinity() : value;
  }
  std::vector<int32_t> order(args.experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return biased[a] > biased[b]; });
  std::copy_n(order.begin(), args.topk, ids);
}

void weigh(const float* scores, const RouteArgs& args, const int32_t* ids, float* weights) {
  double sum = 0;
  for (int k = 0; k < args.topk; ++k) sum += scores[ids[k]];
  for (int k = 0; k < args.topk; ++k) {
    double weight = scores[ids[k]];
    if (args.normalise) weight = sum == 0 ? 1.0 / args.topk : weight / (sum + args.norm_eps);
    weights[k] = static_cast<float>(weight * args.scale);
  }
}

float silu(float x) { return static_cast<float>(x / (1.0 + std::exp(-static_cast<double>(x)))); }

// y_e [dim] of one row; `weight` is applied before w2, which quantises what it gets.
std::vector<bf16> run_expert(const ExpertWeights& expert, const bf16* x, float weight, float limit) {
  const std::vector<bf16> gate = multiply_rounded(expert.w1, x, 1);
  const std::vector<bf16> up = multiply_rounded(expert.w3, x, 1);
  std::vector<bf16> a(gate.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const float g = std::min(bf16_to_float(gate[i]), limit);
    const float u = std::clamp(bf16_to_float(up[i]), -limit, limit);
    a[i] = float_to_bf16(weight * (silu(g) * u));
  }
  return multiply_rounded(expert.w2, a.data(), 1);
}

}  // namespace

void route(const StepRows& rows, const RouteArgs& args) {
  ONELANE_CHECK((args.bias == nullptr) != (args.tid2eid == nullptr), "a router scores or looks up, one of the two");
  ONELANE_CHECK(args.topk <= args.experts, "more experts chosen than there are");
  const std::vector<float> z = multiply(args.gate, args.x, rows.count);
  std::vector<float> scores(args.experts);
  for (int row = 0; row < rows.count; ++row) {
    for (int e = 0; e < args.experts; ++e) scores[e] = router_score(z[offset(row, args.experts) + e]);
    int32_t* ids = args.ids + offset(row, args.topk);
    if (args.tid2eid == nullptr) {
      choose(scores.data(), args, ids);
    } else {
      for (int k = 0; k < args.topk; ++k) {
        ids[k] = static_cast<int32_t>(args.tid2eid[offset(rows.token[row], args.topk) + k]);
        ONELANE_CHECK(ids[k] >= 0 && ids[k] < args.experts, "tid2eid names an expert that does not exist");
      }
    }
    weigh(scores.data(), args, ids, args.weights + offset(row, args.topk));
  }
}

void experts(const StepRows& rows, const ExpertsArgs& args) {
  std::vector<double> sum(args.dim);
  for (int row = 0; row < rows.count; ++row) {
    const bf16* x = args.x + offset(row, args.dim);
    std::fill(sum.begin(), sum.end(), 0.0);
    const auto add = [&](const ExpertWeights& expert, float weight) {
      const std::vector<bf16> y = run_expert(expert, x, weight, args.limit);
      for (int d = 0; d < args.dim; ++d) sum[d] += bf16_to_float(y[d]);
    };
    for (int k = 0; k < args.topk; ++k) {
      const int32_t id = args.ids[offset(row, args.topk) + k];
      ONELANE_CHECK(id >= 0 && id < args.expert_count, "no such expert");
      add(args.experts[id], args.weights[offset(row, args.topk) + k]);
    }
    add(args.shared, 1.0f);
    for (int d = 0; d < args.dim; ++d) args.y[offset(row, args.dim) + d] = float_to_bf16(static_cast<float>(sum[d]));
  }
}

}  // namespace onelane::reference
