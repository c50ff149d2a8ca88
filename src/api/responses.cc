// POST /v1/responses.
#include <ctime>
#include <utility>

#include "api/chat_run.h"
#include "api/event_stream.h"
#include "api/responses_answer.h"
#include "api/responses_input.h"
#include "api/routes.h"

namespace onelane {
namespace {

// A prompt that does not fit is told in the stream, as OpenAI does: only then does Codex shorten its history.
void fail_in_stream(Services& services, const std::shared_ptr<ApiExchange>& exchange, const ApiError& error,
                    ResponsesAnswer& answer) {
  const auto stream = EventStream::start(services, exchange, nullptr);
  answer.stream_to([&](std::string_view type, const std::string& json) { stream->event(type, json); });
  answer.open();
  answer.end({.reason = FinishReason::kError, .error = error});
  exchange->note(error.code);
  stream->finish();
}

void respond(Services& services, const HttpRequest& request, const std::shared_ptr<ApiExchange>& exchange) {
  JsonValue body;
  if (const auto problem = parse_body(request.body, body)) return exchange->fail(*problem);
  auto input = read_responses_input(body);
  if (!input) return exchange->fail(to_api_error(input.error(), leading_path(input.error().message)));
  ChatJob job;
  const auto problem = prepare_chat(services, input->chat, "input", job);
  auto answer = std::make_shared<ResponsesAnswer>(body, *std::move(input), job.model, std::time(nullptr));
  if (problem && problem->code == "context_length_exceeded" && job.stream) {
    return fail_in_stream(services, exchange, *problem, *answer);
  }
  if (problem) return exchange->fail(*problem);
  run_chat(services, std::move(job), exchange, std::move(answer));
}

}  // namespace

void add_responses_routes(Router& router, Services& services) {
  router.add("POST", "/v1/responses", Protocol::kOpenAi, Router::Access::kKey,
             [&services](const HttpRequest& request, const std::shared_ptr<ApiExchange>& exchange) {
               respond(services, request, exchange);
             });
}

}  // namespace onelane
