// Captures of models that are made up: a reference with known distributions, and others at a known distance from it.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "lane/capture.h"

namespace onelane {

// The position that a model with these probabilities (by token, summing to 1) has where `token` stands.
inline CapturePosition position_of(const std::vector<double>& p, int32_t token) {
  std::vector<int32_t> order(p.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)]; });
  CapturePosition out;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto logprob = static_cast<float>(std::log(p[static_cast<size_t>(order[i])]));
    if (i < kCaptureTop) out.top.emplace_back(order[i], logprob);
    if (order[i] != token) continue;
    out.logprob = logprob;
    out.rank = static_cast<uint32_t>(i + 1);
  }
  out.tail = tail_mass(out.top);
  return out;
}

inline std::vector<double> softmax(const std::vector<double>& logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  std::vector<double> out;
  double sum = 0;
  for (const double logit : logits) sum += out.emplace_back(std::exp(logit - most));
  for (double& p : out) p /= sum;
  return out;
}

inline Capture captured(std::vector<CaptureDocument> documents) {
  Capture out{.model = "made up",
              .weights_sha256 = "",
              .corpus_sha256 = "",
              .build = "test",
              .path = "prefill",
              .documents = std::move(documents)};
  out.corpus_sha256 = corpus_digest(out.documents);
  return out;
}

}  // namespace onelane
