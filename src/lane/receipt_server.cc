#include "lane/receipt_server.h"

#include "base/format.h"

namespace onelane {
namespace {

bool is_local(const std::string& url) {
  for (const char* host : {"://127.", "://localhost", "://[::1]"}) {
    if (url.find(host) != std::string::npos) return true;
  }
  return false;
}

// Ours says what it runs on; of others it is what they are for.
bool uses_gpu(const ServerInfo& server) {
  const auto backend = server.settings.find("backend");
  return backend == server.settings.end() || (backend->second != "cpu" && backend->second != "reference");
}

}  // namespace

void name_server(const ServerInfo& server, Receipt& receipt) {
  receipt.build = {.id = server.build.empty() ? server.version : format("{}+{}", server.version, server.build),
                   .engine = server.engine_name()};
  receipt.model.name = server.model;
  if (!server.boot_id.empty()) receipt.arm.boot_id = server.boot_id;
  for (const auto& [name, value] : server.settings) receipt.resolved.settings["server." + name] = value;
  if (server.max_model_len_tokens) {
    receipt.resolved.settings["server.max_model_len"] = format("{}", *server.max_model_len_tokens);
  }
}

std::unique_ptr<EnvironmentWatch> watch_server(const ServerInfo& server, const std::string& url) {
  if (!is_local(url)) return nullptr;
  return std::make_unique<EnvironmentWatch>(EnvironmentOptions{.gpu = uses_gpu(server)});
}

}  // namespace onelane
