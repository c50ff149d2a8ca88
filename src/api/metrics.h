// Metrics: what /metrics says, in Prometheus' text format.
//
// vLLM's names, so that dashboards and benchmark tools find what they know, and our own beside them as onelane_*.
// Families are sorted so that a plain name stands before longer names that extend it: tools that search for a name
// without reading to its end then find the right one. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace onelane {

class Metrics {
 public:
  explicit Metrics(std::string model_name);
  ~Metrics();

  // Of one request: from its arrival to its first token; between two deltas; at its end.
  void first_token(double seconds);
  void token_gap(double seconds);
  void finished(const RequestStats& stats, FinishReason reason, double seconds);
  // A finished answer to `route` (its pattern).
  void http_request(std::string_view route, int status);
  // Call it every second or so: steps since the last call count into the histogram of tokens per step.
  void sample(const EngineStats& stats);

  // The page of text.
  std::string text(const EngineStats& stats, int max_model_len);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onelane
