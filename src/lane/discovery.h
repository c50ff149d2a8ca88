// What a server is: the model it serves, whose engine it says it is, and what it can hold.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lane/scrape.h"

namespace onelane {

struct ServerInfo {
  std::string model;  // the name to ask for
  EngineKind engine = EngineKind::kOther;
  bool onelane = false;        // vLLM's names and our own beside them
  std::string version;         // "" if it does not say
  std::string build, boot_id;  // of GET /server_info, ours alone; "" if it does not say
  std::map<std::string, std::string> settings;
  bool has_metrics = false;
  bool has_health = false;  // GET /health answers with 200
  std::optional<int64_t> max_model_len_tokens;
  std::optional<int64_t> kv_tokens;    // that its cache holds
  std::optional<int64_t> max_running;  // requests at once

  std::string engine_name() const;  // "onelane", "vllm", "sglang", "openai_proxy"
};

// Asks /v1/models, /get_server_info, /version and /metrics. `model` empty: the first that the server lists. Errors: the
// server does not answer, or lists nothing and `model` is empty, or lists models and `model` is not among them.
Result<ServerInfo> discover(HttpClient& client, const std::string& model);

}  // namespace onelane
