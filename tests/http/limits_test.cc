// Every limit and every way to get a request wrong: the status, and a message that names what would be right.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "http/running_server.h"

namespace onelane {
namespace {

void answer_ok(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
  exchange->respond({.body = request.path});
}

struct Wrong {
  std::string request;
  int status;
  std::string says;
};

class HttpWrongRequest : public testing::TestWithParam<Wrong> {};

TEST_P(HttpWrongRequest, IsRefusedByName) {
  int handled = 0;
  RunningServer server(
      [&](const HttpRequest&, const std::shared_ptr<HttpExchange>& exchange) {
        ++handled;
        exchange->respond({});
      },
      {.max_body_bytes = 100, .max_header_bytes = 1000});
  RawHttpClient client = server.client();
  client.send(GetParam().request);
  const auto response = client.read_response();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, GetParam().status);
  EXPECT_EQ(response->header("connection"), "close");
  EXPECT_EQ(response->header("content-type"), "application/json");
  EXPECT_EQ(response->body.find(R"({"error":{"message":")"), 0u) << response->body;
  EXPECT_NE(response->body.find(GetParam().says), std::string::npos) << response->body;
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_FALSE(client.was_reset());
  EXPECT_EQ(handled, 0);
}

std::string get_with(const std::string& headers) { return "GET / HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n"; }
std::string post_with(const std::string& headers, const std::string& body) {
  return "POST / HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n" + body;
}

INSTANTIATE_TEST_SUITE_P(
    Malformed, HttpWrongRequest,
    testing::Values(Wrong{"nonsense\r\n\r\n", 400, "malformed request"},
                    Wrong{"\x16\x03\x01\x02", 400, "malformed request"},
                    Wrong{"GET /\r\n\r\n", 400, "malformed request"}, Wrong{"GET / HTTP/3.0\r\n\r\n", 400, "version"},
                    Wrong{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "version"},
                    Wrong{"GET / HTTP/1.1\nHost: t\n\n", 400, "malformed request"},
                    Wrong{"GET / HTTP/1.1\r\n\r\n", 400, "needs a Host"},
                    Wrong{get_with("Host: u\r\n"), 400, "more than one Host"},
                    Wrong{get_with("no colon\r\n"), 400, "malformed request"},
                    Wrong{get_with("Space : x\r\n"), 400, "malformed request"},
                    Wrong{get_with(std::string("Nul: a\0b\r\n", 10)), 400, "malformed request"},
                    Wrong{"CONNECT t:80 HTTP/1.1\r\nHost: t\r\n\r\n", 400, "begins with '/'"},
                    Wrong{"GET /%4 HTTP/1.1\r\nHost: t\r\n\r\n", 400, "two hexadecimal digits"},
                    Wrong{"GET /?a=%zz HTTP/1.1\r\nHost: t\r\n\r\n", 400, "two hexadecimal digits"},
                    Wrong{"GET /%00 HTTP/1.1\r\nHost: t\r\n\r\n", 400, "NUL"},
                    Wrong{"GET /%0a HTTP/1.1\r\nHost: t\r\n\r\n", 400, "control"}));

INSTANTIATE_TEST_SUITE_P(
    Framing, HttpWrongRequest,
    testing::Values(Wrong{post_with("Content-Length: x\r\n", ""), 400, "Content-Length"},
                    Wrong{post_with("Content-Length: -1\r\n", ""), 400, "Content-Length"},
                    Wrong{post_with("Content-Length: +1\r\n", "a"), 400, "Content-Length"},
                    Wrong{post_with("Content-Length: 1, 1\r\n", "a"), 400, "Content-Length"},
                    Wrong{post_with("Content-Length:\r\n", ""), 400, "Content-Length"},
                    Wrong{post_with("Content-Length: 99999999999999999999999\r\n", ""), 400, "Content-Length"},
                    Wrong{post_with("Content-Length: 1\r\nContent-Length: 1\r\n", "a"), 400, "Content-Length"},
                    Wrong{post_with("Content-Length: 1\r\nContent-Length: 2\r\n", "a"), 400, "Content-Length"},
                    Wrong{post_with("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "a"), 400, "malformed"},
                    Wrong{post_with("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n", "a"), 400, "Content-Length"},
                    Wrong{post_with("Transfer-Encoding: gzip\r\n", ""), 501, "chunked"},
                    Wrong{post_with("Transfer-Encoding: gzip, chunked\r\n", ""), 501, "chunked"},
                    Wrong{"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "HTTP/1.1"},
                    Wrong{post_with("Transfer-Encoding: chunked\r\n", "xyz\r\n"), 400, "malformed"},
                    Wrong{post_with("Transfer-Encoding: chunked\r\n", "1\r\nabc\r\n"), 400, "malformed"},
                    Wrong{post_with("Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\n"), 400, "malformed"},
                    Wrong{get_with("Expect: a-miracle\r\n"), 417, "100-continue"}));

INSTANTIATE_TEST_SUITE_P(
    Limits, HttpWrongRequest,
    testing::Values(
        Wrong{get_with("Big: " + std::string(1000, 'x') + "\r\n"), 431, "1000 bytes (max_header_bytes)"},
        Wrong{"GET /" + std::string(5000, 'x'), 431, "1000 bytes (max_header_bytes)"},
        Wrong{post_with("Content-Length: 101\r\n", ""), 413, "100 bytes (max_body_bytes)"},
        Wrong{post_with("Content-Length: 101\r\nExpect: 100-continue\r\n", ""), 413, "100 bytes (max_body_bytes)"},
        Wrong{post_with("Transfer-Encoding: chunked\r\n", "65\r\n"), 413, "100 bytes (max_body_bytes)"},
        Wrong{post_with("Transfer-Encoding: chunked\r\n", "64\r\n" + std::string(100, 'x') + "\r\n1\r\n"), 413,
              "100 bytes (max_body_bytes)"},
        Wrong{post_with("Transfer-Encoding: chunked\r\n", "1;" + std::string(2000, 'x')), 400, "malformed"},
        Wrong{post_with("Transfer-Encoding: chunked\r\n", "0\r\nT: " + std::string(2000, 'x')), 400, "malformed"}));

TEST(HttpLimits, LetThroughWhatJustFits) {
  RunningServer server(answer_ok, {.max_body_bytes = 100, .max_header_bytes = 1000});
  RawHttpClient client = server.client();
  const std::string rest = "GET / HTTP/1.1\r\nHost: t\r\nX: \r\n\r\n";
  client.send("GET / HTTP/1.1\r\nHost: t\r\nX: " + std::string(1000 - rest.size(), 'x') + "\r\n\r\n");
  EXPECT_EQ(client.read_response()->status, 200);
  client.send(post_with("Content-Length: 100\r\n", std::string(100, 'x')));
  EXPECT_EQ(client.read_response()->status, 200);
  client.send(
      post_with("Transfer-Encoding: chunked\r\n", "60\r\n" + std::string(96, 'x') + "\r\n4\r\nabcd\r\n0\r\n\r\n"));
  EXPECT_EQ(client.read_response()->status, 200);
}

TEST(HttpLimits, CountAHeaderThatTricklesIn) {
  RunningServer server(answer_ok, {.max_header_bytes = 1000});
  RawHttpClient client = server.client();
  client.send("GET / HTTP/1.1\r\nHost: t\r\n");
  bool open = true;
  for (int i = 0; i < 200 && open; ++i) {
    open = client.send("X: 0123456789\r\n");
    server.on_io_thread([] {});
  }
  EXPECT_EQ(client.read_response()->status, 431);
}

TEST(HttpLimits, AnswerReachesAClientThatIsStillSending) {
  RunningServer server(answer_ok, {.max_body_bytes = 1000});
  RawHttpClient client = server.client();
  client.send(post_with("Content-Length: 8000000\r\n", ""));
  std::thread sender([&] { client.send(std::string(8000000, 'x')); });
  const auto response = client.read_response();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 413);
  sender.join();
}

TEST(HttpLimits, RefuseConnectionsBeyondTheirNumber) {
  RunningServer server(answer_ok, {.max_connections = 3});
  std::vector<RawHttpClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(server.client());
    clients.back().get("/in");
    ASSERT_EQ(clients.back().read_response()->status, 200);
  }
  EXPECT_EQ(server->connections(), 3);
  for (int i = 0; i < 200; ++i) {  // more than are told so at one time
    RawHttpClient refused = server.client();
    const auto response = refused.read_response();
    if (i == 0) {
      ASSERT_TRUE(response);
      EXPECT_EQ(response->status, 503);
      EXPECT_NE(response->body.find("max_connections"), std::string::npos);
    }
  }
  clients.pop_back();
  ASSERT_TRUE(eventually([&] { return server->connections() == 2; }));
  RawHttpClient next = server.client();
  next.get("/next");
  EXPECT_EQ(next.read_response()->status, 200);
}

TEST(HttpLimits, SlowHeadersAndBodiesTimeOut) {
  RunningServer server(answer_ok, {.header_timeout_seconds = 0.1});
  RawHttpClient header = server.client();
  header.send("GET / HTTP/1.1\r\nHo");
  RawHttpClient body = server.client();
  body.send(post_with("Content-Length: 100\r\n", "abc"));
  for (RawHttpClient* client : {&header, &body}) {
    const auto response = client->read_response();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 408);
    EXPECT_TRUE(client->closed_by_server());
  }
  RawHttpClient silent = server.client();  // has asked for nothing, so there is nothing to answer
  EXPECT_TRUE(silent.closed_by_server());
}

TEST(HttpLimits, ABodyMayTakeLongAsLongAsBytesCome) {
  RunningServer server(answer_ok, {.header_timeout_seconds = 1.5});
  RawHttpClient client = server.client();
  client.send(post_with("Content-Length: 20\r\n", ""));
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    client.send("x");
  }
  EXPECT_EQ(client.read_response()->status, 200);
}

TEST(HttpLimits, IdleConnectionsAreClosed) {
  RunningServer server(answer_ok, {.idle_timeout_seconds = 0.1});
  RawHttpClient client = server.client();
  client.get("/");
  EXPECT_EQ(client.read_response()->status, 200);
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST(HttpLimits, AHandlerMayThinkAsLongAsItLikes) {
  HttpServer* self = nullptr;
  RunningServer server(
      [&](const HttpRequest&, const std::shared_ptr<HttpExchange>& exchange) {
        self->post_after(0.5, [exchange] { exchange->respond({}); });
      },
      {.header_timeout_seconds = 0.05, .idle_timeout_seconds = 0.05, .write_timeout_seconds = 0.05});
  self = &*server;
  RawHttpClient client = server.client();
  client.get("/");
  const auto response = client.read_response();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
}

TEST(HttpLimits, OutOfDescriptorsTheServerWaits) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's own checks open descriptors and take their failure for a bad pointer";
#endif
  RunningServer server(answer_ok);
  std::vector<RawHttpClient> clients;
  for (int i = 0; i < 4; ++i) clients.emplace_back(server.client());
  ASSERT_TRUE(eventually([&] { return server->connections() == 4; }));
  rlimit saved{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &saved), 0);
  // The next socket takes the last descriptor; none is left for its other end.
  const int probe = ::dup(0);
  ASSERT_GE(probe, 0);
  ::close(probe);
  rlimit low = saved;
  low.rlim_cur = static_cast<rlim_t>(probe) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  RawHttpClient waiting = server.client();
  EXPECT_TRUE(waiting.connected());
  waiting.get("/");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  clients[0].get("/others-are-served");
  EXPECT_EQ(clients[0].read_response()->status, 200);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &saved), 0);
  const auto response = waiting.read_response();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
}

}  // namespace
}  // namespace onelane
