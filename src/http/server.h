// HttpServer: HTTP/1.1 on one I/O thread. Requests come in whole, answers go out whole or as a stream; it knows no
// routes.
//
// Limits are enforced before a handler sees a request. A reader that does not keep up is waited for until its queue is
// full, then dropped: nothing grows without bound. The read side of every connection is watched while an answer is
// under way, so a client that hangs up is noticed at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace onelane {

struct HttpRequest {
  std::string method;                                        // "GET"
  std::string path;                                          // percent-decoded, without the query
  std::vector<std::pair<std::string, std::string>> query;    // percent-decoded
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  std::string peer;  // "127.0.0.1:4711"

  // The first header of this (lower-case) name, or "".
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  // further ones
  std::string body;
};

// The answer to one request. All members may be called from any thread, and after the client has gone, when they do
// nothing. Either respond() once, or start() once, then write() any number of times, then finish(). When the last
// reference goes without an answer the client gets status 500.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual void respond(HttpResponse response) = 0;
  // Status and headers of a stream (chunked transfer encoding). `head.body` is its first piece.
  virtual void start(HttpResponse head) = 0;
  virtual void write(std::string piece) = 0;
  virtual void finish() = 0;

  // Bytes handed to write() that the client has not taken yet.
  virtual size_t queued_bytes() const = 0;
  // `closed` is called once, on the I/O thread, if the client goes away (or is dropped as too slow) before the answer
  // is complete; at once if it is gone already.
  virtual void on_close(std::function<void()> closed) = 0;
};

using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<HttpExchange> exchange)>;

struct HttpOptions {
  std::string host = "127.0.0.1";  // an address, not a name
  int port = 8000;                 // 0: any free one, see port()
  size_t max_body_bytes = size_t{64} << 20;
  size_t max_header_bytes = size_t{64} << 10;
  size_t max_queued_bytes = size_t{4} << 20;  // of one stream, before its reader counts as too slow
  int max_connections = 4096;
  double header_timeout_seconds = 30;  // a request must arrive within; also for its body, as long as bytes keep coming
  double idle_timeout_seconds = 120;   // between two requests
  double write_timeout_seconds = 60;   // a client that takes no byte for so long is dropped
};

class HttpServer {
 public:
  // Binds and listens. Errors name host and port.
  static Result<std::unique_ptr<HttpServer>> create(HttpOptions options, HttpHandler handler);
  virtual ~HttpServer() = default;

  // Serves on the calling thread until stop(). Handlers and on_close callbacks run on this thread; they must not block.
  virtual void run() = 0;
  // Runs `task` on the I/O thread. Thread-safe.
  virtual void post(std::function<void()> task) = 0;
  // Runs `task` on the I/O thread after a while; for keep-alives and timers. Thread-safe.
  virtual void post_after(double seconds, std::function<void()> task) = 0;
  // Calls `handle` on the I/O thread when the process gets one of these signals.
  virtual void on_signal(std::vector<int> signals, std::function<void(int signal)> handle) = 0;
  // Closes the listening socket and idle connections; answers under way go on. Thread-safe.
  virtual void close_listener() = 0;
  // Ends run() after closing every connection. Thread-safe.
  virtual void stop() = 0;

  virtual int port() const = 0;
  virtual int connections() const = 0;
};

}  // namespace onelane
