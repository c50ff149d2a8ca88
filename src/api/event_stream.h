// EventStream: server-sent events as the answer to one request.
//
// Every event is `data: ` (with the space: some clients require it) and one line of JSON, if need be behind an `event:`
// line. While nothing is said for services.options.keep_alive_seconds, a comment goes out, so that neither client nor
// proxy gives up during a long prefill. Used on the I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "api/services.h"
#include "http/server.h"

namespace onelane {

inline constexpr std::string_view kKeepAliveComment = ": keep-alive\n\n";

class EventStream : public std::enable_shared_from_this<EventStream> {
 public:
  // Starts a 200 answer of type text/event-stream. `closed` is called once if the client goes away before finish(); it
  // should cancel the generation. `keep_alive` is what is written when there is nothing to say.
  static std::shared_ptr<EventStream> start(const Services& services, std::shared_ptr<HttpExchange> exchange,
                                            std::function<void()> closed,
                                            std::string keep_alive = std::string(kKeepAliveComment));

  // `json` must not contain line breaks. Nothing is written once the stream is closed or finished.
  void data(std::string_view json);
  void event(std::string_view name, std::string_view json);
  // `data: [DONE]`, then finish().
  void done();
  void finish();
  bool open() const { return open_; }

 private:
  EventStream(std::shared_ptr<HttpExchange> exchange, std::function<void()> closed, std::string keep_alive);
  void write(std::string piece);
  void close();
  void arm(const Services& services);

  std::shared_ptr<HttpExchange> exchange_;
  std::function<void()> closed_;
  std::string keep_alive_;
  bool open_ = true;
  bool spoke_ = false;  // since the last tick
  int silent_ticks_ = 0;
};

}  // namespace onelane
