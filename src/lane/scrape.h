// A server's /metrics, as a bench reads it: Prometheus text to samples, and from vLLM's, SGLang's and our own names the
// few numbers that a window is judged by. What a server does not say is not known; it is never 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "http/client.h"

namespace onelane {

enum class EngineKind { kVllm, kSglang, kOther };  // whose metric names; kOther: none of them

// kLib is llm-inference-bench's reading (spec/operations.md 1.3): only lines of vllm: and sglang:, no '}' inside
// labels, plain numbers, and a lookup finds the first line whose name begins with what is asked for. kExact is
// Prometheus' text format and whole names; samples of one name are added up. Both leave out tensor-parallel ranks other
// than 0.
enum class MetricLookup { kExact, kLib };

struct MetricSample {
  std::string name;
  std::vector<std::pair<std::string, std::string>> labels;
  double value = 0;

  // "" without such a label.
  std::string_view label(std::string_view key) const;
};

class MetricsPage {
 public:
  // Lines that are not understood are left out, as are values that are not finite.
  static MetricsPage parse(std::string_view text, MetricLookup lookup = MetricLookup::kExact);

  std::optional<double> value(std::string_view name) const;
  // Of samples with this label.
  std::optional<double> value(std::string_view name, std::string_view key, std::string_view label) const;
  const MetricSample* find(std::string_view name) const;
  const std::vector<MetricSample>& samples() const { return samples_; }

 private:
  MetricLookup lookup_ = MetricLookup::kExact;
  std::vector<MetricSample> samples_;
};

// One reading. Counters are totals since the server's start.
struct ServerReading {
  HttpClock::time_point at;  // half way between asking and answer
  double took_s = 0;
  std::optional<double> running, waiting, kv_usage;
  std::optional<double> generation_tokens, prompt_tokens, prefill_seconds, prefills;
  std::optional<double> drafts, draft_tokens, accepted_tokens;
  std::vector<double> accepted_by_position;
  std::optional<double> steps;          // of the model, where the server counts them
  std::optional<double> accept_length;  // SGLang's gauge: tokens a step
};

ServerReading read_metrics(const MetricsPage& page, EngineKind engine);

// GET /metrics. An error (kIo) if it does not come within `seconds` or not with status 200.
Result<MetricsPage> fetch_metrics(HttpClient& client, MetricLookup lookup, double seconds = 5);
Result<ServerReading> scrape(HttpClient& client, EngineKind engine, MetricLookup lookup, double seconds = 5);

}  // namespace onelane
