#include "api/event_stream.h"

#include <utility>

#include "base/format.h"

namespace onelane {

EventStream::EventStream(std::shared_ptr<HttpExchange> exchange, std::function<void()> closed, std::string keep_alive)
    : exchange_(std::move(exchange)), closed_(std::move(closed)), keep_alive_(std::move(keep_alive)) {}

std::shared_ptr<EventStream> EventStream::start(const Services& services, std::shared_ptr<HttpExchange> exchange,
                                                std::function<void()> closed, std::string keep_alive) {
  std::shared_ptr<EventStream> stream(new EventStream(exchange, std::move(closed), std::move(keep_alive)));
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  // Proxies (nginx by this header) must not collect the stream.
  head.headers = {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}};
  exchange->start(std::move(head));
  exchange->on_close([weak = std::weak_ptr<EventStream>(stream)] {
    if (const auto self = weak.lock()) self->close();
  });
  if (services.options.keep_alive_seconds > 0) stream->arm(services);
  return stream;
}

// Two silent ticks of half the interval make a comment.
void EventStream::arm(const Services& services) {
  services.post_after(services.options.keep_alive_seconds / 2, [weak = weak_from_this(), &services] {
    const auto self = weak.lock();
    if (!self || !self->open_) return;
    self->silent_ticks_ = std::exchange(self->spoke_, false) ? 0 : self->silent_ticks_ + 1;
    if (self->silent_ticks_ == 2) {
      self->silent_ticks_ = 0;
      self->exchange_->write(self->keep_alive_);
    }
    self->arm(services);
  });
}

void EventStream::write(std::string piece) {
  if (!open_) return;
  spoke_ = true;
  exchange_->write(std::move(piece));
}

void EventStream::data(std::string_view json) { write(format("data: {}\n\n", json)); }

void EventStream::event(std::string_view name, std::string_view json) {
  write(format("event: {}\ndata: {}\n\n", name, json));
}

void EventStream::done() {
  data("[DONE]");
  finish();
}

void EventStream::finish() {
  if (!open_) return;
  open_ = false;
  closed_ = nullptr;
  exchange_->finish();
}

void EventStream::close() {
  if (!open_) return;
  open_ = false;
  if (const auto closed = std::exchange(closed_, nullptr)) closed();
}

}  // namespace onelane
