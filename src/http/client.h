// HttpClient: HTTP/1.1 requests to one server, for benchmarks and gates: whole answers, and streams whose pieces are
// stamped as they arrive.
//
// One I/O thread per client, a connection of its own per call, no redirects, no retries: what is measured is what the
// server did. A failure is data like an answer: how a call ended is in its reply, and nothing is silently left out.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace onelane {

using HttpClock = std::chrono::steady_clock;

struct HttpClientOptions {
  std::string url;      // base URL, see parse_http_url()
  std::string api_key;  // sent as a bearer token unless empty
  double connect_seconds = 30;
};

struct HttpCall {
  std::string method = "GET";
  std::string path;  // "/v1/models", behind the base URL's prefix
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;  // JSON, unless `headers` has another Content-Type
  double total_seconds = 600;
  double idle_seconds = 0;  // longest time without a byte, from the request's last byte on; 0: no limit
  size_t max_body_bytes = size_t{64} << 20;  // of HttpReply::body; a longer one ends the call as kMalformed
  // Pieces of a 2xx answer's body on the I/O thread, stamped when recv() returned. It must not block. Without it, and
  // for other statuses, the body is collected in the reply.
  std::function<void(std::string_view piece, HttpClock::time_point arrived)> on_body = {};
};

enum class HttpEnd {
  kComplete,      // the answer ended as its framing promised, whatever its status
  kNotConnected,  // nobody listens, or not within connect_seconds
  kTimeout,       // total_seconds or idle_seconds
  kBroken,        // the server closed or reset the connection before the answer's end
  kMalformed,     // not HTTP, or too long
  kCancelled,     // by the caller
};

struct HttpReply {
  HttpEnd end = HttpEnd::kComplete;
  std::string problem;                                       // a sentence with method and URL, unless kComplete
  int status = 0;                                            // 0: no head came
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  size_t body_bytes = 0;          // of all pieces, collected or not
  HttpClock::time_point started;  // before connecting
  HttpClock::time_point ended;

  bool ok() const { return end == HttpEnd::kComplete && status >= 200 && status < 300; }
  // The first header of this (lower-case) name, or "".
  std::string_view header(std::string_view name) const;
};

// A call under way. All members may be called from any thread.
class HttpPending {
 public:
  virtual ~HttpPending() = default;

  // Closes the connection soon; on_body may be called a last time meanwhile. Nothing happens if the call has ended.
  virtual void cancel() = 0;
  // The reply, as soon as there is one. Not on the I/O thread.
  virtual const HttpReply& wait() = 0;
  virtual bool ended() const = 0;
};

class HttpClient {
 public:
  // Checks the URL and resolves the host's name, once. Errors name the URL.
  static Result<std::unique_ptr<HttpClient>> create(HttpClientOptions options);
  // Cancels what is under way and waits for it.
  virtual ~HttpClient() = default;

  // Begins a call. `done` is called on the I/O thread when it has ended; it may start others. From any thread. Letting
  // go of the handle does not cancel.
  virtual std::shared_ptr<HttpPending> start(HttpCall call, std::function<void(const HttpReply&)> done = {}) = 0;

  // How late the I/O thread looked at its clock, in seconds, one sample every 10 ms since the last call: stamps are off
  // by about as much. From any thread.
  virtual std::vector<double> take_lag_seconds() = 0;

  // start() and wait(). An Error (kIo) if the answer did not come whole; a status like 500 is not one.
  Result<HttpReply> send(HttpCall call);
  Result<HttpReply> get(std::string path, double total_seconds = 10);
  Result<HttpReply> post(std::string path, std::string json, double total_seconds = 600);
};

}  // namespace onelane
