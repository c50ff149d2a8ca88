#include "http/client.h"

#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "http/response_parser.h"
#include "http/running_server.h"
#include "http/target.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;

std::string local_url(int port) { return "http://127.0.0.1:" + std::to_string(port); }

std::unique_ptr<HttpClient> client_of(RunningServer& server, std::string prefix = "", std::string key = "") {
  auto client = HttpClient::create({.url = local_url(server->port()) + prefix, .api_key = std::move(key)});
  EXPECT_TRUE(client) << client.error().message;
  return std::move(*client);
}

// A listening socket of the test's own, for answers that no server of ours would give.
class RawServer {
 public:
  // Sends `answer` to each connection in turn after the request's head, then hangs up, orderly or with a reset.
  explicit RawServer(std::string answer, bool hold_open = false) : hold_open_(hold_open) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer)] { serve(answer); });
  }
  ~RawServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  int port() const { return port_; }

 private:
  void serve(const std::string& answer) {
    for (int socket; (socket = ::accept(listener_, nullptr, nullptr)) >= 0; ::close(socket)) {
      std::string request;
      char buffer[4096];
      while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t n = ::recv(socket, buffer, sizeof(buffer), 0);
        if (n <= 0) break;
        request.append(buffer, static_cast<size_t>(n));
      }
      ::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL);
      while (hold_open_ && ::recv(socket, buffer, sizeof(buffer), 0) > 0) {
      }
    }
  }

  const bool hold_open_;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

HttpReply reply_to(const std::string& raw_answer, HttpCall call = {.path = "/x"}) {
  RawServer server(raw_answer);
  auto client = HttpClient::create({.url = local_url(server.port())});
  EXPECT_TRUE(client);
  return (*client)->start(std::move(call))->wait();
}

TEST(HttpUrl, IsTakenApart) {
  const auto url = parse_http_url("http://[::1]:8000/gateway/");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, 8000);
  EXPECT_EQ(url->prefix, "/gateway");
  EXPECT_EQ(url->authority(), "[::1]:8000");
  const auto plain = parse_http_url("http://box");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->authority(), "box:80");
  EXPECT_EQ(plain->prefix, "");
}

TEST(HttpUrl, IsRefusedWithWhatWouldBeRight) {
  for (const char* bad : {"", "localhost:8000", "https://a", "http://", "http://:80", "http://a:0", "http://a:65536",
                          "http://a:8o", "http://a:", "http://u@a", "http://a?x=1", "http://a/#f", "http://[::1",
                          "http://[a]", "http://[::1]8000", "http://a b", "http://a\n"}) {
    const auto url = parse_http_url(bad);
    ASSERT_FALSE(url) << bad;
    EXPECT_THAT(url.error().message, HasSubstr(std::string("\"") + bad + "\""));
    EXPECT_THAT(url.error().message, HasSubstr("http://HOST[:PORT]"));
  }
}

TEST(HttpClientCalls, SendMethodPathHeadersKeyAndBody) {
  HttpRequest seen;
  RunningServer server([&](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    seen = std::move(request);
    exchange->respond({.status = 201, .headers = {{"X-Mark", "yes"}}, .body = "made"});
  });
  const auto client = client_of(server, "/gateway/", "secret");
  const auto reply = client->send({.method = "POST", .path = "/v1/x?y=1", .headers = {{"X-A", "b"}}, .body = "{}"});
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->status, 201);
  EXPECT_EQ(reply->body, "made");
  EXPECT_EQ(reply->body_bytes, 4u);
  EXPECT_EQ(reply->header("x-mark"), "yes");
  EXPECT_TRUE(reply->ok());
  EXPECT_LE(reply->started, reply->ended);
  EXPECT_EQ(seen.method, "POST");
  EXPECT_EQ(seen.path, "/gateway/v1/x");
  EXPECT_EQ(seen.query, (std::vector<std::pair<std::string, std::string>>{{"y", "1"}}));
  EXPECT_EQ(seen.header("authorization"), "Bearer secret");
  EXPECT_EQ(seen.header("content-type"), "application/json");
  EXPECT_EQ(seen.header("x-a"), "b");
  EXPECT_EQ(seen.body, "{}");

  ASSERT_TRUE(client->get("/y"));
  EXPECT_EQ(seen.method, "GET");
  EXPECT_EQ(seen.header("content-type"), "");
}

TEST(HttpClientCalls, ReachOverIpv6AndByName) {
  const auto handler = [](HttpRequest, std::shared_ptr<HttpExchange> exchange) { exchange->respond({.body = "here"}); };
  RunningServer four(handler);
  auto by_name = HttpClient::create({.url = "http://localhost:" + std::to_string(four->port())});
  ASSERT_TRUE(by_name) << by_name.error().message;
  const auto named = (*by_name)->get("/");
  ASSERT_TRUE(named) << named.error().message;
  EXPECT_EQ(named->body, "here");

  const int probe = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = IN6ADDR_LOOPBACK_INIT;
  const bool has_ipv6 = probe >= 0 && ::bind(probe, reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) == 0;
  ::close(probe);
  if (!has_ipv6) GTEST_SKIP() << "this machine has no ::1";
  RunningServer six(handler, {.host = "::1"});
  auto client = HttpClient::create({.url = "http://[::1]:" + std::to_string(six->port())});
  ASSERT_TRUE(client);
  const auto reply = (*client)->get("/");
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->body, "here");
}

TEST(HttpClientCalls, StreamPiecesAsTheyCome) {
  std::shared_ptr<HttpExchange> held;
  RunningServer server([&](HttpRequest, std::shared_ptr<HttpExchange> exchange) {
    exchange->start({.content_type = "text/event-stream", .body = "one"});
    held = std::move(exchange);
  });
  const auto client = client_of(server);
  std::mutex mutex;
  std::string got;
  HttpClock::time_point last;
  bool ordered = true;
  const auto pending = client->start({.path = "/", .on_body = [&](std::string_view piece, HttpClock::time_point at) {
                                        const std::lock_guard lock(mutex);
                                        got += piece;
                                        ordered = ordered && at >= last;
                                        last = at;
                                      }});
  const auto have = [&](const char* text) {
    return eventually([&] {
      const std::lock_guard lock(mutex);
      return got == text;
    });
  };
  EXPECT_TRUE(have("one"));
  EXPECT_FALSE(pending->ended());
  server.on_io_thread([&] { held->write(" two"); });
  EXPECT_TRUE(have("one two"));
  server.on_io_thread([&] {
    held->finish();
    held.reset();
  });
  const HttpReply& reply = pending->wait();
  EXPECT_TRUE(reply.ok()) << reply.problem;
  EXPECT_EQ(reply.body, "");
  EXPECT_EQ(reply.body_bytes, 7u);
  EXPECT_TRUE(ordered);
  EXPECT_GE(last, reply.started);
  EXPECT_LE(last, reply.ended);
}

TEST(HttpClientCalls, CollectTheBodyOfARefusalEvenOfAStream) {
  RunningServer server(
      [](HttpRequest, std::shared_ptr<HttpExchange> exchange) { exchange->respond({.status = 429, .body = "busy"}); });
  const auto client = client_of(server);
  bool called = false;
  const HttpReply reply =
      client->start({.path = "/", .on_body = [&](std::string_view, HttpClock::time_point) { called = true; }})->wait();
  EXPECT_EQ(reply.end, HttpEnd::kComplete);
  EXPECT_FALSE(reply.ok());
  EXPECT_EQ(reply.body, "busy");
  EXPECT_FALSE(called);
}

TEST(HttpClientCalls, AreCancelledFromAnotherThreadAndTheServerSeesIt) {
  std::atomic<bool> closed = false;
  std::shared_ptr<HttpExchange> held;
  RunningServer server([&](HttpRequest, std::shared_ptr<HttpExchange> exchange) {
    exchange->on_close([&] { closed = true; });
    exchange->start({.body = "begin"});
    held = std::move(exchange);
  });
  const auto client = client_of(server);
  std::atomic<bool> began = false;
  HttpEnd told{};
  const auto pending =
      client->start({.path = "/", .on_body = [&](std::string_view, HttpClock::time_point) { began = true; }},
                    [&](const HttpReply& reply) { told = reply.end; });
  ASSERT_TRUE(eventually([&] { return began.load(); }));
  pending->cancel();
  EXPECT_EQ(pending->wait().end, HttpEnd::kCancelled);
  EXPECT_EQ(told, HttpEnd::kCancelled);
  EXPECT_TRUE(eventually([&] { return closed.load(); }));
  pending->cancel();  // nothing happens
}

TEST(HttpClientCalls, MayStartTheNextFromTheEndOfTheLast) {
  RunningServer server(
      [](HttpRequest, std::shared_ptr<HttpExchange> exchange) { exchange->respond({.body = "again"}); });
  std::atomic<int> count = 0;
  const auto client = client_of(server);
  std::function<void(const HttpReply&)> next = [&](const HttpReply& reply) {
    if (reply.ok() && ++count < 20) client->start({.path = "/"}, next);
  };
  client->start({.path = "/"}, next);
  EXPECT_TRUE(eventually([&] { return count == 20; }));
}

TEST(HttpClientCalls, EndWithTheClient) {
  std::shared_ptr<HttpExchange> held;
  RunningServer server([&](HttpRequest, std::shared_ptr<HttpExchange> exchange) { held = std::move(exchange); });
  auto client = client_of(server);
  const auto pending = client->start({.path = "/"});
  client.reset();
  EXPECT_EQ(pending->wait().end, HttpEnd::kCancelled);
}

TEST(HttpClientCalls, TimeOutByNameOfTheLimit) {
  std::vector<std::shared_ptr<HttpExchange>> held;
  RunningServer server([&](HttpRequest, std::shared_ptr<HttpExchange> exchange) { held.push_back(exchange); });
  const auto client = client_of(server);
  const auto total = client->get("/slow", 0.05);
  ASSERT_FALSE(total);
  EXPECT_THAT(total.error().message, HasSubstr("/slow: no complete answer within 0.05 s"));
  const HttpReply idle = client->start({.path = "/idle", .idle_seconds = 0.05})->wait();
  EXPECT_EQ(idle.end, HttpEnd::kTimeout);
  EXPECT_THAT(idle.problem, HasSubstr("/idle: no byte for 0.05 s"));
  server.on_io_thread([&] { held.clear(); });
}

TEST(HttpClientCalls, SayThatNobodyListens) {
  int port;
  {
    RunningServer server([](HttpRequest, std::shared_ptr<HttpExchange>) {});
    port = server->port();
  }
  auto client = HttpClient::create({.url = local_url(port)});
  ASSERT_TRUE(client);
  const HttpReply reply = (*client)->start({.path = "/v1/models"})->wait();
  EXPECT_EQ(reply.end, HttpEnd::kNotConnected);
  EXPECT_THAT(reply.problem, HasSubstr(local_url(port) + "/v1/models: cannot connect"));
  EXPECT_EQ(reply.status, 0);
  EXPECT_FALSE(HttpClient::create({.url = "http://no-such-host.invalid"}));
  EXPECT_FALSE(HttpClient::create({.url = local_url(port), .api_key = "a\r\nb"}));
}

TEST(HttpClientCalls, TellApartHowAnAnswerFails) {
  const std::string head = "HTTP/1.1 200 OK\r\n";
  EXPECT_EQ(reply_to("").end, HttpEnd::kBroken);
  EXPECT_EQ(reply_to("nonsense\r\n\r\n").end, HttpEnd::kMalformed);
  EXPECT_EQ(reply_to(head).end, HttpEnd::kBroken);
  EXPECT_EQ(reply_to(head + "Content-Length: 5\r\n\r\nabc").end, HttpEnd::kBroken);
  EXPECT_EQ(reply_to(head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").end, HttpEnd::kBroken);
  EXPECT_EQ(reply_to(head + "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n").end, HttpEnd::kMalformed);
  EXPECT_EQ(reply_to(head + "Content-Length: 5\r\n\r\nabcde", {.path = "/x", .max_body_bytes = 4}).end,
            HttpEnd::kMalformed);
  const HttpReply whole = reply_to(head + "Content-Length: 5\r\n\r\nabcde");
  EXPECT_EQ(whole.body, "abcde");
  // Without a length the body ends with the connection.
  const HttpReply open = reply_to(head + "\r\nabc");
  EXPECT_EQ(open.end, HttpEnd::kComplete) << open.problem;
  EXPECT_EQ(open.body, "abc");
  const HttpReply after = reply_to("HTTP/1.1 100 Continue\r\n\r\n" + head + "Content-Length: 1\r\n\r\nx");
  EXPECT_EQ(after.status, 200);
  EXPECT_EQ(after.body, "x");
}

TEST(HttpClientCalls, CountTheLagOfTheirThread) {
  RunningServer server([](HttpRequest, std::shared_ptr<HttpExchange> exchange) { exchange->respond({}); });
  const auto client = client_of(server);
  EXPECT_TRUE(eventually([&] { return !client->take_lag_seconds().empty(); }));
}

RC_GTEST_PROP(ResponseParserProperty, ReadsTheSameHoweverTheBytesAreCut, ()) {
  const auto pieces = *rc::gen::container<std::vector<std::string>>(rc::gen::nonEmpty<std::string>());
  std::string bytes = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n";
  std::string body;
  for (const std::string& piece : pieces) {
    body += piece;
    char size[24];
    std::snprintf(size, sizeof(size), "%zx\r\n", piece.size());
    bytes += size + piece + "\r\n";
  }
  bytes += "0\r\n\r\n";
  std::string got;
  ResponseParser parser([&](std::string_view piece) { got += piece; });
  std::string waiting;
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = std::min<size_t>(*rc::gen::inRange<size_t>(1, 40), bytes.size() - at);
    waiting += bytes.substr(at, length);
    at += length;
    const auto fed = parser.feed(waiting);
    RC_ASSERT(fed.has_value());
    waiting.erase(0, *fed);
  }
  RC_ASSERT(parser.done());
  RC_ASSERT(waiting.empty());
  RC_ASSERT(got == body);
  RC_ASSERT(parser.headers().at(1) == std::make_pair(std::string("x-a"), std::string("b")));
}

}  // namespace
}  // namespace onelane
