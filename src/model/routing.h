// Routing: how often each expert of a synthetic model is to be picked.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/routing_trace.h"
#include "model/synthetic_bytes.h"

namespace onelane {

class Routing {
 public:
  // "uniform"; "zipf:S", S from 0 to 4: popularity proportional to rank^-S, which expert has which rank is another draw
  // in every layer; or "trace:F": the counts of a file (routing_trace.h). kInvalidArgument for anything else,
  // with the file's name where it is the file's fault.
  static Result<Routing> parse(const std::string& text);

  // No expert is preferred.
  bool uniform() const { return exponent_ == 0 && counts_.empty(); }
  // How popular the experts of a layer are among each other. A trace knows layers of the backbone alone: of a draft
  // stage (`layer` -1) it says nothing, and all experts are alike. kInvalidArgument where a trace lacks the layer, or
  // has another number of experts.
  Result<std::vector<double>> popularity(int layer, int experts, Random& random) const;

 private:
  double exponent_ = 0;
  RoutingTrace counts_;
};

// Router biases with which expert e is among the `topk` picks of a row with probability
// p(e) = min(0.98, c popularity[e]), c such that they sum to topk. With router logits of a standard normal
// distribution, as those of synthetic models are for random rows, a score is s = sqrt(softplus(z)), and e is
// picked when s + bias(e) exceeds the threshold t that the topk-th best is at. So bias(e) = t - Q(1 - p(e)) with Q the
// quantiles of s, and t = Q(1 - topk / experts), which makes the biases of equal experts zero. That t is the same for
// every row is an approximation, good for many experts. An expert that is never to be picked has p = 1e-7.
std::vector<float> router_bias(const std::vector<double>& popularity, int topk);

}  // namespace onelane
