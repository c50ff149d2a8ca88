// Routes that answer from what is known: models, tokens, health, metrics.
#include <ctime>

#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"
#include "api/completion_fields.h"
#include "api/metrics.h"
#include "api/openai_answer.h"
#include "api/routes.h"
#include "api/sampling_fields.h"
#include "base/format.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;
using Exchange = std::shared_ptr<ApiExchange>;

void answer(const Exchange& exchange, const Json& json, int status = 200) {
  exchange->respond({.status = status, .body = json_text_of(json)});
}

Json model_json(const Services& services, const std::string& name, std::time_t since) {
  return {{"id", name},
          {"object", "model"},
          {"created", since},
          {"owned_by", "onelane"},
          {"root", services.options.model_names.front()},
          {"parent", nullptr},
          {"max_model_len", services.max_model_len},
          {"permission", Json::array()}};
}

void models(const Services& services, std::time_t since, const Exchange& exchange) {
  Json data = Json::array();
  for (const std::string& name : services.options.model_names) data.push_back(model_json(services, name, since));
  answer(exchange, {{"object", "list"}, {"data", std::move(data)}});
}

void one_model(const Services& services, std::time_t since, const HttpRequest& request, const Exchange& exchange) {
  const std::string name = request.path.substr(std::string_view("/v1/models/").size());
  for (const std::string& known : services.options.model_names) {
    if (name == known) return answer(exchange, model_json(services, known, since));
  }
  exchange->fail(
      {.status = 404,
       .message = format("there is no such model; this server has {}", fmt::join(services.options.model_names, ", ")),
       .param = "model",
       .code = "model_not_found"});
}

void tokenize(const Services& services, const HttpRequest& request, const Exchange& exchange) {
  JsonValue root;
  if (const auto problem = parse_body(request.body, root)) return exchange->fail(*problem);
  ApiProblem problem;
  JsonFields fields(root, "", problem);
  std::string model;
  if (const auto unknown = check_model(fields, services, model)) return exchange->fail(*unknown);
  const bool bos = fields.boolean("add_special_tokens").value_or(true);
  const bool strings = fields.boolean("return_token_strs").value_or(false);
  std::vector<int32_t> tokens;
  if (fields.has("messages")) {
    ChatPrompt prompt;
    if (!problem) problem = encode_chat(services, request.body, prompt);
    tokens = std::move(prompt.tokens);
  } else {
    const auto text = fields.text("prompt");
    if (!text) fields.fail("prompt", "is missing: send prompt or messages");
    if (!problem) problem = encode_text(services, *text, "prompt", bos, tokens);
  }
  if (problem) return exchange->fail(*problem);
  Json json = {{"count", tokens.size()}, {"max_model_len", services.max_model_len}, {"tokens", tokens}};
  json["token_strs"] = nullptr;
  if (strings) {
    json["token_strs"] = Json::array();
    for (const int32_t token : tokens) json["token_strs"].push_back(token_text(services.tokenizer, token));
  }
  answer(exchange, json);
}

void detokenize(const Services& services, const HttpRequest& request, const Exchange& exchange) {
  JsonValue root;
  if (const auto problem = parse_body(request.body, root)) return exchange->fail(*problem);
  ApiProblem problem;
  JsonFields fields(root, "", problem);
  std::string model;
  if (const auto unknown = check_model(fields, services, model)) return exchange->fail(*unknown);
  const auto tokens = fields.integers("tokens", 2'000'000, 0, services.spec.vocab - 1);
  if (!tokens) fields.fail("tokens", "is missing: must be an array of token ids");
  if (problem) return exchange->fail(*problem);
  answer(exchange, {{"prompt", services.tokenizer.decode(*tokens)}});
}

// What clients with a tokenizer of their own want to know, as in vLLM (lm-eval's remote tokenizer asks for it).
void tokenizer_info(const Services& services, const Exchange& exchange) {
  const auto token = [&](int32_t id) { return id < 0 ? Json() : Json(services.tokenizer.raw(id)); };
  const auto& tokens = services.spec.tokens;
  answer(exchange, {{"tokenizer_class", "onelane"},
                    {"bos_token", token(tokens.bos)},
                    {"eos_token", token(tokens.eos)},
                    {"pad_token", token(tokens.pad)},
                    {"vocab_size", services.tokenizer.size()},
                    {"model_max_length", services.max_model_len},
                    {"chat_template", nullptr}});
}

// Requests that run while no step ends mean that the engine hangs, whatever the process looks like from outside.
void health(const Services& services, const Exchange& exchange) {
  const EngineStats stats = services.engine.stats();
  const bool stuck = stats.running + stats.waiting > 0 && stats.progress_age_seconds > services.options.health_seconds;
  Json json = {{"status", stuck ? "stuck" : "ok"},
               {"running", stats.running},
               {"waiting", stats.waiting},
               {"progress_age_seconds", stats.progress_age_seconds}};
  if (stuck) {
    json["error"] = {{"message", format("no step has finished for {:.0f} s", stats.progress_age_seconds)},
                     {"type", "server_error"},
                     {"code", "stuck"}};
  }
  answer(exchange, json, stuck ? 503 : 200);
}

void ready(const Services& services, const Exchange& exchange) {
  if (!services.draining) return answer(exchange, {{"status", "ready"}});
  answer(exchange, {{"status", "draining"}}, 503);
}

}  // namespace

void add_info_routes(Router& router, Services& services) {
  using Access = Router::Access;
  const std::time_t since = std::time(nullptr);
  const auto get = [&](const char* path, Access access, auto handler) {
    router.add("GET", path, Protocol::kOpenAi, access,
               [handler](const HttpRequest& request, const Exchange& exchange) { handler(request, exchange); });
  };
  const auto post = [&](const char* path, auto handler) {
    router.add("POST", path, Protocol::kOpenAi, Access::kKey,
               [handler](const HttpRequest& request, const Exchange& exchange) { handler(request, exchange); });
  };
  get("/v1/models", Access::kKey, [&services, since](const auto&, auto& to) { models(services, since, to); });
  get("/v1/models/*", Access::kKey,
      [&services, since](const auto& request, auto& to) { one_model(services, since, request, to); });
  get("/tokenizer_info", Access::kKey, [&services](const auto&, auto& to) { tokenizer_info(services, to); });
  post("/tokenize", [&services](const auto& request, auto& to) { tokenize(services, request, to); });
  post("/detokenize", [&services](const auto& request, auto& to) { detokenize(services, request, to); });
  post("/reset_prefix_cache", [&services](const auto&, auto& to) {
    services.engine.reset_prefix_cache();
    answer(to, {{"status", "ok"}});
  });
  for (const char* path : {"/health", "/v1/health", "/ping"}) {
    get(path, Access::kOpen, [&services](const auto&, auto& to) { health(services, to); });
  }
  get("/ready", Access::kOpen, [&services](const auto&, auto& to) { ready(services, to); });
  get("/version", Access::kOpen,
      [&services](const auto&, auto& to) { answer(to, {{"version", services.options.version}}); });
  get("/server_info", Access::kKey, [&services](const auto&, auto& to) {
    const ServerIdentity& identity = services.options.identity;
    answer(to, {{"version", services.options.version},
                {"build", identity.build},
                {"boot_id", identity.boot_id},
                {"model", identity.model},
                {"settings", identity.settings}});
  });
  get("/load", Access::kOpen, [&services](const auto&, auto& to) {
    const EngineStats stats = services.engine.stats();
    answer(to, {{"server_load", stats.running + stats.waiting}});
  });
  get("/metrics", Access::kOpen, [&services](const auto&, auto& to) {
    to->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                 .body = services.metrics.text(services.engine.stats(), services.max_model_len)});
  });
}

}  // namespace onelane
