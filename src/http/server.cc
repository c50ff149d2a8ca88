#include "http/server.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <exception>
#include <unordered_set>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/log.h"
#include "http/connection.h"
#include "http/exchange.h"

namespace onelane {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using SystemError = boost::system::error_code;

constexpr auto kToken = asio::as_tuple(asio::use_awaitable);  // errors as values
constexpr size_t kReadBufferBytes = size_t{128} << 10;
constexpr size_t kLeastHeaderBytes = 64;
constexpr int kMaxRefusals = 64;         // connections over the limit that are told so; further ones are just closed
constexpr double kLongestSeconds = 1e9;  // a clock's nanoseconds hold three centuries
constexpr std::chrono::milliseconds kFirstAcceptPause{50};
constexpr std::chrono::milliseconds kLongestAcceptPause{1000};

std::string endpoint_text(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? format("[{}]:{}", address, endpoint.port())
                                    : format("{}:{}", address, endpoint.port());
}

Result<void> check(const HttpOptions& options) {
  const auto refuse = [](std::string message) { return Error{ErrorCode::kInvalidArgument, std::move(message)}; };
  if (options.port < 0 || options.port > 65535) {
    return refuse(format("cannot listen on port {}: expected 0 to 65535", options.port));
  }
  if (options.max_connections < 1) {
    return refuse(format("max_connections = {}: expected at least 1", options.max_connections));
  }
  if (options.max_header_bytes < kLeastHeaderBytes) {
    return refuse(format("max_header_bytes = {}: expected at least {}", options.max_header_bytes, kLeastHeaderBytes));
  }
  for (const auto& [name, seconds] : {std::pair("header_timeout_seconds", options.header_timeout_seconds),
                                      std::pair("idle_timeout_seconds", options.idle_timeout_seconds),
                                      std::pair("write_timeout_seconds", options.write_timeout_seconds)}) {
    if (!(seconds > 0 && seconds <= kLongestSeconds)) {
      return refuse(format("{} = {}: expected a number above 0 and at most {}", name, seconds, kLongestSeconds));
    }
  }
  return {};
}

// A peer whose machine has vanished sends nothing, not even an end; the kernel asks after it.
void set_options(tcp::socket& socket) {
  const auto set = [&](int level, int name, int value) {
    ::setsockopt(socket.native_handle(), level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 15);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

class Server;

// A connection with its socket in the event loop.
class Link final : public Connection {
 public:
  Link(Server& server, tcp::socket socket, std::string peer, bool refused);

  const bool refused;  // over max_connections; not counted as one

  void watch_read() override;

 protected:
  void watch_write() override;
  void close_socket(bool reset) override;

 private:
  std::shared_ptr<Link> self() { return std::static_pointer_cast<Link>(shared_from_this()); }
  static asio::awaitable<void> read_loop(std::shared_ptr<Link> link);

  Server& server_;
  tcp::socket socket_;
  bool reading_ = false;
};

class Server final : public HttpServer, public ConnectionHost {
 public:
  Server(HttpOptions options, HttpHandler handler)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        io_(1),
        work_(asio::make_work_guard(io_)),
        acceptor_(io_),
        mailbox_(std::make_shared<Mailbox>([this] { asio::post(io_, [this] { deliver(); }); })) {}

  ~Server() override {
    mailbox_->close();
    // Closed here and not with their frames, so that no callback of theirs finds a server half gone.
    for (const auto& link : all_links()) link->close_now();
  }

  Result<void> listen();

  // HttpServer
  void run() override;
  void post(std::function<void()> task) override {
    asio::post(io_, [task = std::move(task)] { guarded("a task", task); });
  }
  void post_after(double seconds, std::function<void()> task) override;
  void on_signal(std::vector<int> signals, std::function<void(int)> handle) override;
  void close_listener() override;
  void stop() override;
  int port() const override { return port_; }
  int connections() const override { return connections_.load(std::memory_order_relaxed); }

  // ConnectionHost
  const HttpOptions& options() const override { return options_; }
  bool draining() const override { return draining_; }
  std::span<char> read_buffer() override { return read_buffer_; }
  void handle(HttpRequest request, std::shared_ptr<Answer> answer) override {
    guarded("a request handler", [&] { handler_(std::move(request), make_exchange(mailbox_, std::move(answer))); });
  }
  void call_soon(std::function<void()> call) override {
    asio::post(io_, [call = std::move(call)] { guarded("a close callback", call); });
  }

  asio::io_context& io() { return io_; }
  void remove(const std::shared_ptr<Link>& link);

 private:
  // Handlers do not throw by convention. If one does, its request fails, not the server.
  template <class Call>
  static void guarded(const char* what, Call&& call) {
    try {
      call();
    } catch (const std::exception& error) {
      log_error("http: {} threw: {}", what, error.what());
    }
  }

  asio::awaitable<void> accept_loop();
  asio::awaitable<void> tick_loop();
  void admit(tcp::socket socket);
  void deliver();
  std::vector<std::shared_ptr<Link>> all_links() const { return {links_.begin(), links_.end()}; }

  const HttpOptions options_;
  const HttpHandler handler_;
  std::vector<char> read_buffer_ = std::vector<char>(kReadBufferBytes);
  int port_ = 0;
  std::atomic<int> connections_{0};
  int refusals_ = 0;
  bool draining_ = false;
  std::unordered_set<std::shared_ptr<Link>> links_;  // outlives io_: frames destroyed with it may close links

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  tcp::acceptor acceptor_;
  std::shared_ptr<Mailbox> mailbox_;
};

// --- Link ---

Link::Link(Server& server, tcp::socket socket, std::string peer, bool over_limit)
    : Connection(server, socket.native_handle(), std::move(peer)),
      refused(over_limit),
      server_(server),
      socket_(std::move(socket)) {}

void Link::watch_read() {
  if (reading_ || !wants_read()) return;
  reading_ = true;
  asio::co_spawn(server_.io(), read_loop(self()), asio::detached);
}

asio::awaitable<void> Link::read_loop(std::shared_ptr<Link> link) {
  while (link->wants_read()) {
    const auto [error] = co_await link->socket_.async_wait(tcp::socket::wait_read, kToken);
    if (error) break;  // closed
    link->on_readable();
  }
  link->reading_ = false;
}

void Link::watch_write() {
  socket_.async_wait(tcp::socket::wait_write, [link = self()](const SystemError& error) {
    if (!error) link->on_writable();
  });
}

void Link::close_socket(bool reset) {
  SystemError ignored;
  if (reset) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  socket_.close(ignored);
  server_.remove(self());
}

// --- Server ---

Result<void> Server::listen() {
  ONELANE_TRY(check(options_));
  const auto failed = [&](const char* step, const SystemError& error) {
    return Error{ErrorCode::kIo, format("cannot {} {}:{}: {}", step, options_.host, options_.port, error.message())};
  };
  SystemError error;
  const asio::ip::address address = asio::ip::make_address(options_.host, error);
  if (error) {
    return Error{ErrorCode::kInvalidArgument,
                 format("cannot listen on host \"{}\": an IP address was expected, for instance 127.0.0.1 or 0.0.0.0",
                        options_.host)};
  }
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(options_.port));
  if (acceptor_.open(endpoint.protocol(), error)) return failed("open a socket for", error);
  if (acceptor_.set_option(tcp::acceptor::reuse_address(true), error)) return failed("listen on", error);
  if (acceptor_.bind(endpoint, error)) return failed("listen on", error);
  if (acceptor_.listen(tcp::acceptor::max_listen_connections, error)) return failed("listen on", error);
  port_ = acceptor_.local_endpoint(error).port();
  if (error) return failed("listen on", error);
  return {};
}

void Server::run() {
  asio::co_spawn(io_, accept_loop(), asio::detached);
  asio::co_spawn(io_, tick_loop(), asio::detached);
  io_.run();
  mailbox_->close();
}

asio::awaitable<void> Server::accept_loop() {
  asio::steady_timer pause(io_);
  auto length = kFirstAcceptPause;
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(kToken);
    if (!error) {
      length = kFirstAcceptPause;
      admit(std::move(socket));
      continue;
    }
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) break;
    if (error == asio::error::connection_aborted) continue;  // the client has gone again
    // Out of descriptors or memory: trying again at once would spin. Clients wait in the kernel's queue.
    log_warning("http: cannot accept connections on port {}: {}; next try in {} ms", port_, error.message(),
                length.count());
    pause.expires_after(length);
    co_await pause.async_wait(kToken);
    length = std::min(length * 2, kLongestAcceptPause);
  }
}

void Server::admit(tcp::socket socket) {
  SystemError error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return;  // gone again
  set_options(socket);
  const bool over_limit = connections() >= options_.max_connections;
  if (over_limit && refusals_ >= kMaxRefusals) return;
  const auto link = std::make_shared<Link>(*this, std::move(socket), endpoint_text(peer), over_limit);
  links_.insert(link);
  if (over_limit) {
    ++refusals_;
    link->refuse(format("the server has {} connections, its limit (max_connections)", options_.max_connections));
  } else {
    ++connections_;
    link->watch_read();
  }
}

void Server::remove(const std::shared_ptr<Link>& link) {
  if (links_.erase(link) == 0) return;
  if (link->refused) {
    --refusals_;
  } else {
    --connections_;
  }
}

// Deadlines are looked at a few times a second instead of one timer each: a stream that sends 100 pieces a second
// would otherwise move its timer 100 times.
asio::awaitable<void> Server::tick_loop() {
  const double shortest =
      std::min({options_.header_timeout_seconds, options_.idle_timeout_seconds, options_.write_timeout_seconds, 1.0});
  const auto interval = std::chrono::milliseconds(std::max(10, static_cast<int>(shortest * 250)));
  asio::steady_timer timer(io_);
  for (;;) {
    timer.expires_after(interval);
    const auto [error] = co_await timer.async_wait(kToken);
    if (error) co_return;
    const auto now = Connection::Clock::now();
    for (const auto& link : all_links()) link->on_tick(now);
  }
}

void Server::deliver() {
  std::vector<std::shared_ptr<Connection>> touched;
  for (Command& command : mailbox_->take()) {
    Connection* connection = command.answer->connection;
    if (connection == nullptr) {
      auto* on_close = std::get_if<Command::OnClose>(&command.what);
      if (on_close != nullptr && command.answer->state == Answer::State::kGone) call_soon(std::move(on_close->closed));
      continue;
    }
    if (!connection->touched) {
      connection->touched = true;
      touched.push_back(connection->shared_from_this());
    }
    connection->apply(std::move(command));
  }
  for (const auto& connection : touched) {
    connection->touched = false;
    connection->settle();
  }
}

void Server::post_after(double seconds, std::function<void()> task) {
  const auto timer = std::make_shared<asio::steady_timer>(io_);
  const std::chrono::duration<double> wait(std::min(seconds, kLongestSeconds));
  timer->expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(wait));
  timer->async_wait([timer, task = std::move(task)](const SystemError& error) {
    if (!error) guarded("a timed task", task);
  });
}

void Server::on_signal(std::vector<int> signals, std::function<void(int)> handle) {
  const auto set = std::make_shared<asio::signal_set>(io_);
  for (const int signal : signals) {
    SystemError error;
    if (set->add(signal, error)) log_error("http: cannot handle signal {}: {}", signal, error.message());
  }
  const auto wait = [set, handle = std::move(handle)](const auto& again) -> void {
    set->async_wait([set, handle, again](const SystemError& error, int signal) {
      if (error) return;
      guarded("a signal handler", [&] { handle(signal); });
      again(again);
    });
  };
  wait(wait);
}

void Server::close_listener() {
  asio::post(io_, [this] {
    draining_ = true;
    SystemError ignored;
    acceptor_.close(ignored);
    for (const auto& link : all_links()) link->close_if_idle();
  });
}

void Server::stop() {
  asio::post(io_, [this] {
    draining_ = true;
    SystemError ignored;
    acceptor_.close(ignored);
    for (const auto& link : all_links()) link->close_now();
    asio::post(io_, [this] { io_.stop(); });  // behind the close callbacks
  });
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::create(HttpOptions options, HttpHandler handler) {
  auto server = std::make_unique<Server>(std::move(options), std::move(handler));
  ONELANE_TRY(server->listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

}  // namespace onelane
