#include "lane/gate_server.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/format.h"
#include "lane/answer_json.h"

namespace onelane {
namespace {

constexpr double kPollSeconds = 0.02;

// Per answer; the I/O thread adds, the asking thread reads when the call has ended.
struct Arrivals {
  std::mutex mutex;
  std::vector<std::pair<HttpClock::time_point, int64_t>> texts;  // stamp and tokens of a chunk
  std::shared_ptr<ChatCall> call;
  bool cancel = false;
};

// Every answer is greedy and repeatable unless the request says otherwise.
GateJson with_defaults(const std::string& model, const GateJson& request) {
  GateJson body = {{"model", model}, {"temperature", 0}, {"seed", 42}};
  body.update(request);
  return body;
}

}  // namespace

std::string GateAnswer::text() const {
  std::string out = chat.reasoning + "\n" + chat.content;
  for (const ChatToolCall& call : chat.tool_calls) out += "\n" + call.name + " " + call.arguments;
  return out;
}

Result<std::unique_ptr<GateServer>> GateServer::connect(const HttpClientOptions& options, const std::string& model) {
  ONELANE_ASSIGN(std::unique_ptr<HttpClient> client, HttpClient::create(options));
  ONELANE_ASSIGN(ServerInfo info, discover(*client, model));
  std::unique_ptr<GateServer> server(new GateServer(std::move(client), std::move(info)));
  server->first_ = server->read_resources();
  return server;
}

GateAnswer GateServer::ask(GateJson request, const AskOptions& options) {
  GateJson body = with_defaults(info_.model, request);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};

  const auto arrivals = std::make_shared<Arrivals>();
  ChatOptions chat{.total_seconds = options.seconds};
  chat.on_delta = [arrivals, most = options.cancel_after](const ChatDelta& delta) {
    if (!delta.text) return;
    const std::lock_guard lock(arrivals->mutex);
    arrivals->texts.emplace_back(delta.at, std::max<int64_t>(delta.tokens, 1));
    if (most < 0 || arrivals->texts.size() < static_cast<size_t>(most)) return;
    arrivals->cancel = true;
    if (arrivals->call) arrivals->call->cancel();
  };
  const auto call = start_chat(*client_, body.dump(), true, true, std::move(chat));
  {
    const std::lock_guard lock(arrivals->mutex);
    arrivals->call = call;
    if (arrivals->cancel || options.cancel_after == 0) call->cancel();
  }
  GateAnswer answer{.chat = call->wait(), .gaps_s = {}, .token_at_s = {}};
  {
    const std::lock_guard lock(arrivals->mutex);
    arrivals->call = nullptr;
    for (size_t i = 0; i < arrivals->texts.size(); ++i) {
      const auto& [at, tokens] = arrivals->texts[i];
      answer.token_at_s.insert(answer.token_at_s.end(), static_cast<size_t>(tokens),
                               std::chrono::duration<double>(at - answer.chat.started).count());
      if (i == 0) continue;
      answer.gaps_s.push_back(std::chrono::duration<double>(at - arrivals->texts[i - 1].first).count());
    }
  }
  if (answer.chat.end == HttpEnd::kNotConnected) lose(answer.chat.problem);
  if (answer.chat.complete()) received_tokens_ += answer.chat.completion_tokens.value_or(0);
  if (fault_ != nullptr && fault_->in_answer) fault_->in_answer(request, answer);
  return answer;
}

namespace {

Error refused(const HttpReply& reply, const char* route) {
  const GateJson body = GateJson::parse(reply.body, nullptr, false);
  const GateJson* error = body.is_object() && body.contains("error") ? &body["error"] : nullptr;
  const std::string_view message = error != nullptr && error->is_object() ? string_in(*error, "message") : "";
  return {ErrorCode::kUnsupported, format("POST {} is answered with status {}{}{}", route, reply.status,
                                          message.empty() ? "" : ": ", message.substr(0, 200))};
}

}  // namespace

Result<CompletionAnswer> GateServer::complete(const GateJson& request) {
  const GateJson body = with_defaults(info_.model, request);
  const auto reply = client_->post("/v1/completions", body.dump());
  if (!reply) {
    lose(reply.error().message);
    return reply.error();
  }
  if (reply->status != 200) return refused(*reply, "/v1/completions");
  ONELANE_ASSIGN(CompletionAnswer answer,
                 parse_completion(reply->body, request.at("prompt").get<std::vector<int32_t>>()));
  for (const CompletionChoice& choice : answer.choices) received_tokens_ += static_cast<int64_t>(choice.tokens.size());
  if (fault_ != nullptr && fault_->in_completion) fault_->in_completion(request, answer);
  return answer;
}

Result<std::vector<int32_t>> GateServer::tokenize(GateJson request) const {
  request["model"] = info_.model;
  const auto reply = client_->post("/tokenize", request.dump(), 120);
  if (!reply) return reply.error();
  if (reply->status != 200) return refused(*reply, "/tokenize");
  const GateJson answer = GateJson::parse(reply->body, nullptr, false);
  std::vector<int32_t> out;
  if (answer.is_object() && answer.contains("tokens") && answer["tokens"].is_array()) {
    for (const GateJson& token : answer["tokens"]) {
      if (!token.is_number_integer()) break;
      out.push_back(token.get<int32_t>());
    }
    if (!out.empty() && out.size() == answer["tokens"].size()) return out;
  }
  return Error{ErrorCode::kUnsupported, "POST /tokenize: tokens: is no array of token ids"};
}

std::string GateServer::forced_problem() const {
  const auto tokens = tokenize({{"messages", {{{"role", "user"}, {"content", "Hello"}}}}});
  if (!tokens) return tokens.error().message;
  const GateJson body = {{"model", info_.model},    {"prompt", *tokens},
                         {"max_tokens", 1},         {"prompt_logprobs", kCaptureTop},
                         {"logprobs", kCaptureTop}, {"return_tokens_as_token_ids", true},
                         {"temperature", 0},        {"add_special_tokens", false}};
  const auto reply = client_->post("/v1/completions", body.dump(), 120);
  if (!reply) return reply.error().message;
  if (reply->status != 200) return refused(*reply, "/v1/completions").message;
  const auto answer = parse_completion(reply->body, *tokens);
  if (!answer) return answer.error().message;
  const CompletionChoice& choice = answer->choices.front();
  if (choice.prompt.empty() || choice.positions.empty()) return "POST /v1/completions: answers without logprobs";
  return {};
}

int GateServer::status_of(const std::string& body) {
  const auto reply = client_->post("/v1/chat/completions", body, 60);
  return reply ? reply->status : 0;
}

std::optional<int64_t> GateServer::count_tokens(const GateJson& messages) {
  const GateJson body = {{"model", info_.model}, {"messages", messages}};
  const auto reply = client_->post("/tokenize", body.dump(), 120);
  if (!reply || reply->status != 200) return std::nullopt;
  const GateJson answer = GateJson::parse(reply->body, nullptr, false);
  return answer.is_object() ? integer_in(answer, "count") : std::nullopt;
}

ServerResources GateServer::read_resources() {
  ServerResources out;
  const auto page = fetch_metrics(*client_, MetricLookup::kExact);
  if (!page) return out;
  out.resident_bytes = page->value("process_resident_memory_bytes");
  out.open_files = page->value("process_open_fds");
  out.threads = page->value("process_threads");
  out.start_seconds = page->value("process_start_time_seconds");
  out.pages_used = page->value("onelane_pages_used");
  const ServerReading reading = read_metrics(*page, info_.engine);
  if (!out.pages_used) out.pages_used = reading.kv_usage;
  out.running = reading.running;
  out.waiting = reading.waiting;
  out.generated_tokens = reading.generation_tokens;
  return out;
}

ServerResources GateServer::resources() {
  ServerResources out = read_resources();
  if (fault_ != nullptr && fault_->in_resources) fault_->in_resources(readings_++, out);
  return out;
}

bool GateServer::wait_idle(double seconds) {
  const auto end = HttpClock::now() + std::chrono::duration<double>(seconds);
  do {
    const ServerResources now = read_resources();
    if (now.running && now.waiting && *now.running == 0 && *now.waiting == 0) return true;
    std::this_thread::sleep_for(std::chrono::duration<double>(kPollSeconds));
  } while (HttpClock::now() < end);
  return false;
}

void GateServer::plant(const GateFault* fault) {
  fault_ = fault;
  readings_ = 0;
}

void GateServer::check_alive() {
  if (lost_) return;
  const auto models = client_->get("/v1/models");
  if (!models) return lose(models.error().message);
  const ServerResources now = read_resources();
  if (first_.start_seconds && now.start_seconds != first_.start_seconds) {
    return lose(now.start_seconds ? format("the server began anew: process start {} instead of {}", *now.start_seconds,
                                           *first_.start_seconds)
                                  : "the server no longer says when its process began");
  }
  // Half, because counters are not read in the moment of the last token.
  const double received = static_cast<double>(received_tokens_);
  if (first_.generated_tokens && now.generated_tokens.value_or(0) < *first_.generated_tokens + received / 2) {
    lose(format(
        "the server's counters went back, as after a restart: {} generated tokens, {} at first and {} received since",
        now.generated_tokens.value_or(0), *first_.generated_tokens, received));
  }
}

void GateServer::lose(std::string reason) {
  const std::lock_guard lock(mutex_);
  if (lost_.exchange(true)) return;
  lost_reason_ = std::move(reason);
}

std::string GateServer::lost_reason() const {
  const std::lock_guard lock(mutex_);
  return lost_reason_;
}

}  // namespace onelane
