// Router: from a request to its route, and everything that is the same for all routes.
//
// It checks the API key, answers 404 and 405, marks every answer with a request id, writes one log line per request
// (never with text of prompt or answer) and turns whatever a handler throws into a 500: no request ends the process.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_error.h"
#include "api/services.h"
#include "http/server.h"

namespace onelane {

enum class Protocol { kOpenAi, kAnthropic };  // decides the shape of errors

// A refusal in the protocol's shape.
HttpResponse error_response(Protocol protocol, const ApiError& error);

// The exchange that handlers get: adds the request id, and reports status, time and note when the answer is complete.
// Used on the I/O thread.
class ApiExchange final : public HttpExchange {
 public:
  struct Report {
    int status = 0;  // 499: the client went away first
    double seconds = 0;
    std::string note;
  };
  using Done = std::function<void(const Report&)>;

  static std::shared_ptr<ApiExchange> wrap(std::shared_ptr<HttpExchange> inner, Protocol protocol,
                                           std::string request_id, Done done);
  ~ApiExchange() override;

  void respond(HttpResponse response) override;
  void start(HttpResponse head) override;
  void write(std::string piece) override { inner_->write(std::move(piece)); }
  void finish() override;
  size_t queued_bytes() const override { return inner_->queued_bytes(); }
  void on_close(std::function<void()> closed) override;

  void fail(const ApiError& error) { respond(error_response(protocol_, error)); }
  // Numbers for the log line, for instance "12+34 tokens, stop".
  void note(std::string text) { note_ = std::move(text); }
  const std::string& request_id() const { return request_id_; }
  Protocol protocol() const { return protocol_; }
  bool answered() const { return status_ != 0; }
  bool gone() const { return gone_; }  // the client went away

 private:
  ApiExchange(std::shared_ptr<HttpExchange> inner, Protocol protocol, std::string request_id, Done done);
  void close();
  void report(int status);

  std::shared_ptr<HttpExchange> inner_;
  const Protocol protocol_;
  const std::string request_id_;
  Done done_;
  std::function<void()> closed_;
  bool gone_ = false;
  int status_ = 0;
  std::string note_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

class Router {
 public:
  using Handler = std::function<void(HttpRequest request, std::shared_ptr<ApiExchange> exchange)>;
  enum class Access { kOpen, kKey };

  // `services` must outlive the router.
  explicit Router(Services& services) : services_(services) {}

  // `path` is exact, or a prefix when it ends with '*'; exact paths win. A path has one protocol and one access.
  void add(std::string method, std::string path, Protocol protocol, Access access, Handler handler);
  // The HttpHandler. Never throws.
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange);

 private:
  struct Route {
    std::string method;
    std::string path;
    Protocol protocol = Protocol::kOpenAi;
    Access access = Access::kKey;
    Handler handler;
  };
  void dispatch(HttpRequest request, const std::shared_ptr<ApiExchange>& exchange, std::span<const Route* const> path);
  std::vector<const Route*> routes_of(std::string_view path) const;
  bool has_key(const HttpRequest& request) const;

  Services& services_;
  std::vector<Route> routes_;
};

// A new id: prefix and 32 hexadecimal digits.
std::string random_id(std::string_view prefix);

}  // namespace onelane
