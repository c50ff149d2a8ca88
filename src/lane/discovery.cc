#include "lane/discovery.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "lane/answer_json.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kSniffedBytes = 2000;
constexpr int64_t kPageTokens = 128;  // of onelane_pages

// The JSON object that a route answers with status 200; none for whatever else.
std::optional<Json> ask(HttpClient& client, const char* path) {
  const auto reply = client.get(path);
  if (!reply || reply->status != 200) return std::nullopt;
  Json json = Json::parse(reply->body, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  return json;
}

std::optional<int64_t> number(std::string_view label) {
  if (label.empty()) return std::nullopt;
  const int64_t value = std::strtoll(std::string(label).c_str(), nullptr, 10);
  return value > 0 ? std::optional(value) : std::nullopt;
}

// Context-parallel ranks hold a share each of every sequence.
int64_t context_ranks(const MetricsPage& page) {
  const MetricSample* info = page.find("vllm:parallel_config_info");
  if (info == nullptr) return 1;
  return number(info->label("decode_context_parallel_size")).value_or(1) *
         number(info->label("prefill_context_parallel_size")).value_or(1);
}

void read_capacity(const MetricsPage& page, ServerInfo& info) {
  if (const auto pages = page.value("onelane_pages")) {
    info.onelane = true;
    info.kv_tokens = static_cast<int64_t>(*pages) * kPageTokens;
  }
  const MetricSample* config = page.find("vllm:cache_config_info");
  if (config == nullptr) return;
  if (const auto tokens = number(config->label("kv_cache_size_tokens"))) {
    info.kv_tokens = tokens;
    return;
  }
  const auto size = number(config->label("block_size"));
  const auto blocks = number(config->label("num_gpu_blocks"));
  if (size && blocks) info.kv_tokens = *size * *blocks * context_ranks(page);
}

void read_identity(const Json& answer, ServerInfo& info) {
  info.build = string_in(answer, "build");
  info.boot_id = string_in(answer, "boot_id");
  const auto settings = answer.find("settings");
  if (settings == answer.end() || !settings->is_object()) return;
  for (const auto& [name, value] : settings->items()) {
    if (value.is_string()) info.settings[name] = value.get<std::string>();
  }
  if (const auto model = string_in(answer, "model"); !model.empty()) info.settings["model_identity"] = model;
}

Result<void> choose_model(HttpClient& client, const std::string& asked, ServerInfo& info) {
  ONELANE_ASSIGN(const HttpReply reply, client.get("/v1/models"));
  const Json models = Json::parse(reply.body, nullptr, false);
  std::vector<std::string> names;
  if (reply.status == 200 && models.is_object() && models.contains("data") && models["data"].is_array()) {
    for (const Json& model : models["data"]) {
      if (!model.is_object() || string_in(model, "id").empty()) continue;
      if (names.empty()) info.max_model_len_tokens = integer_in(model, "max_model_len");
      names.emplace_back(string_in(model, "id"));
    }
  }
  if (names.empty() && asked.empty()) {
    return Error{ErrorCode::kNotFound,
                 format("GET /v1/models: status {} and no model listed; name one with --model", reply.status)};
  }
  if (!names.empty() && !asked.empty() && std::find(names.begin(), names.end(), asked) == names.end()) {
    return Error{ErrorCode::kNotFound,
                 format("model \"{}\" is not served; the server lists: {}", asked, join(names, ", "))};
  }
  info.model = asked.empty() ? names.front() : asked;
  return {};
}

}  // namespace

std::string ServerInfo::engine_name() const {
  if (onelane) return "onelane";
  if (engine == EngineKind::kVllm) return "vllm";
  return engine == EngineKind::kSglang ? "sglang" : "openai_proxy";
}

Result<ServerInfo> discover(HttpClient& client, const std::string& model) {
  ServerInfo info;
  ONELANE_TRY(choose_model(client, model, info));
  const auto server = ask(client, "/get_server_info");
  const auto version = ask(client, "/version");
  if (server && integer_in(*server, "max_total_num_tokens")) {
    info.engine = EngineKind::kSglang;
    info.version = string_in(*server, "version");
    info.kv_tokens = integer_in(*server, "max_total_num_tokens");
    info.max_running = integer_in(*server, "max_running_requests");
    if (!info.max_model_len_tokens) info.max_model_len_tokens = integer_in(*server, "context_length");
  } else if (version && !string_in(*version, "version").empty()) {
    info.engine = EngineKind::kVllm;
    info.version = string_in(*version, "version");
  }

  if (const auto ours = ask(client, "/server_info")) read_identity(*ours, info);
  const auto metrics = client.get("/metrics", 5);
  if (metrics && metrics->status == 200) {
    const std::string_view head = std::string_view(metrics->body).substr(0, kSniffedBytes);
    const bool vllm = head.find("vllm:") != std::string_view::npos;
    const bool sglang = head.find("sglang:") != std::string_view::npos;
    if (info.engine == EngineKind::kOther) {
      info.engine = vllm ? EngineKind::kVllm : sglang ? EngineKind::kSglang : EngineKind::kOther;
    }
    const MetricsPage page = MetricsPage::parse(metrics->body);
    info.has_metrics = read_metrics(page, info.engine).running.has_value();
    read_capacity(page, info);
  }
  const auto health = client.get("/health");
  info.has_health = health && health->status == 200;
  return info;
}

}  // namespace onelane
