#include "http/client.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "base/format.h"
#include "http/response_parser.h"
#include "http/target.h"

namespace onelane {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using SystemError = boost::system::error_code;
using TimePoint = HttpClock::time_point;

constexpr auto kToken = asio::as_tuple(asio::use_awaitable);  // errors as values
constexpr size_t kReadBytes = size_t{16} << 10;
constexpr double kLongestSeconds = 1e8;  // a clock's nanoseconds hold three centuries
constexpr std::chrono::milliseconds kLagInterval{10};
constexpr size_t kMaxLagSamples = 1 << 20;  // three hours

HttpClock::duration duration(double seconds) {
  return std::chrono::duration_cast<HttpClock::duration>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, kLongestSeconds)));
}

struct Shared {
  HttpUrl url;
  HttpClientOptions options;
  std::vector<tcp::endpoint> endpoints;
};

std::string request_text(const Shared& shared, const HttpCall& call) {
  std::string text = format("{} {}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", call.method, shared.url.prefix,
                            call.path, shared.url.authority());
  if (!shared.options.api_key.empty()) text += format("Authorization: Bearer {}\r\n", shared.options.api_key);
  bool typed = call.body.empty();
  for (const auto& [name, value] : call.headers) {
    text += format("{}: {}\r\n", name, value);
    typed = typed || name == "Content-Type";
  }
  if (!typed) text += "Content-Type: application/json\r\n";
  if (!call.body.empty() || call.method == "POST") text += format("Content-Length: {}\r\n", call.body.size());
  return text + "\r\n" + call.body;
}

// One call on its connection. The I/O thread's, but for cancel(), wait() and ended().
class Flight final : public HttpPending, public std::enable_shared_from_this<Flight> {
 public:
  Flight(asio::io_context& io, const Shared& shared, HttpCall call, std::function<void(const HttpReply&)> done)
      : io_(io), shared_(shared), call_(std::move(call)), done_(std::move(done)), socket_(io), timer_(io) {}

  void cancel() override {
    if (ended()) return;  // the client may be gone
    asio::post(io_, [self = shared_from_this()] { self->stop(HttpEnd::kCancelled, "cancelled"); });
  }
  const HttpReply& wait() override {
    if (ended()) return reply_;  // the client may be gone
    ONELANE_CHECK(!io_.get_executor().running_in_this_thread(), "the I/O thread would wait for itself");
    ended_future_.wait();
    return reply_;
  }
  bool ended() const override { return ended_future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

  // Ends the call for this reason, unless it has ended or another reason came first.
  void stop(HttpEnd end, std::string_view why) {
    if (over_ || stopped_) return;
    stopped_ = true;
    reply_.end = end;
    reply_.problem = problem(why);
    SystemError ignored;
    socket_->close(ignored);
  }

  // Runs the call to its end and gives `reply_` its last touch.
  static asio::awaitable<void> fly(std::shared_ptr<Flight> self,
                                   std::function<void(const std::shared_ptr<Flight>&)> landed) {
    self->reply_.started = HttpClock::now();
    self->total_deadline_ = self->reply_.started + duration(self->call_.total_seconds);
    asio::co_spawn(self->io_, watch(self), asio::detached);
    if (!self->stopped_) co_await self->converse();
    self->over_ = true;
    self->socket_.reset();  // here, since the handle may outlive the client and its event loop
    self->timer_.reset();
    self->reply_.ended = HttpClock::now();
    landed(self);
    // Let go before anybody knows of the end: what they refer to may be gone then.
    self->call_.on_body = {};
    if (const auto done = std::exchange(self->done_, {})) done(self->reply_);
    self->ended_promise_.set_value();
  }

 private:
  std::string problem(std::string_view why) const {
    return format("{} http://{}{}{}: {}", call_.method, shared_.url.authority(), shared_.url.prefix, call_.path, why);
  }

  asio::awaitable<void> converse() {
    set_deadline(HttpClock::now() + duration(shared_.options.connect_seconds), HttpEnd::kNotConnected,
                 format("no connection within {:g} s", shared_.options.connect_seconds));
    const auto [not_connected, endpoint] = co_await asio::async_connect(*socket_, shared_.endpoints, kToken);
    if (not_connected) co_return stop(HttpEnd::kNotConnected, "cannot connect: " + not_connected.message());
    SystemError ignored;
    socket_->set_option(tcp::no_delay(true), ignored);

    set_deadline(TimePoint::max(), HttpEnd::kTimeout, "");
    const std::string text = request_text(shared_, call_);
    const auto [not_sent, sent] = co_await asio::async_write(*socket_, asio::buffer(text), kToken);
    // A server may refuse a request before it has read all of it: its answer counts, if there is one.
    if (not_sent && stopped_) co_return;
    co_await receive(not_sent);
  }

  asio::awaitable<void> receive(SystemError not_sent) {
    ResponseParser parser([this](std::string_view piece) { take(piece); });
    parser_ = &parser;
    std::vector<char> buffer(kReadBytes);
    std::string waiting;  // bytes that the parser wants again with more behind them
    for (;;) {
      if (call_.idle_seconds > 0) {
        set_deadline(HttpClock::now() + duration(call_.idle_seconds), HttpEnd::kTimeout,
                     format("no byte for {:g} s", call_.idle_seconds));
      }
      const auto [error, count] = co_await socket_->async_read_some(asio::buffer(buffer), kToken);
      arrived_ = HttpClock::now();
      if (stopped_) break;
      std::string_view bytes(buffer.data(), count);
      if (!waiting.empty()) bytes = waiting.append(bytes);
      const auto fed = parser.feed(bytes);
      if (parser.head_done() && reply_.status == 0) {
        reply_.status = parser.status();
        reply_.headers = parser.headers();
      }
      if (!fed) co_return stop(HttpEnd::kMalformed, fed.error().message);
      if (stopped_ || parser.done()) break;
      waiting = std::string(bytes.substr(*fed));
      if (!error) continue;
      if (error == asio::error::eof) {
        const auto ended = parser.end();
        if (ended) break;
        co_return stop(HttpEnd::kBroken, ended.error().message);
      }
      co_return stop(HttpEnd::kBroken, not_sent ? not_sent.message() : error.message());
    }
  }

  void take(std::string_view piece) {
    reply_.body_bytes += piece.size();
    if (stopped_) return;
    const int status = parser_->status();
    if (call_.on_body && status >= 200 && status < 300) return call_.on_body(piece, arrived_);
    if (reply_.body.size() + piece.size() > call_.max_body_bytes) {
      return stop(HttpEnd::kMalformed, format("a body of more than {} bytes", call_.max_body_bytes));
    }
    reply_.body += piece;
  }

  void set_deadline(TimePoint when, HttpEnd end, std::string why) {
    const bool earlier = when < deadline_;
    deadline_ = when;
    deadline_end_ = end;
    deadline_why_ = std::move(why);
    if (earlier) timer_->cancel();  // watch() looks again; a later one it finds by itself
  }

  static asio::awaitable<void> watch(std::shared_ptr<Flight> self) {
    while (!self->over_ && !self->stopped_) {
      const TimePoint next = std::min(self->total_deadline_, self->deadline_);
      const TimePoint now = HttpClock::now();
      if (now >= self->total_deadline_) {
        self->stop(HttpEnd::kTimeout, format("no complete answer within {:g} s", self->call_.total_seconds));
      } else if (now >= next) {
        self->stop(self->deadline_end_, self->deadline_why_);
      } else {
        self->timer_->expires_at(next);
        co_await self->timer_->async_wait(kToken);
      }
    }
  }

  asio::io_context& io_;
  const Shared& shared_;
  HttpCall call_;
  std::function<void(const HttpReply&)> done_;
  // Until the call is over.
  std::optional<tcp::socket> socket_;
  std::optional<asio::steady_timer> timer_;
  HttpReply reply_;
  ResponseParser* parser_ = nullptr;
  TimePoint arrived_;
  TimePoint total_deadline_ = TimePoint::max();
  TimePoint deadline_ = TimePoint::max();
  HttpEnd deadline_end_ = HttpEnd::kTimeout;
  std::string deadline_why_;
  bool stopped_ = false;  // `reply_` has its reason
  bool over_ = false;
  std::promise<void> ended_promise_;
  std::shared_future<void> ended_future_ = ended_promise_.get_future().share();
};

class Client final : public HttpClient {
 public:
  explicit Client(Shared shared) : shared_(std::move(shared)), work_(asio::make_work_guard(io_)), lag_timer_(io_) {
    asio::co_spawn(io_, watch_lag(), asio::detached);
    thread_ = std::thread([this] { io_.run(); });
  }

  ~Client() override {
    asio::post(io_, [this] {
      closing_ = true;
      lag_timer_.cancel();
      for (const auto& flight : std::vector(flights_.begin(), flights_.end())) {
        flight->stop(HttpEnd::kCancelled, "cancelled");
      }
      work_.reset();
    });
    thread_.join();
  }

  std::shared_ptr<HttpPending> start(HttpCall call, std::function<void(const HttpReply&)> done) override {
    auto flight = std::make_shared<Flight>(io_, shared_, std::move(call), std::move(done));
    asio::post(io_, [this, flight] {
      flights_.insert(flight);
      if (closing_) flight->stop(HttpEnd::kCancelled, "cancelled");
      asio::co_spawn(io_, Flight::fly(flight, [this](const auto& landed) { flights_.erase(landed); }), asio::detached);
    });
    return flight;
  }

  std::vector<double> take_lag_seconds() override {
    const std::lock_guard lock(lag_mutex_);
    return std::exchange(lag_, {});
  }

 private:
  asio::awaitable<void> watch_lag() {
    while (!closing_) {
      const TimePoint due = HttpClock::now() + kLagInterval;
      lag_timer_.expires_at(due);
      const auto [error] = co_await lag_timer_.async_wait(kToken);
      if (error) co_return;
      const double late = std::chrono::duration<double>(HttpClock::now() - due).count();
      const std::lock_guard lock(lag_mutex_);
      if (lag_.size() < kMaxLagSamples) lag_.push_back(late);
    }
  }

  const Shared shared_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::steady_timer lag_timer_;
  std::unordered_set<std::shared_ptr<Flight>> flights_;
  bool closing_ = false;
  std::mutex lag_mutex_;
  std::vector<double> lag_;
  std::thread thread_;
};

Result<std::vector<tcp::endpoint>> resolve(const HttpUrl& url) {
  asio::io_context io;
  SystemError error;
  const auto found = tcp::resolver(io).resolve(url.host, std::to_string(url.port), error);
  if (error || found.empty()) {
    return Error{ErrorCode::kNotFound, format("host \"{}\" is not known: {}", url.host, error.message())};
  }
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  return endpoints;
}

}  // namespace

Result<std::unique_ptr<HttpClient>> HttpClient::create(HttpClientOptions options) {
  ONELANE_ASSIGN(HttpUrl url, parse_http_url(options.url));
  for (const char c : options.api_key) {
    if (c <= ' ' || c == '\x7f') return Error{ErrorCode::kInvalidArgument, "API key: a space or control character"};
  }
  ONELANE_ASSIGN(auto endpoints, resolve(url));
  return std::unique_ptr<HttpClient>(
      std::make_unique<Client>(Shared{std::move(url), std::move(options), std::move(endpoints)}));
}

Result<HttpReply> HttpClient::send(HttpCall call) {
  HttpReply reply = start(std::move(call))->wait();
  if (reply.end != HttpEnd::kComplete) return Error{ErrorCode::kIo, reply.problem};
  return reply;
}

Result<HttpReply> HttpClient::get(std::string path, double total_seconds) {
  return send({.method = "GET", .path = std::move(path), .total_seconds = total_seconds});
}

Result<HttpReply> HttpClient::post(std::string path, std::string json, double total_seconds) {
  return send({.method = "POST", .path = std::move(path), .body = std::move(json), .total_seconds = total_seconds});
}

std::string_view HttpReply::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

}  // namespace onelane
