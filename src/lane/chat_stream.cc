#include "lane/chat_stream.h"

#include <algorithm>
#include <future>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "lane/answer_json.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kExcerptBytes = 200;

std::string excerpt(std::string_view text) {
  return text.size() <= kExcerptBytes ? std::string(text) : std::string(text.substr(0, kExcerptBytes)) + "...";
}

// OpenAI's {"error": {"message"}}, or a bare string.
std::string error_message(const Json& error) {
  if (error.is_string()) return error.get<std::string>();
  const std::string_view message = error.is_object() ? string_in(error, "message") : std::string_view();
  return message.empty() ? excerpt(error.dump(-1, ' ', false, Json::error_handler_t::replace)) : std::string(message);
}

void read_usage(const Json& answer, ChatResult& result, ChatDelta& delta) {
  const auto usage = answer.find("usage");
  if (usage == answer.end() || !usage->is_object()) return;
  if (const auto prompt = integer_in(*usage, "prompt_tokens")) result.prompt_tokens = prompt;
  if (const auto details = usage->find("prompt_tokens_details"); details != usage->end() && details->is_object()) {
    if (const auto cached = integer_in(*details, "cached_tokens")) result.cached_tokens = cached;
  }
  delta.usage = integer_in(*usage, "completion_tokens");
  if (!delta.usage) return;
  const int64_t before = result.completion_tokens.value_or(0);
  if (*delta.usage < before) {
    ++result.usage_decreases;
  } else {
    delta.tokens = *delta.usage - before;
    result.completion_tokens = delta.usage;
  }
}

// Of a delta (pieces that are put together by index) or of a message.
void read_tool_calls(const Json& from, std::vector<ChatToolCall>& calls) {
  constexpr int64_t kMaxCalls = 1024;
  const auto list = from.find("tool_calls");
  if (list == from.end() || !list->is_array()) return;
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& call = (*list)[i];
    if (!call.is_object()) continue;
    const int64_t index = integer_in(call, "index").value_or(static_cast<int64_t>(i));
    if (index < 0 || index >= kMaxCalls) continue;
    if (calls.size() <= static_cast<size_t>(index)) calls.resize(static_cast<size_t>(index) + 1);
    ChatToolCall& whole = calls[static_cast<size_t>(index)];
    if (whole.id.empty()) whole.id = string_in(call, "id");
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object()) continue;
    if (whole.name.empty()) whole.name = string_in(*function, "name");
    whole.arguments += string_in(*function, "arguments");
  }
}

std::string_view reasoning_in(const Json& message) {
  const std::string_view text = string_in(message, "reasoning_content");  // the same text has both names
  return text.empty() ? string_in(message, "reasoning") : text;
}

}  // namespace

Result<std::string> chat_request_json(const ChatRequest& request) {
  Json json;
  json["model"] = request.model;
  json["messages"] = Json::array();
  for (const auto& [role, content] : request.messages) {
    json["messages"].push_back(Json{{"role", role}, {"content", content}});
  }
  json["stream"] = request.stream;
  if (request.max_tokens > 0) json["max_tokens"] = request.max_tokens;
  if (request.stream) {
    json["stream_options"]["include_usage"] = true;
    if (request.continuous_usage) json["stream_options"]["continuous_usage_stats"] = true;
  }
  if (request.ignore_eos) json["ignore_eos"] = true;
  if (request.temperature) json["temperature"] = *request.temperature;
  if (request.top_p) json["top_p"] = *request.top_p;
  if (request.seed) json["seed"] = *request.seed;
  if (!request.more.empty()) {
    const Json more = Json::parse(request.more, nullptr, false);
    if (!more.is_object()) {
      return Error{ErrorCode::kInvalidArgument,
                   "chat request: the additional members must be a JSON object, not " + excerpt(request.more)};
    }
    json.update(more);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<double> ChatResult::itl_s() const {
  if (!first_text_s || !last_text_s || tokens() < 2) return std::nullopt;
  return (*last_text_s - *first_text_s) / static_cast<double>(tokens() - 1);
}

ChatReader::ChatReader(HttpClock::time_point started, bool continuous_usage, ChatOptions options)
    : started_(started), continuous_usage_(continuous_usage), options_(std::move(options)), sse_(options_.sse) {
  result_.started = started;
}

double ChatReader::seconds(HttpClock::time_point at) const {
  return std::chrono::duration<double>(at - started_).count();
}

void ChatReader::feed(std::string_view bytes, HttpClock::time_point arrived) {
  if (broken()) return;
  const auto fed = sse_.feed(bytes, [&](std::string_view data) { on_event(data, arrived); });
  if (!fed && !broken()) result_.problem = fed.error().message;
}

void ChatReader::on_event(std::string_view data, HttpClock::time_point arrived) {
  if (broken() || result_.done_marker) return;
  if (data == "[DONE]") {
    result_.done_marker = true;
    return;
  }
  const Json event = Json::parse(data, nullptr, false);
  if (!event.is_object()) {
    result_.problem = "an event that is not a JSON object: " + excerpt(data);
    return;
  }
  if (const auto error = event.find("error"); error != event.end() && !error->is_null()) {
    result_.problem = "an error in the stream: " + error_message(*error);
    return;
  }
  ChatDelta delta{.at = arrived};
  read_usage(event, result_, delta);

  const auto choices = event.find("choices");
  if (choices != event.end() && choices->is_array() && !choices->empty() && choices->front().is_object()) {
    const Json& choice = choices->front();
    if (const std::string_view reason = string_in(choice, "finish_reason"); !reason.empty()) {
      result_.finish_reason = reason;
    }
    const auto piece = choice.find("delta");
    if (piece == choice.end() || !piece->is_object()) {
      ++result_.null_deltas;
      result_.problem = "choices[0].delta is not an object: " + excerpt(data);
      return;
    }
    const std::string_view content = string_in(*piece, "content");
    const std::string_view reasoning = reasoning_in(*piece);
    const double at = seconds(arrived);
    if (!reasoning.empty() && !result_.first_reasoning_s) result_.first_reasoning_s = at;
    if (!content.empty() && !result_.first_content_s) result_.first_content_s = at;
    delta.text = !content.empty() || !reasoning.empty();
    if (delta.text) {
      if (!result_.first_text_s) result_.first_text_s = at;
      result_.last_text_s = at;
      ++result_.text_chunks;
      if (continuous_usage_ && !delta.usage) ++result_.text_chunks_without_usage;
    }
    if (options_.keep_text) {
      result_.content += content;
      result_.reasoning += reasoning;
      read_tool_calls(*piece, result_.tool_calls);
    }
  }
  if (options_.on_delta) options_.on_delta(delta);
}

ChatResult ChatReader::finish(const HttpReply& reply) {
  ChatResult result = std::move(result_);
  result.end = reply.end;
  result.status = reply.status;
  result.total_s = seconds(reply.ended);
  if (reply.end == HttpEnd::kCancelled && result.problem.empty()) {
    result.outcome = ChatOutcome::kCancelled;
    result.problem = reply.problem;
  } else if (reply.end != HttpEnd::kComplete) {
    if (result.problem.empty()) result.problem = reply.problem;
  } else if (reply.status < 200 || reply.status > 299) {
    const Json answer = Json::parse(reply.body, nullptr, false);
    const bool told = answer.is_object() && answer.contains("error");
    result.problem = format("status {}: {}", reply.status, told ? error_message(answer["error"]) : excerpt(reply.body));
  } else if (result.problem.empty()) {
    if (result.done_marker) {
      result.outcome = ChatOutcome::kComplete;
    } else {
      result.problem = "the stream ended without data: [DONE]";
    }
  }
  return result;
}

namespace {

// An answer that is no stream.
ChatResult read_answer(const HttpReply& reply, bool keep_text) {
  ChatReader reader(reply.started, false, {});
  ChatResult result = reader.finish(reply);
  result.body = reply.body;
  if (reply.end != HttpEnd::kComplete || reply.status < 200 || reply.status > 299) return result;
  const Json answer = Json::parse(reply.body, nullptr, false);
  const auto choices = answer.is_object() ? answer.find("choices") : answer.end();
  const bool whole = answer.is_object() && choices != answer.end() && choices->is_array() && !choices->empty() &&
                     choices->front().is_object() && choices->front().contains("message") &&
                     choices->front()["message"].is_object();
  if (!whole) {
    result.problem = "an answer without choices[0].message: " + excerpt(reply.body);
    return result;
  }
  result.outcome = ChatOutcome::kComplete;
  result.problem.clear();
  ChatDelta unused;
  read_usage(answer, result, unused);
  result.finish_reason = string_in(choices->front(), "finish_reason");
  const Json& message = choices->front()["message"];
  if (keep_text) {
    result.content = string_in(message, "content");
    result.reasoning = reasoning_in(message);
    read_tool_calls(message, result.tool_calls);
  }
  return result;
}

class Call final : public ChatCall, public std::enable_shared_from_this<Call> {
 public:
  Call(bool continuous_usage, ChatOptions options, std::function<void(const ChatResult&)> done)
      : continuous_usage_(continuous_usage), options_(std::move(options)), done_(std::move(done)) {}

  void start(HttpClient& client, std::string json, bool stream) {
    HttpCall call{.method = "POST", .path = "/v1/chat/completions", .body = std::move(json)};
    call.total_seconds = options_.total_seconds;
    call.idle_seconds = options_.idle_seconds;
    const auto self = shared_from_this();
    if (stream) {
      call.on_body = [self](std::string_view piece, HttpClock::time_point arrived) { self->take(piece, arrived); };
    }
    started_ = HttpClock::now();
    if (stream) reader_.emplace(started_, continuous_usage_, options_);
    const auto pending = client.start(std::move(call), [self](const HttpReply& reply) { self->end(reply); });
    const std::lock_guard lock(mutex_);
    pending_ = pending;
    if (cancelled_) pending_->cancel();
  }

  void cancel() override {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (pending_) pending_->cancel();
  }
  const ChatResult& wait() override {
    ended_future_.wait();
    return result_;
  }
  bool ended() const override { return ended_future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

 private:
  void take(std::string_view piece, HttpClock::time_point arrived) {
    reader_->feed(piece, arrived);
    if (reader_->broken()) cancel();  // nothing can come of it
  }
  void end(const HttpReply& reply) {
    result_ = reader_ ? reader_->finish(reply) : read_answer(reply, options_.keep_text);
    if (reader_) reader_.reset();
    options_.on_delta = {};
    if (const auto done = std::exchange(done_, {})) done(result_);
    ended_promise_.set_value();
  }

  const bool continuous_usage_;
  ChatOptions options_;
  std::function<void(const ChatResult&)> done_;
  HttpClock::time_point started_;
  std::optional<ChatReader> reader_;
  ChatResult result_;
  std::mutex mutex_;
  bool cancelled_ = false;
  std::shared_ptr<HttpPending> pending_;
  std::promise<void> ended_promise_;
  std::shared_future<void> ended_future_ = ended_promise_.get_future().share();
};

}  // namespace

std::shared_ptr<ChatCall> start_chat(HttpClient& client, std::string json, bool stream, bool continuous_usage,
                                     ChatOptions options, std::function<void(const ChatResult&)> done) {
  auto call = std::make_shared<Call>(continuous_usage, std::move(options), std::move(done));
  call->start(client, std::move(json), stream);
  return call;
}

ChatResult chat(HttpClient& client, const ChatRequest& request, ChatOptions options) {
  auto json = chat_request_json(request);
  if (!json) {
    ChatResult failed;
    failed.problem = json.error().message;
    return failed;
  }
  return start_chat(client, std::move(*json), request.stream, request.continuous_usage, std::move(options))->wait();
}

}  // namespace onelane
