#include "api/generation.h"

#include <exception>
#include <utility>

#include "api/metrics.h"
#include "api/stop_search.h"
#include "base/log.h"
#include "text/detokenizer.h"

namespace onelane {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

struct TextGeneration::State {
  Services& services;
  GenerationRequest request;
  DeltaSink sink;
  RequestId id = 0;

  Detokenizer detokenizer;
  StopSearch stops;
  std::optional<CompletionParser> parser;  // chat
  AssistantMessage plain;                  // otherwise
  RequestStats stats;
  int tokens = 0;  // taken; fewer than the engine's when a stop string ended the text
  bool reasoning = false;
  int reasoning_tokens = 0;
  bool over = false;

  Clock::time_point began = Clock::now();
  Clock::time_point last_delta;
  bool first = true;

  State(Services& all, GenerationRequest wanted, DeltaSink to)
      : services(all),
        request(std::move(wanted)),
        sink(std::move(to)),
        detokenizer(all.tokenizer, !request.chat && request.skip_special),
        stops(request.stop) {
    if (request.chat) parser.emplace(all.format, request.thinking);
    reasoning = request.chat && request.thinking;
  }

  void count(int32_t token) {
    ++tokens;
    if (!reasoning) return;
    ++reasoning_tokens;
    reasoning = services.tokenizer.bytes(token) != kThinkEndText;
  }

  // An end token that ends nothing: the parser would take what follows for silence.
  bool passes_over(int32_t token) const {
    return parser && request.request.ignore_eos && services.tokenizer.bytes(token) == kEosText;
  }

  // `text` is certain not to hold a stop string.
  void say(std::string text, GenerationDelta& delta) {
    if (text.empty()) return;
    if (parser) {
      for (CompletionEvent& event : parser->feed(text)) delta.events.push_back(std::move(event));
      return;
    }
    plain.content += text;
    if (!delta.events.empty()) {
      delta.events.back().text += text;
    } else {
      delta.events.push_back({CompletionEvent::Kind::kContent, -1, std::move(text)});
    }
  }

  // Returns false when a stop string ends the text with this piece. Before min_tokens they do not count.
  bool take_text(const std::string& piece, GenerationDelta& delta) {
    if (tokens <= request.request.min_tokens && !request.stop.empty()) {
      say(piece, delta);
      return true;
    }
    say(stops.push(piece), delta);
    if (!stops.found()) return true;
    if (request.include_stop) say(stops.stop(), delta);
    return false;
  }

  // What the end of the text brings to light. `cut_off`: no end token, so an open tool call stays open.
  void end_text(bool cut_off, GenerationDelta& delta) {
    if (!stops.found()) {
      const std::string rest = detokenizer.flush();
      if (take_text(rest, delta)) say(stops.flush(), delta);
    }
    if (parser) {
      for (CompletionEvent& event : parser->finish(cut_off)) delta.events.push_back(std::move(event));
    }
  }

  // The engine has been told, or has said so itself.
  void end(FinishReason reason) {
    over = true;
    services.metrics.finished(stats, reason, seconds_since(began));
  }

  void measure(size_t new_tokens) {
    if (new_tokens == 0) return;
    if (std::exchange(first, false)) {
      services.metrics.first_token(seconds_since(began));
    } else {
      services.metrics.token_gap(seconds_since(last_delta));
    }
    last_delta = Clock::now();
  }
};

TextGeneration::TextGeneration(Services& services, GenerationRequest request, DeltaSink sink)
    : state_(std::make_unique<State>(services, std::move(request), std::move(sink))) {}

TextGeneration::~TextGeneration() = default;

Result<std::shared_ptr<TextGeneration>> TextGeneration::start(Services& services, GenerationRequest request,
                                                              DeltaSink sink) {
  Request engine_request = request.request;
  auto generation = std::make_shared<TextGeneration>(services, std::move(request), std::move(sink));
  // The engine holds the generation until its last event; its thread only hands events on.
  auto forward = [generation, &services](RequestEvent event) {
    services.post([generation, event = std::move(event)]() mutable { generation->on_event(std::move(event)); });
  };
  ONELANE_ASSIGN(generation->state_->id, services.engine.submit(std::move(engine_request), std::move(forward)));
  generation->state_->request.request.prompt = {};
  return generation;
}

void TextGeneration::on_event(RequestEvent event) {
  State& s = *state_;
  if (s.over) return;
  s.stats = event.stats;
  GenerationDelta delta;
  delta.prompt_logprobs = std::move(event.prompt_logprobs);
  delta.finish = event.finish;
  delta.error = std::move(event.error);
  s.measure(event.tokens.size());
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    delta.tokens.push_back(event.tokens[i]);
    if (i < event.logprobs.size()) delta.logprobs.push_back(std::move(event.logprobs[i]));
    s.count(event.tokens[i]);
    if (s.passes_over(event.tokens[i])) continue;
    if (s.take_text(s.detokenizer.push(event.tokens[i]), delta)) continue;
    delta.finish = FinishReason::kStop;
    break;
  }
  const bool ended = delta.finish != FinishReason::kNone;
  // An end token has its place in the count although it is not reported.
  if (s.stops.found()) s.stats.tokens = s.tokens;
  if (ended) s.end_text(s.stops.found() || delta.finish != FinishReason::kStop, delta);
  if (s.stops.found()) {
    delta.stop = s.stops.stop();
    delta.finish = FinishReason::kStop;
    delta.error.clear();
    s.stats.tokens = s.tokens;
    if (event.finish == FinishReason::kNone) s.services.engine.cancel(s.id);
  }
  delta.stats = s.stats;
  delta.reasoning_tokens = s.reasoning_tokens;
  const DeltaSink sink = ended ? std::exchange(s.sink, nullptr) : s.sink;
  if (ended) s.end(delta.finish);
  try {
    if (sink) sink(delta);
  } catch (const std::exception& error) {
    // A mistake of ours in one answer must not end the others: this one is dropped.
    log_error("an answer failed: {}", error.what());
    cancel();
  }
}

void TextGeneration::cancel() {
  State& s = *state_;
  // What the sink holds on to may hold the last reference to this.
  const auto self = shared_from_this();
  const DeltaSink dropped = std::exchange(s.sink, nullptr);
  if (s.over) return;
  s.services.engine.cancel(s.id);
  s.end(FinishReason::kCancelled);
}

bool TextGeneration::finished() const { return state_->over; }
const RequestStats& TextGeneration::stats() const { return state_->stats; }

const AssistantMessage& TextGeneration::message() const {
  return state_->parser ? state_->parser->message() : state_->plain;
}

}  // namespace onelane
