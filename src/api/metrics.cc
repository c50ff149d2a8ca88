#include "api/metrics.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "api/process_stats.h"

namespace onelane {
namespace {

using prometheus::ClientMetric;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// Bucket bounds as vLLM has them.
const Histogram::BucketBoundaries kFirstToken = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                                 0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                                 20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
const Histogram::BucketBoundaries kTokenGap = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,  0.15, 0.2,  0.3,
                                               0.4,   0.5,    0.75,  1.0,  2.5,   5.0,  7.5,   10.0, 20.0, 40.0, 80.0};
const Histogram::BucketBoundaries kRequest = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                                              30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
const Histogram::BucketBoundaries kStepTokens = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const Histogram::BucketBoundaries kRequestTokens = {1,    2,    5,    10,    20,    50,    100,    200,    500,
                                                    1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};

constexpr std::pair<FinishReason, const char*> kReasons[] = {{FinishReason::kStop, "stop"},
                                                             {FinishReason::kLength, "length"},
                                                             {FinishReason::kCancelled, "abort"},
                                                             {FinishReason::kDeadline, "deadline"},
                                                             {FinishReason::kError, "error"}};

// A name without what Prometheus appends, so that "x" sorts before "x_per_pos" although "x_total" would not.
std::string_view plain_name(std::string_view name) {
  constexpr std::string_view kTotal = "_total";
  return name.ends_with(kTotal) ? name.substr(0, name.size() - kTotal.size()) : name;
}

// Builds families from numbers that are counted elsewhere.
class Page {
 public:
  explicit Page(Labels labels) : labels_(std::move(labels)) {}

  void gauge(const char* name, const char* help, double value, Labels more = {}) {
    sample(family(name, help, MetricType::Gauge), std::move(more)).gauge.value = value;
  }
  void counter(const char* name, const char* help, double value, Labels more = {}) {
    sample(family(name, help, MetricType::Counter), std::move(more)).counter.value = value;
  }
  void histogram(const char* name, const char* help, const Histogram& histogram) {
    ClientMetric metric = histogram.Collect();
    metric.label = labels_;
    family(name, help, MetricType::Histogram).metric.push_back(std::move(metric));
  }
  std::string text() {
    std::stable_sort(families_.begin(), families_.end(), [](const MetricFamily& a, const MetricFamily& b) {
      return plain_name(a.name) < plain_name(b.name);
    });
    return prometheus::TextSerializer().Serialize(families_);
  }

 private:
  MetricFamily& family(const char* name, const char* help, MetricType type) {
    if (families_.empty() || families_.back().name != name) families_.push_back({name, help, type, {}});
    return families_.back();
  }
  ClientMetric& sample(MetricFamily& of, Labels more) {
    ClientMetric& metric = of.metric.emplace_back();
    metric.label = labels_;
    std::move(more.begin(), more.end(), std::back_inserter(metric.label));
    return metric;
  }

  Labels labels_;
  std::vector<MetricFamily> families_;
};

}  // namespace

struct Metrics::State {
  const std::string model_name;
  Histogram first_token{kFirstToken}, token_gap{kTokenGap};
  Histogram whole{kRequest}, queue{kRequest}, prefill{kRequest}, decode{kRequest};
  Histogram step_tokens{kStepTokens}, prompt_tokens{kRequestTokens}, answer_tokens{kRequestTokens};
  std::mutex mutex;  // of what follows
  std::map<FinishReason, uint64_t> finished;
  std::map<std::pair<std::string, int>, uint64_t> http;
  uint64_t last_steps = 0;
  uint64_t last_tokens = 0;
};

Metrics::Metrics(std::string model_name) : state_(new State{.model_name = std::move(model_name)}) {}
Metrics::~Metrics() = default;

void Metrics::first_token(double seconds) { state_->first_token.Observe(seconds); }
void Metrics::token_gap(double seconds) { state_->token_gap.Observe(seconds); }

void Metrics::finished(const RequestStats& stats, FinishReason reason, double seconds) {
  State& s = *state_;
  s.whole.Observe(seconds);
  s.queue.Observe(stats.queue_seconds);
  s.prefill.Observe(stats.prefill_seconds);
  s.decode.Observe(stats.decode_seconds);
  s.prompt_tokens.Observe(stats.prompt_tokens);
  s.answer_tokens.Observe(stats.tokens);
  const std::lock_guard lock(s.mutex);
  ++s.finished[reason];
}

void Metrics::http_request(std::string_view route, int status) {
  const std::lock_guard lock(state_->mutex);
  ++state_->http[{std::string(route), status}];
}

void Metrics::sample(const EngineStats& stats) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  // Cached prompt tokens were not computed.
  const uint64_t tokens = stats.prompt_tokens - stats.cached_tokens + stats.generated_tokens;
  const uint64_t steps = stats.steps - s.last_steps;
  if (steps > 0 && tokens >= s.last_tokens) {
    const double mean = static_cast<double>(tokens - s.last_tokens) / static_cast<double>(steps);
    for (uint64_t i = 0; i < steps; ++i) s.step_tokens.Observe(mean);
  }
  s.last_steps = stats.steps;
  s.last_tokens = tokens;
}

std::string Metrics::text(const EngineStats& stats, int max_model_len) {
  sample(stats);
  State& s = *state_;
  Page page({{"model_name", s.model_name}});
  const auto number = [](auto value) { return static_cast<double>(value); };
  const double pages = std::max(1, stats.pages);

  page.gauge("vllm:num_requests_running", "Requests in prefill or decode.", stats.running);
  page.gauge("vllm:num_requests_waiting", "Requests queued or spilled.", stats.waiting);
  page.gauge("vllm:kv_cache_usage_perc", "Share of the pages that running requests hold, 0 to 1.",
             stats.pages_used / pages);
  page.counter("vllm:prompt_tokens_total", "Prompt tokens.", number(stats.prompt_tokens));
  page.counter("vllm:prompt_tokens_cached_total", "Prompt tokens found in the prefix cache.",
               number(stats.cached_tokens));
  page.counter("vllm:generation_tokens_total", "Generated tokens.", number(stats.generated_tokens));
  page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               number(stats.prefix_queries));
  page.counter("vllm:prefix_cache_hits_total", "Of those, found.", number(stats.prefix_hits));
  page.counter("vllm:num_preemptions_total", "Requests that were spilled for others.", number(stats.preemptions));
  page.counter("vllm:spec_decode_num_drafts_total", "Draft blocks that were verified.", number(stats.draft_blocks));
  page.counter("vllm:spec_decode_num_draft_tokens_total", "Drafts that were verified.", number(stats.drafted_tokens));
  uint64_t accepted = 0;
  for (const uint64_t count : stats.accepted) accepted += count;
  page.counter("vllm:spec_decode_num_accepted_tokens_total", "Drafts that were accepted.", number(accepted));
  for (size_t i = 0; i < stats.accepted.size(); ++i) {
    page.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total", "Drafts accepted, by place in the block.",
                 number(stats.accepted[i]), {{"position", std::to_string(i)}});
  }
  {
    const std::lock_guard lock(s.mutex);
    for (const auto& [reason, name] : kReasons) {
      page.counter("vllm:request_success_total", "Finished requests, by reason.", number(s.finished[reason]),
                   {{"finished_reason", name}});
    }
    for (const auto& [key, count] : s.http) {
      page.counter("onelane_http_requests_total", "Answers, by route and status.", number(count),
                   {{"route", key.first}, {"status", std::to_string(key.second)}});
    }
  }
  page.histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", s.first_token);
  page.histogram("vllm:inter_token_latency_seconds", "Between two steps that gave a request tokens.", s.token_gap);
  page.histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", s.whole);
  page.histogram("vllm:request_queue_time_seconds", "Until the first prompt row was computed.", s.queue);
  page.histogram("vllm:request_prefill_time_seconds", "From there to the first token.", s.prefill);
  page.histogram("vllm:request_decode_time_seconds", "From the first token to the end.", s.decode);
  page.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", s.prompt_tokens);
  page.histogram("vllm:request_generation_tokens", "Generated tokens of a request.", s.answer_tokens);
  page.histogram("vllm:iteration_tokens_total", "Tokens computed per step, averaged over about a second.",
                 s.step_tokens);

  page.gauge("onelane_progress_age_seconds", "Since a step finished or the engine was idle.",
             stats.progress_age_seconds);
  page.counter("onelane_steps_total", "Steps of the model.", number(stats.steps));
  page.counter("onelane_steps_ahead_total", "Steps that were asked for before the one ahead of them was read.",
               number(stats.steps_ahead));
  page.counter("onelane_step_seconds_total", "Time in steps.", stats.step_seconds);
  page.gauge("onelane_last_step_seconds", "Time of the last step.", stats.last_step_ms / 1000);
  page.gauge("onelane_pages", "Pages of 128 tokens.", stats.pages);
  page.gauge("onelane_pages_used", "Pages that running requests hold.", stats.pages_used);
  page.gauge("onelane_pages_cached", "Pages that the prefix cache alone holds.", stats.pages_cached);
  page.gauge("onelane_host_kv_bytes", "Cache that left the pool, in host memory.", number(stats.host_kv_bytes));
  page.gauge("onelane_disk_kv_bytes", "The same, on disk.", number(stats.disk_kv_bytes));
  page.gauge("onelane_max_model_len_tokens", "Longest sequence.", max_model_len);

  const ProcessStats process = read_process_stats();
  page.gauge("process_resident_memory_bytes", "Memory of the process that is in RAM.", process.resident_bytes);
  page.gauge("process_open_fds", "Open file descriptors.", process.open_files);
  page.gauge("process_threads", "Threads.", process.threads);
  page.gauge("process_start_time_seconds", "When the process began, since the epoch.", process.start_seconds);
  return page.text();
}

}  // namespace onelane
