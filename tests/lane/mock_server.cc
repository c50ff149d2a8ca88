#include "lane/mock_server.h"

#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "base/format.h"

namespace onelane {

using Json = nlohmann::json;

struct MockServer::Stream {
  std::shared_ptr<HttpExchange> exchange;
  MockReply reply;
  size_t sent = 0;  // pieces, reasoning first
  int64_t prompt_tokens = 0;
  bool streamed = false, include_usage = false, continuous_usage = false;
  bool gone = false, running = false;

  size_t size() const { return reply.reasoning.size() + reply.content.size(); }
};

std::vector<std::string> mock_pieces(const std::string& text) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at + 1), text.size());
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

MockServer::MockServer(MockScript script) : script_(std::move(script)) {
  auto created = HttpServer::create({.port = 0}, [this](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    handle(std::move(request), std::move(exchange));
  });
  ONELANE_CHECK(created.has_value(), "a free port on loopback");
  server_ = std::move(*created);
  thread_ = std::thread([this] { server_->run(); });
}

MockServer::~MockServer() {
  server_->stop();
  thread_.join();
}

std::string MockServer::url() const { return format("http://127.0.0.1:{}", port()); }

void MockServer::plant_after(double seconds, MockFlaw flaw) {
  server_->post_after(seconds, [this, flaw] { flaw_ = flaw; });
}

std::vector<Json> MockServer::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

MockReply MockServer::scripted(const Json& request) const {
  if (script_.reply) return script_.reply(request);
  MockReply reply{.finish_reason = "length"};
  const int64_t count = request.value("max_tokens", int64_t{16});
  for (int64_t i = 0; i < count; ++i) reply.content.push_back(format(" w{}", i));
  return reply;
}

namespace {

bool valid_request(const Json& body) {
  const auto number = [&](const char* key) {
    return !body.contains(key) || (body[key].is_number() && body[key].get<double>() >= 0);
  };
  if (!body.is_object() || !body.contains("messages") || !body["messages"].is_array()) return false;
  return number("max_tokens") && number("temperature") &&
         std::all_of(body["messages"].begin(), body["messages"].end(), [](const Json& message) {
           const std::string role = message.is_object() ? message.value("role", "") : "";
           return role == "system" || role == "user" || role == "assistant" || role == "tool";
         });
}

}  // namespace

void MockServer::handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const auto json = [&](const Json& body, int status = 200) {
    exchange->respond({.status = status, .body = body.dump()});
  };
  const bool plain = script_.engine == MockEngine::kPlain;
  if (request.path == "/v1/models") {
    return json({{"data", {{{"id", script_.model}, {"max_model_len", script_.max_model_len_tokens}}}}});
  }
  if (request.path == "/health") return json(Json::object(), flaw_ == MockFlaw::kSick ? 503 : 200);
  if (request.path == "/version" && script_.engine == MockEngine::kVllm) return json({{"version", "mock-1"}});
  if (request.path == "/get_server_info" && script_.engine == MockEngine::kSglang) {
    return json({{"version", "mock-1"},
                 {"max_total_num_tokens", script_.kv_tokens},
                 {"max_running_requests", script_.max_running}});
  }
  if (request.path == "/metrics" && !plain) {
    return exchange->respond({.content_type = "text/plain; version=0.0.4", .body = metrics()});
  }
  if (script_.route && request.path != "/v1/chat/completions") {
    const Json answer = script_.route(request.path, Json::parse(request.body, nullptr, false));
    if (!answer.is_null()) {
      generated_ += answer.value(Json::json_pointer("/usage/completion_tokens"), int64_t{0});
      return json(answer);
    }
  }
  if (request.path != "/v1/chat/completions") return json({{"error", {{"message", "no such route"}}}}, 404);

  const Json body = Json::parse(request.body, nullptr, false);
  if (!script_.lenient && !valid_request(body)) return json({{"error", {{"message", "bad request"}}}}, 400);
  if (!valid_request(body)) return json(Json::object());
  ++requests_;
  {
    const std::lock_guard lock(mutex_);
    seen_.push_back(body);
  }
  auto stream = std::make_shared<Stream>();
  stream->exchange = std::move(exchange);
  stream->reply = scripted(body);
  if (stream->reply.status != 200) {
    return stream->exchange->respond(
        {.status = stream->reply.status, .body = Json{{"error", {{"message", stream->reply.error}}}}.dump()});
  }
  for (const Json& message : body["messages"]) {
    const std::string text = message.value("content", std::string());
    stream->prompt_tokens += 1 + std::count(text.begin(), text.end(), ' ');
  }
  const Json options = body.value("stream_options", Json::object());
  stream->streamed = body.value("stream", false);
  stream->include_usage = options.value("include_usage", false);
  stream->continuous_usage = options.value("continuous_usage_stats", false);
  stream->exchange->on_close([this, stream] {
    stream->gone = true;
    std::erase(waiting_, stream);
    if (stream->running) end(stream);
  });
  waiting_.push_back(std::move(stream));
  admit_waiting();
}

void MockServer::admit_waiting() {
  while (!waiting_.empty() && running_ < script_.max_running) {
    const auto stream = waiting_.front();
    waiting_.erase(waiting_.begin());
    begin(stream);
  }
}

void MockServer::begin(std::shared_ptr<Stream> stream) {
  ++running_;
  stream->running = true;
  streams_.push_back(stream);
  prompt_tokens_ += stream->prompt_tokens;
  if (stream->streamed) {
    stream->exchange->start({.content_type = "text/event-stream", .body = ": hello\n\n"});
    send_chunk(*stream, {{"role", "assistant"}, {"content", ""}}, nullptr);
  }
  server_->post_after(script_.first_token_seconds, [this, stream] { tick(stream); });
}

Json MockServer::usage(const Stream& stream) const {
  const int64_t tokens = static_cast<int64_t>(stream.sent) * (flaw_ == MockFlaw::kDoubleCount ? 2 : 1);
  return {{"prompt_tokens", stream.prompt_tokens},
          {"completion_tokens", tokens},
          {"total_tokens", stream.prompt_tokens + tokens},
          {"prompt_tokens_details", {{"cached_tokens", 0}}}};
}

void MockServer::send_chunk(Stream& stream, Json delta, const char* finish_reason) {
  Json choice = {{"index", 0}, {"delta", std::move(delta)}, {"finish_reason", nullptr}};
  if (finish_reason != nullptr) choice["finish_reason"] = finish_reason;
  Json chunk = {{"id", "mock"}, {"object", "chat.completion.chunk"}, {"model", script_.model}, {"choices", {choice}}};
  const bool silent = flaw_ == MockFlaw::kNoUsage || flaw_ == MockFlaw::kUsageAtEnd;
  if (stream.continuous_usage && !silent) chunk["usage"] = usage(stream);
  stream.exchange->write("data: " + chunk.dump() + "\n\n");
}

void MockServer::tick(const std::shared_ptr<Stream>& stream) {
  if (stream->gone) return;
  const auto again = [&] { server_->post_after(script_.token_seconds, [this, stream] { tick(stream); }); };
  const MockFlaw flaw = flaw_;
  if (flaw == MockFlaw::kFreeze || (flaw == MockFlaw::kFreezeOne && stream == streams_.front())) return again();
  if (flaw == MockFlaw::kHangUp) {
    stream->exchange->finish();
    return end(stream);
  }
  if (flaw == MockFlaw::kErrorEvent) {
    stream->exchange->write("data: {\"error\": {\"message\": \"out of luck\"}}\n\n");
    stream->exchange->finish();
    return end(stream);
  }
  const std::vector<std::string>&reasoning = stream->reply.reasoning, &content = stream->reply.content;
  size_t last = stream->sent;
  std::string thought, said;
  for (int i = 0; i < script_.tokens_per_chunk && last < stream->size(); ++i, ++last) {
    last < reasoning.size() ? thought += reasoning[last] : said += content[last - reasoning.size()];
  }
  generated_ += static_cast<int64_t>(last - stream->sent);
  ++chunks_;
  stream->sent = last;
  const bool over = last == stream->size() || (flaw == MockFlaw::kEndEarly && last >= 8);
  if (!stream->streamed) return over ? answer_whole(stream) : again();

  Json delta = Json::object();
  if (!thought.empty()) delta["reasoning_content"] = thought;
  if (!said.empty()) delta["content"] = said;
  if (flaw == MockFlaw::kNullDelta) delta = nullptr;
  send_chunk(*stream, std::move(delta), nullptr);
  if (!over) return again();

  Json calls = Json::array();
  for (const auto& [id, name, arguments] : stream->reply.tool_calls) {
    calls.push_back({{"index", calls.size()},
                     {"id", id},
                     {"type", "function"},
                     {"function", {{"name", name}, {"arguments", arguments}}}});
  }
  if (!calls.empty()) send_chunk(*stream, {{"tool_calls", calls}}, nullptr);
  send_chunk(*stream, Json::object(), stream->reply.finish_reason.c_str());
  if (stream->include_usage && flaw != MockFlaw::kNoUsage) {
    stream->exchange->write("data: " + Json{{"choices", Json::array()}, {"usage", usage(*stream)}}.dump() + "\n\n");
  }
  stream->exchange->write("data: [DONE]\n\n");
  stream->exchange->finish();
  ++finished_;
  end(stream);
}

void MockServer::answer_whole(const std::shared_ptr<Stream>& stream) {
  const MockReply& reply = stream->reply;
  Json message = {{"role", "assistant"},
                  {"content", format("{}", join(reply.content, ""))},
                  {"reasoning_content", format("{}", join(reply.reasoning, ""))}};
  for (const auto& [id, name, arguments] : reply.tool_calls) {
    message["tool_calls"].push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}});
  }
  Json answer = {{"id", "mock"},
                 {"model", script_.model},
                 {"choices", {{{"index", 0}, {"message", message}, {"finish_reason", reply.finish_reason}}}}};
  if (flaw_ != MockFlaw::kNoUsage) answer["usage"] = usage(*stream);
  stream->exchange->respond({.body = answer.dump()});
  ++finished_;
  end(stream);
}

void MockServer::end(const std::shared_ptr<Stream>& stream) {
  stream->gone = true;
  if (!std::exchange(stream->running, false)) return;
  --running_;
  std::erase(streams_, stream);
  admit_waiting();
}

std::string MockServer::metrics() const {
  const MockFlaw flaw = flaw_;
  const int running = running_ - (flaw == MockFlaw::kUnderfilled && running_ > 0 ? 1 : 0);
  const size_t waiting = waiting_.size() + (flaw == MockFlaw::kQueue ? 1 : 0);
  const bool back = flaw == MockFlaw::kCountersBack;
  const int64_t tokens = back ? 0 : generated_.load();
  std::string text = "# HELP made by a mock\n";
  const auto line = [&](std::string_view name, std::string_view labels, auto value) {
    text += format("{}{{{}}} {}\n", name, labels, value);
  };
  if (script_.engine == MockEngine::kSglang) {
    constexpr std::string_view kLabels = "model_name=\"mock\",tp_rank=\"0\"";
    line("sglang:num_running_reqs", kLabels, running);
    line("sglang:num_running_reqs", "model_name=\"mock\",tp_rank=\"1\"", running);
    line("sglang:num_queue_reqs", kLabels, waiting);
    line("sglang:generation_tokens_total", kLabels, tokens);
    line("sglang:prompt_tokens_total", kLabels, prompt_tokens_);
    line("sglang:spec_accept_length", kLabels, script_.tokens_per_chunk);
  } else {
    constexpr std::string_view kLabels = "model_name=\"mock\"";
    line("vllm:num_requests_running", kLabels, running);
    line("vllm:num_requests_waiting", kLabels, waiting);
    line("vllm:kv_cache_usage_perc", kLabels, 0.25);
    line("vllm:generation_tokens_total", kLabels, tokens);
    line("vllm:prompt_tokens_total", kLabels, prompt_tokens_);
    line("vllm:request_success_total", kLabels, finished_);
    line("vllm:spec_decode_num_drafts_total", kLabels, back ? 0 : chunks_);
    line("vllm:spec_decode_num_draft_tokens_total", kLabels, back ? 0 : chunks_ * 5);
    line("vllm:spec_decode_num_accepted_tokens_total", kLabels, back ? 0 : generated_ - chunks_);
    line("vllm:cache_config_info", format("block_size=\"16\",num_gpu_blocks=\"{}\"", script_.kv_tokens / 16), 1);
  }
  return text + script_.more_metrics + (script_.live_metrics ? script_.live_metrics() : "");
}

}  // namespace onelane
