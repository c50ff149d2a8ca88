// POST /v1/messages and /v1/messages/count_tokens.
#include <utility>

#include "api/chat_run.h"
#include "api/json_tree.h"
#include "api/messages_answer.h"
#include "api/messages_input.h"
#include "api/routes.h"
#include "api/sampling_fields.h"

namespace onelane {
namespace {

// Nothing when the client has got its refusal.
std::optional<MessagesInput> read_request(const HttpRequest& request, ApiExchange& exchange) {
  JsonValue body;
  if (const auto problem = parse_body(request.body, body)) {
    exchange.fail(*problem);
    return std::nullopt;
  }
  auto input = read_messages_input(body);
  if (!input) {
    exchange.fail(to_api_error(input.error(), leading_path(input.error().message)));
    return std::nullopt;
  }
  return *std::move(input);
}

void answer(Services& services, const HttpRequest& request, const std::shared_ptr<ApiExchange>& exchange) {
  const auto input = read_request(request, *exchange);
  if (!input) return;
  ChatJob job;
  if (const auto problem = prepare_chat(services, input->chat, "messages", job)) return exchange->fail(*problem);
  auto told = std::make_shared<MessagesAnswer>(job.model, input->hide_thinking);
  run_chat(services, std::move(job), exchange, std::move(told));
}

void count(Services& services, const HttpRequest& request, ApiExchange& exchange) {
  const auto input = read_request(request, exchange);
  if (!input) return;
  ApiProblem problem;
  JsonFields fields(input->chat.json, "", problem);
  std::string model;
  if (const auto unknown = check_model(fields, services, model)) return exchange.fail(*unknown);
  size_t tokens = 0;
  if (const auto refused = count_prompt_tokens(services, input->chat, tokens)) return exchange.fail(*refused);
  exchange.respond({.body = dump_json(json_object({{"input_tokens", json_number(static_cast<int64_t>(tokens))}}))});
}

}  // namespace

void add_messages_routes(Router& router, Services& services) {
  router.add("POST", "/v1/messages", Protocol::kAnthropic, Router::Access::kKey,
             [&services](const HttpRequest& request, const std::shared_ptr<ApiExchange>& exchange) {
               answer(services, request, exchange);
             });
  router.add("POST", "/v1/messages/count_tokens", Protocol::kAnthropic, Router::Access::kKey,
             [&services](const HttpRequest& request, const std::shared_ptr<ApiExchange>& exchange) {
               count(services, request, *exchange);
             });
}

}  // namespace onelane
