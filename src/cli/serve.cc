#include "cli/serve.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "api/metrics.h"
#include "api/page.h"
#include "api/router.h"
#include "api/routes.h"
#include "api/services.h"
#include "base/format.h"
#include "base/log.h"
#include "base/program.h"
#include "engine/identity.h"

namespace onelane {
namespace {

constexpr double kDrainPollSeconds = 0.05;
constexpr double kLastBytesSeconds = 1;  // for answers that are complete but not sent

void print_plan(const Engine& engine) {
  int64_t sum = 0;
  std::fprintf(stderr, "memory plan:\n");
  for (const PlannedBytes& line : engine.plan()) {
    std::fprintf(stderr, "  %-38s %12.2f MiB\n", line.what.c_str(), static_cast<double>(line.bytes) / 0x1p20);
    sum += line.bytes;
  }
  std::fprintf(stderr, "  %-38s %12.2f MiB\n", "together", static_cast<double>(sum) / 0x1p20);
}

// Options that say where the server is and who may use it are nobody's business.
std::map<std::string, std::string> measured_settings(const ServeOptions& options) {
  const std::set<std::string> private_names = {"model", "served-model-name", "host", "port", "api-key", "disk-kv"};
  std::map<std::string, std::string> settings;
  for (const ServeOption& option : serve_option_table()) {
    if (!option.secret && !private_names.contains(option.name)) settings[option.key()] = option.get(options);
  }
  return settings;
}

bool is_loopback(const std::string& host) { return host.starts_with("127.") || host == "::1"; }

// A name for a URL: IPv6 addresses stand in brackets, and nobody connects to "any address".
std::string url_host(const std::string& host) {
  if (host == "0.0.0.0") return "127.0.0.1";
  if (host == "::") return "[::1]";
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

class ServeRun {
 public:
  ServeRun(ServeOptions options, Runtime runtime, std::unique_ptr<Engine> engine)
      : options_(std::move(options)),
        runtime_(std::move(runtime)),
        metrics_(options_.api.model_names.front()),
        engine_(std::move(engine)),
        grammars_(std::make_unique<GrammarCompiler>(runtime_.tokenizer, runtime_.model->spec.vocab,
                                                    runtime_.model->spec.tokens.eos)),
        services_{
            ApiContext{.tokenizer = runtime_.tokenizer,
                       .format = *runtime_.format,
                       .spec = runtime_.model->spec,
                       .options = options_.api,
                       .max_model_len = engine_->max_model_len()},
            *engine_,
            metrics_,
            *grammars_,
            [this](std::function<void()> task) { server_->post(std::move(task)); },
            [this](double seconds, std::function<void()> task) { server_->post_after(seconds, std::move(task)); }},
        router_(services_) {
    add_chat_routes(router_, services_);
    add_completion_routes(router_, services_);
    add_responses_routes(router_, services_);
    add_messages_routes(router_, services_);
    add_info_routes(router_, services_);
    add_page_routes(router_);
  }

  // The engine's last events and grammars go through the server, and what the server still holds speaks to router and
  // metrics.
  ~ServeRun() {
    engine_.reset();
    grammars_.reset();
    server_.reset();
  }
  ServeRun(const ServeRun&) = delete;
  ServeRun& operator=(const ServeRun&) = delete;

  Result<void> run() {
    ONELANE_ASSIGN(
        server_, HttpServer::create(options_.http, [this](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
          router_.handle(std::move(request), std::move(exchange));
        }));
    server_->on_signal({SIGINT, SIGTERM}, [this](int signal) { on_signal(signal); });
    if (!is_loopback(options_.http.host) && options_.api.api_keys.empty()) {
      log_warning("{} can be reached from other machines and no api_key is set: anyone there can use this server",
                  options_.http.host);
    }
    announce();
    sample();
    server_->run();
    return {};
  }

 private:
  void announce() const {
    const std::string url = format("http://{}:{}", url_host(options_.http.host), server_->port());
    const std::string key = options_.api.api_keys.empty() ? "" : " -H 'Authorization: Bearer YOUR_KEY'";
    std::printf("listening on %s\n", url.c_str());
    std::printf(
        "curl %s/v1/chat/completions -H 'Content-Type: application/json'%s "
        "-d '{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], "
        "\"max_tokens\": 64}'\n",
        url.c_str(), key.c_str(), options_.api.model_names.front().c_str());
    std::fflush(stdout);
  }

  void sample() {
    metrics_.sample(engine_->stats());
    server_->post_after(1, [this] { sample(); });
  }

  void on_signal(int signal) {
    // Somebody who asks twice does not want to wait; nothing here needs an orderly end.
    if (services_.draining) std::_Exit(128 + signal);
    services_.draining = true;
    log_info("signal {}: no new requests; running answers get {} s", signal, options_.drain_seconds);
    server_->close_listener();
    engine_->drain();
    drain(options_.drain_seconds, kLastBytesSeconds);
  }

  void drain(double seconds, double last_bytes) {
    const bool idle = engine_->idle();
    if (server_->connections() == 0 || seconds <= 0 || last_bytes <= 0) {
      if (!idle) log_warning("not all answers ended in {} s; the rest is cut off", options_.drain_seconds);
      server_->stop();
      return;
    }
    server_->post_after(kDrainPollSeconds, [this, seconds, last_bytes, idle] {
      drain(seconds - kDrainPollSeconds, last_bytes - (idle ? kDrainPollSeconds : 0));
    });
  }

  ServeOptions options_;
  Runtime runtime_;
  Metrics metrics_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<GrammarCompiler> grammars_;
  std::unique_ptr<HttpServer> server_;
  Services services_;
  Router router_;
};

// "models/mini-v41/" is mini-v41.
std::string directory_name(const std::string& dir) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(dir, error).lexically_normal();
  const std::string name = path.filename().empty() ? path.parent_path().filename() : path.filename();
  return name.empty() ? "model" : name;
}

Result<void> serve(const ServeCommand& command) {
  set_log_level(LogLevel::kInfo);
  ONELANE_ASSIGN(ServeSettings settings,
                 read_serve_settings(command.flags, command.config, [](const std::string& name) {
                   return static_cast<const char*>(std::getenv(name.c_str()));
                 }));
  ServeOptions& options = settings.options;
  if (options.api.model_names.empty()) options.api.model_names = {directory_name(options.runtime.dir)};
  options.api.version = command.version;
  std::fprintf(stderr, "settings:\n%s", settings_text(settings).c_str());
  ONELANE_ASSIGN(Runtime runtime, load_runtime(options.runtime));
  ONELANE_ASSIGN(std::unique_ptr<Engine> engine, Engine::create(*runtime.model, *runtime.kernels, options.engine));
  options.api.identity = {program_build_id(), format("{:08x}", std::random_device()()), model_identity(*runtime.model),
                          measured_settings(options)};
  print_plan(*engine);
  std::fprintf(stderr, "longest sequence: %d tokens\n", engine->max_model_len());
  if (command.check) {
    std::printf("the settings are good\n");
    return {};
  }
  return ServeRun(std::move(options), std::move(runtime), std::move(engine)).run();
}

}  // namespace

int run_serve(const ServeCommand& command) {
  const auto done = serve(command);
  return done ? 0 : fail(done.error());
}

}  // namespace onelane
