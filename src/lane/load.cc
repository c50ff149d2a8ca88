#include "lane/load.h"

#include <utility>

#include "base/check.h"

namespace onelane {

struct Load::Stream {
  int index = 0;
  HttpClient* client = nullptr;
  int64_t turn = 0;
  bool has_text = false;
  StreamTrace trace;  // the I/O thread's until the stream is idle
  std::shared_ptr<ChatCall> call;
};

Load::Load(std::vector<HttpClient*> clients, LoadOptions options) : options_(std::move(options)) {
  ONELANE_CHECK(!clients.empty() && options_.streams > 0 && options_.next,
                "a load needs clients, streams and requests");
  for (int i = 0; i < options_.streams; ++i) {
    streams_.push_back(std::make_unique<Stream>());
    streams_.back()->index = i;
    streams_.back()->client = clients[static_cast<size_t>(i) % clients.size()];
  }
  for (const auto& stream : streams_) {
    const std::lock_guard lock(mutex_);
    begin(*stream);
  }
}

Load::~Load() { (void)stop(); }

// With the lock. The call is kept under it too, so that stop() finds it however soon it ends.
void Load::begin(Stream& stream) {
  if (stopping_ || (options_.requests > 0 && begun_ >= options_.requests)) return;
  LoadRequest request = options_.next(stream.index, stream.turn, begun_);
  ++begun_;
  ++stream.turn;
  ++active_;
  stream.trace.prompt_ids.push_back(std::move(request.prompt_id));
  ChatOptions chat = options_.chat;
  chat.on_delta = [this, &stream](const ChatDelta& delta) { on_delta(stream, delta); };
  stream.call = start_chat(*stream.client, std::move(request.json), true, options_.continuous_usage, std::move(chat),
                           [this, &stream](const ChatResult& result) { on_end(stream, result); });
}

void Load::on_delta(Stream& stream, const ChatDelta& delta) {
  if (!delta.text && delta.tokens == 0) return;
  stream.trace.events.push_back({delta.at, static_cast<int32_t>(delta.tokens), delta.text});
  if (delta.text && !std::exchange(stream.has_text, true)) ++with_text_;
  tokens_ += delta.tokens;
  if (delta.text) ++text_chunks_;
  last_event_ = delta.at.time_since_epoch().count();
}

void Load::on_end(Stream& stream, const ChatResult& result) {
  stream.trace.requests.push_back(result);
  if (result.complete()) ++completed_;
  if (result.outcome == ChatOutcome::kFailed) ++failed_;
  const std::lock_guard lock(mutex_);
  --active_;
  stream.call.reset();
  if (result.complete()) begin(stream);
  if (active_ == 0) idle_.notify_all();
}

Load::Now Load::now() const {
  Now now{.with_text = with_text_,
          .completed = completed_,
          .failed = failed_,
          .tokens = tokens_,
          .text_chunks = text_chunks_,
          .last_event = HttpClock::time_point(HttpClock::duration(last_event_))};
  const std::lock_guard lock(mutex_);
  now.active = active_;
  return now;
}

void Load::wait() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return active_ == 0; });
}

std::vector<StreamTrace> Load::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& stream : streams_) {
      if (stream->call) stream->call->cancel();
    }
  }
  wait();
  std::vector<StreamTrace> traces;
  for (const auto& stream : streams_) traces.push_back(std::move(stream->trace));
  return traces;
}

}  // namespace onelane
