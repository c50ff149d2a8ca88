#include "api/router.h"

#include <algorithm>
#include <random>
#include <utility>

#include "api/metrics.h"
#include "base/format.h"
#include "base/log.h"

namespace onelane {
namespace {

// Takes time that depends on the lengths alone, so that a key cannot be guessed byte by byte.
bool equal_keys(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

// A client's own id comes back, unless it would break the header or the log.
std::string request_id(const HttpRequest& request) {
  const std::string_view own = request.header("x-request-id");
  const bool printable = std::all_of(own.begin(), own.end(), [](char c) { return c > ' ' && c < 0x7f; });
  return !own.empty() && own.size() <= 128 && printable ? std::string(own) : random_id("req_");
}

// Paths come from outside: what is not plain ASCII must not reach a terminal through the log.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 128)) out += c > ' ' && c < 0x7f ? c : '?';
  return out;
}

// "http://localhost:3000" without the scheme, as a Host header would name it.
std::string_view host_of(std::string_view origin) {
  const size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? origin : origin.substr(scheme + 3);
}

}  // namespace

std::string random_id(std::string_view prefix) {
  thread_local std::mt19937_64 random{(uint64_t{std::random_device{}()} << 32) ^ std::random_device{}()};
  return format("{}{:016x}{:016x}", prefix, random(), random());
}

HttpResponse error_response(Protocol protocol, const ApiError& error) {
  return protocol == Protocol::kAnthropic ? anthropic_error(error) : openai_error(error);
}

ApiExchange::ApiExchange(std::shared_ptr<HttpExchange> inner, Protocol protocol, std::string id, Done done)
    : inner_(std::move(inner)), protocol_(protocol), request_id_(std::move(id)), done_(std::move(done)) {}

std::shared_ptr<ApiExchange> ApiExchange::wrap(std::shared_ptr<HttpExchange> inner, Protocol protocol,
                                               std::string request_id, Done done) {
  std::shared_ptr<ApiExchange> exchange(
      new ApiExchange(std::move(inner), protocol, std::move(request_id), std::move(done)));
  exchange->inner_->on_close([weak = std::weak_ptr<ApiExchange>(exchange)] {
    if (const auto self = weak.lock()) self->close();
  });
  return exchange;
}

ApiExchange::~ApiExchange() {
  if (!answered() && !gone_) {
    fail({.status = 500, .message = "the request was dropped without an answer", .type = "server_error"});
  }
  if (done_) report(gone_ ? 499 : status_);
}

void ApiExchange::respond(HttpResponse response) {
  if (answered()) return;
  status_ = response.status;
  response.headers.emplace_back("x-request-id", request_id_);
  inner_->respond(std::move(response));
  report(status_);
}

void ApiExchange::start(HttpResponse head) {
  if (answered()) return;
  status_ = head.status;
  head.headers.emplace_back("x-request-id", request_id_);
  inner_->start(std::move(head));
}

void ApiExchange::finish() {
  inner_->finish();
  report(gone_ ? 499 : status_);
}

void ApiExchange::on_close(std::function<void()> closed) {
  if (gone_) return closed();
  closed_ = std::move(closed);
}

void ApiExchange::close() {
  gone_ = true;
  if (const auto closed = std::exchange(closed_, nullptr)) closed();
  report(499);
}

void ApiExchange::report(int status) {
  if (const auto done = std::exchange(done_, nullptr)) {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - began_;
    done({status, time.count(), note_});
  }
}

void Router::add(std::string method, std::string path, Protocol protocol, Access access, Handler handler) {
  routes_.push_back({std::move(method), std::move(path), protocol, access, std::move(handler)});
}

std::vector<const Router::Route*> Router::routes_of(std::string_view path) const {
  std::vector<const Route*> exact, prefix;
  for (const Route& route : routes_) {
    const std::string_view pattern = route.path;
    if (pattern == path) exact.push_back(&route);
    if (pattern.ends_with('*') && path.starts_with(pattern.substr(0, pattern.size() - 1))) prefix.push_back(&route);
  }
  return exact.empty() ? prefix : exact;
}

bool Router::has_key(const HttpRequest& request) const {
  const auto& keys = services_.options.api_keys;
  if (keys.empty()) return true;
  std::string_view given = request.header("x-api-key");
  const std::string_view authorization = request.header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  const bool bearer =
      authorization.size() > kBearer.size() &&
      std::equal(kBearer.begin(), kBearer.end(), authorization.begin(), [](char a, char b) { return a == (b | 0x20); });
  if (bearer) given = authorization.substr(kBearer.size());
  bool found = false;
  for (const std::string& key : keys) found = equal_keys(key, given) || found;
  return found;
}

void Router::dispatch(HttpRequest request, const std::shared_ptr<ApiExchange>& exchange,
                      std::span<const Route* const> path) {
  if (path.empty()) {
    exchange->fail({.status = 404, .message = format("there is no {}", printable(request.path)), .code = "not_found"});
    return;
  }
  std::string allow;
  const Route* route = nullptr;
  for (const Route* candidate : path) {
    // HEAD is GET whose body the server keeps to itself.
    const bool head = request.method == "HEAD" && candidate->method == "GET";
    if (candidate->method == request.method || head) route = candidate;
    allow += (allow.empty() ? "" : ", ") + candidate->method;
  }
  if (route == nullptr) {
    HttpResponse response = error_response(
        exchange->protocol(),
        {.status = 405,
         .message = format("{} is not for {}; allowed: {}", printable(request.path), printable(request.method), allow),
         .code = "method_not_allowed"});
    response.headers.emplace_back("allow", allow);
    exchange->respond(std::move(response));
    return;
  }
  // A page of another origin can send simple requests to a server on this machine without being able to read the
  // answer; nobody wants their work done.
  const std::string_view origin = request.header("origin");
  if (request.method != "GET" && request.method != "HEAD" && !origin.empty() &&
      host_of(origin) != request.header("host")) {
    exchange->fail({.status = 403, .message = "requests of pages from other origins are refused"});
    return;
  }
  if (route->access == Access::kKey && !has_key(request)) {
    exchange->fail({.status = 401,
                    .message = "the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'x-api-key'",
                    .type = "authentication_error",
                    .code = "invalid_api_key"});
    return;
  }
  route->handler(std::move(request), exchange);
}

void Router::handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const auto path = routes_of(request.path);
  const Protocol protocol = !path.empty()                                  ? path.front()->protocol
                            : !request.header("anthropic-version").empty() ? Protocol::kAnthropic
                                                                           : Protocol::kOpenAi;
  const std::string id = request_id(request);
  const std::string route = path.empty() ? "other" : path.front()->path;
  if (services_.options.log_text) log_info("{} asks: {}", id, request.body);
  auto done = [this, id, route, method = printable(request.method), path_text = printable(request.path),
               peer = request.peer](const ApiExchange::Report& report) {
    services_.metrics.http_request(route, report.status);
    if (!services_.options.log_requests) return;
    log_info("{} {} {} {:.3f} s {} {}{}{}", method, path_text, report.status, report.seconds, peer, id,
             report.note.empty() ? "" : ": ", report.note);
  };
  auto wrapped = ApiExchange::wrap(std::move(exchange), protocol, id, std::move(done));
  try {
    dispatch(std::move(request), wrapped, path);
  } catch (const std::exception& error) {
    log_error("request {} failed: {}", id, error.what());
    if (!wrapped->answered()) {
      wrapped->fail(
          {.status = 500, .message = "an internal error; the server's log says more", .type = "server_error"});
    }
  }
}

}  // namespace onelane
