#include "lane/scrape.h"

#include <charconv>
#include <cmath>

#include "base/format.h"

namespace onelane {
namespace {

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == ':';
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

// {key="value",...} from the brace on; the rest of the line stays in `line`. False if it is none.
bool take_labels(std::string_view& line, std::vector<std::pair<std::string, std::string>>& labels) {
  line.remove_prefix(1);
  for (;;) {
    line = line.substr(std::min(line.find_first_not_of(" ,\t"), line.size()));
    if (line.empty()) return false;
    if (line.front() == '}') return line.remove_prefix(1), true;
    const size_t equals = line.find("=\"");
    if (equals == std::string_view::npos) return false;
    std::string value;
    size_t at = equals + 2;
    for (; at < line.size() && line[at] != '"'; ++at) {
      char c = line[at];
      if (c == '\\' && at + 1 < line.size()) {
        c = line[++at];
        if (c == 'n') c = '\n';
      }
      value += c;
    }
    if (at == line.size()) return false;
    labels.emplace_back(line.substr(0, equals), std::move(value));
    line.remove_prefix(at + 1);
  }
}

// The number that `text` begins with, followed by nothing or by a timestamp.
std::optional<double> take_value(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const size_t read = static_cast<size_t>(end - text.data());
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  if (read < text.size() && text[read] != ' ' && text[read] != '\t') return std::nullopt;
  return value;
}

std::optional<MetricSample> parse_line(std::string_view line, MetricLookup lookup) {
  line = trimmed(line);
  if (line.empty() || line.front() == '#') return std::nullopt;
  const bool lib = lookup == MetricLookup::kLib;
  if (lib && !line.starts_with("vllm:") && !line.starts_with("sglang:")) return std::nullopt;
  if (lib && line.find('}') != line.rfind('}')) return std::nullopt;
  MetricSample sample;
  size_t end = 0;
  while (end < line.size() && is_name(line[end])) ++end;
  if (end == 0) return std::nullopt;
  sample.name = line.substr(0, end);
  line.remove_prefix(end);
  if (line.starts_with('{') && !take_labels(line, sample.labels)) return std::nullopt;
  const std::string_view rank = sample.label("tp_rank");
  if (!rank.empty() && rank != "0") return std::nullopt;
  const auto value = take_value(trimmed(line));
  if (!value) return std::nullopt;
  sample.value = *value;
  return sample;
}

}  // namespace

std::string_view MetricSample::label(std::string_view key) const {
  for (const auto& [found, text] : labels) {
    if (found == key) return text;
  }
  return {};
}

MetricsPage MetricsPage::parse(std::string_view text, MetricLookup lookup) {
  MetricsPage page;
  page.lookup_ = lookup;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (auto sample = parse_line(text.substr(0, end), lookup)) page.samples_.push_back(std::move(*sample));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return page;
}

const MetricSample* MetricsPage::find(std::string_view name) const {
  for (const MetricSample& sample : samples_) {
    if (lookup_ == MetricLookup::kLib ? sample.name.starts_with(name) : sample.name == name) return &sample;
  }
  return nullptr;
}

std::optional<double> MetricsPage::value(std::string_view name) const { return value(name, "", ""); }

std::optional<double> MetricsPage::value(std::string_view name, std::string_view key, std::string_view label) const {
  std::optional<double> sum;
  for (const MetricSample& sample : samples_) {
    const bool named = lookup_ == MetricLookup::kLib ? sample.name.starts_with(name) : sample.name == name;
    if (!named || (!key.empty() && sample.label(key) != label)) continue;
    if (lookup_ == MetricLookup::kLib) return sample.value;  // the first hit
    sum = sum.value_or(0) + sample.value;
  }
  return sum;
}

ServerReading read_metrics(const MetricsPage& page, EngineKind engine) {
  ServerReading reading;
  if (engine == EngineKind::kVllm) {
    reading.running = page.value("vllm:num_requests_running");
    reading.waiting = page.value("vllm:num_requests_waiting");
    reading.kv_usage = page.value("vllm:kv_cache_usage_perc");
    reading.generation_tokens = page.value("vllm:generation_tokens_total");
    reading.prompt_tokens = page.value("vllm:prompt_tokens_total");
    reading.prefill_seconds = page.value("vllm:request_prefill_time_seconds_sum");
    reading.prefills = page.value("vllm:request_prefill_time_seconds_count");
    reading.drafts = page.value("vllm:spec_decode_num_drafts_total");
    reading.draft_tokens = page.value("vllm:spec_decode_num_draft_tokens_total");
    reading.accepted_tokens = page.value("vllm:spec_decode_num_accepted_tokens_total");
    for (int i = 0;; ++i) {
      const auto count =
          page.value("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position", std::to_string(i));
      if (!count) break;
      reading.accepted_by_position.push_back(*count);
    }
    reading.steps = page.value("onelane_steps_total");
  } else if (engine == EngineKind::kSglang) {
    reading.running = page.value("sglang:num_running_reqs");
    reading.waiting = page.value("sglang:num_queue_reqs");
    reading.kv_usage = page.value("sglang:utilization");
    reading.generation_tokens = page.value("sglang:generation_tokens_total");
    reading.prompt_tokens = page.value("sglang:prompt_tokens_total");
    reading.prefill_seconds = page.value("sglang:per_stage_req_latency_seconds_sum", "stage", "prefill_forward");
    reading.prefills = page.value("sglang:per_stage_req_latency_seconds_count", "stage", "prefill_forward");
    reading.accept_length = page.value("sglang:spec_accept_length");
  }
  return reading;
}

Result<MetricsPage> fetch_metrics(HttpClient& client, MetricLookup lookup, double seconds) {
  ONELANE_ASSIGN(const HttpReply reply, client.get("/metrics", seconds));
  if (reply.status != 200) return Error{ErrorCode::kIo, format("GET /metrics: status {}", reply.status)};
  return MetricsPage::parse(reply.body, lookup);
}

Result<ServerReading> scrape(HttpClient& client, EngineKind engine, MetricLookup lookup, double seconds) {
  const auto asked = HttpClock::now();
  ONELANE_ASSIGN(const MetricsPage page, fetch_metrics(client, lookup, seconds));
  const auto answered = HttpClock::now();
  ServerReading reading = read_metrics(page, engine);
  reading.at = asked + (answered - asked) / 2;
  reading.took_s = std::chrono::duration<double>(answered - asked).count();
  return reading;
}

}  // namespace onelane
