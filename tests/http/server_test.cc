#include "http/server.h"

#include <cmath>
#include <mutex>
#include <utility>

#include <gtest/gtest.h>

#include "http/running_server.h"

namespace onelane {
namespace {

// Tells the client what the server has understood.
void echo(HttpRequest request, const std::shared_ptr<HttpExchange>& exchange) {
  std::string text = request.method + " " + request.path;
  for (const auto& [key, value] : request.query) text += " [" + key + "=" + value + "]";
  exchange->respond({.content_type = "text/plain",
                     .headers = {{"X-Body-Size", std::to_string(request.body.size())}},
                     .body = text + "\n" + request.body});
}

TEST(HttpRequest, FindsHeadersByLowerCaseName) {
  const HttpRequest request{.headers = {{"content-type", "application/json"}}};
  EXPECT_EQ(request.header("content-type"), "application/json");
  EXPECT_EQ(request.header("accept"), "");
}

TEST(HttpServer, AnswersEveryMethod) {
  RunningServer server(echo);
  RawHttpClient client = server.client();
  for (const std::string method : {"GET", "POST", "OPTIONS", "DELETE", "PUT", "PATCH", "BREW"}) {
    client.send(method + " /a%20b?x=1&y=%26+2 HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi");
    const auto response = client.read_response();
    ASSERT_TRUE(response) << method;
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->body, method + " /a b [x=1] [y=& 2]\nhi");
    EXPECT_EQ(response->header("content-type"), "text/plain");
    EXPECT_EQ(response->header("x-body-size"), "2");
    EXPECT_EQ(response->header("connection"), "");
    EXPECT_EQ(response->header("date").substr(25), " GMT");
  }
}

TEST(HttpServer, SendsNoBodyToHead) {
  RunningServer server(echo);
  RawHttpClient client = server.client();
  client.send("HEAD /x HTTP/1.1\r\nHost: t\r\n\r\nGET /y HTTP/1.1\r\nHost: t\r\n\r\n");
  const auto head = client.read_response(true);
  ASSERT_TRUE(head);
  EXPECT_EQ(head->header("content-length"), "8");
  EXPECT_EQ(client.read_response()->body, "GET /y\n");
}

TEST(HttpServer, StreamsInChunks) {
  RunningServer server([](const HttpRequest&, const std::shared_ptr<HttpExchange>& exchange) {
    exchange->start({.content_type = "text/event-stream", .body = "first"});
    exchange->write("second");
    exchange->write("");  // would end the stream if it were sent
    exchange->write("third");
    exchange->finish();
  });
  RawHttpClient client = server.client();
  for (int round = 0; round < 3; ++round) {
    client.get("/");
    const auto response = client.read_response();
    ASSERT_TRUE(response);
    EXPECT_TRUE(response->complete);
    EXPECT_EQ(response->chunks, (std::vector<std::string>{"first", "second", "third"}));
    EXPECT_EQ(response->header("content-type"), "text/event-stream");
    EXPECT_EQ(response->header("content-length"), "");
  }
}

TEST(HttpServer, StreamsToOldClientsUntilItCloses) {
  RunningServer server([](const HttpRequest&, const std::shared_ptr<HttpExchange>& exchange) {
    exchange->start({});
    exchange->write("one");
    exchange->write("two");
    exchange->finish();
  });
  RawHttpClient client = server.client();
  client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto response = client.read_response();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->header("transfer-encoding"), "");
  EXPECT_EQ(response->header("connection"), "close");
  EXPECT_EQ(response->body, "onetwo");
  EXPECT_TRUE(response->complete);
}

TEST(HttpServer, KeepsConnectionsAsTheClientAsks) {
  RunningServer server(echo);
  struct Case {
    std::string request;
    bool kept;
    std::string connection;
  };
  for (const Case& c : {Case{"GET / HTTP/1.1\r\nHost: t\r\n\r\n", true, ""},
                        Case{"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", false, "close"},
                        Case{"GET / HTTP/1.0\r\n\r\n", false, "close"},
                        Case{"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true, "keep-alive"}}) {
    RawHttpClient client = server.client();
    client.send(c.request);
    const auto response = client.read_response();
    ASSERT_TRUE(response) << c.request;
    EXPECT_EQ(response->header("connection"), c.connection) << c.request;
    if (c.kept) {
      client.get("/again");
      EXPECT_EQ(client.read_response()->body, "GET /again\n");
    } else {
      EXPECT_TRUE(client.closed_by_server()) << c.request;
    }
  }
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  // Each answer comes from a timer, so that the others wait in the server.
  HttpServer* self = nullptr;
  RunningServer server([&](const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    self->post_after(0.001, [exchange, path = request.path] { exchange->respond({.body = path}); });
  });
  self = &*server;
  RawHttpClient client = server.client();
  std::string all;
  for (int i = 0; i < 100; ++i) {
    all += "POST /" + std::to_string(i) + " HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc\r\n";
  }
  client.send(all);
  for (int i = 0; i < 100; ++i) {
    const auto response = client.read_response();
    ASSERT_TRUE(response) << i;
    EXPECT_EQ(response->body, "/" + std::to_string(i));
  }
}

TEST(HttpServer, TakesMoreReadAheadThanItKeeps) {
  // 400 KB of requests behind one that is slow: the server stops reading, and loses none.
  HttpServer* self = nullptr;
  RunningServer server([&](const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    const double wait = request.path == "/0" ? 0.1 : 0;
    self->post_after(wait, [exchange, path = request.path] { exchange->respond({.body = path}); });
  });
  self = &*server;
  RawHttpClient client = server.client();
  std::thread sender([&] {
    for (int i = 0; i < 100; ++i) client.post("/" + std::to_string(i), std::string(4000, 'x'));
  });
  for (int i = 0; i < 100; ++i) EXPECT_EQ(client.read_response()->body, "/" + std::to_string(i));
  sender.join();
}

TEST(HttpServer, AnswersWhatAHalfClosedClientSent) {
  RunningServer server(echo);
  RawHttpClient client = server.client();
  client.get("/1");
  client.get("/2");
  client.shut_down_sending();
  EXPECT_EQ(client.read_response()->body, "GET /1\n");
  EXPECT_EQ(client.read_response()->body, "GET /2\n");
  EXPECT_TRUE(client.closed_by_server());
}

TEST(HttpServer, ReadsRequestsCutAnywhere) {
  RunningServer server(echo);
  const std::string request =
      "POST /cut?a=%41 HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x=y\r\nd\r\n0\r\nT: "
      "1\r\n\r\n";
  RawHttpClient client = server.client();
  for (size_t cut = 1; cut < request.size(); ++cut) {
    client.send(request.substr(0, cut));
    server.on_io_thread([] {});  // most cuts are seen as cuts
    client.send(request.substr(cut));
    ASSERT_EQ(client.read_response()->body, "POST /cut [a=A]\nabcd") << cut;
  }
  for (const char c : request) {  // one byte a packet
    client.send({&c, 1});
    server.on_io_thread([] {});
  }
  EXPECT_EQ(client.read_response()->body, "POST /cut [a=A]\nabcd");
}

TEST(HttpServer, DropsTrailers) {
  std::string authorization = "unset";
  RunningServer server([&](const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    authorization = request.header("authorization");
    exchange->respond({});
  });
  RawHttpClient client = server.client();
  client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: x\r\n\r\n");
  EXPECT_EQ(client.read_response()->status, 200);
  EXPECT_EQ(authorization, "");
}

TEST(HttpServer, SaysContinueOnlyIfAsked) {
  RunningServer server(echo);
  RawHttpClient client = server.client();
  client.send("POST /c HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_response()->status, 100);
  client.send("hi");
  EXPECT_EQ(client.read_response()->body, "POST /c\nhi");
  // Impatient: the body came along.
  client.send("POST /c HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nhi");
  EXPECT_EQ(client.read_response()->body, "POST /c\nhi");
}

TEST(HttpServer, AnswersFromAnyThread) {
  std::mutex mutex;
  std::vector<std::thread> threads;
  RunningServer server([&](const HttpRequest&, const std::shared_ptr<HttpExchange>& exchange) {
    std::lock_guard lock(mutex);
    threads.emplace_back([exchange] {
      exchange->start({});
      for (int i = 0; i < 500; ++i) exchange->write(std::to_string(i) + ",");
      exchange->finish();
    });
  });
  std::string expected;
  for (int i = 0; i < 500; ++i) expected += std::to_string(i) + ",";
  std::vector<RawHttpClient> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(server.client());
    clients.back().get("/");
  }
  for (RawHttpClient& client : clients) {
    const auto response = client.read_response();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->body, expected);
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HttpServer, SendsLargeAnswersWhole) {
  RunningServer server([](const HttpRequest&, const std::shared_ptr<HttpExchange>& exchange) {
    exchange->respond({.body = std::string(size_t{20} << 20, 'x')});  // over max_queued_bytes: that is for streams
  });
  RawHttpClient client = server.client(4096);
  client.get("/");
  EXPECT_EQ(client.read_response()->body.size(), size_t{20} << 20);
}

TEST(HttpServer, AnswersForHandlersThatDoNot) {
  RunningServer server([](const HttpRequest& request, std::shared_ptr<HttpExchange> exchange) {
    if (request.path == "/throw") throw std::runtime_error("a handler's mistake");
    if (request.path == "/half") exchange->start({.body = "half"});
    exchange.reset();
  });
  RawHttpClient client = server.client();
  for (const std::string path : {"/drop", "/throw"}) {
    client.get(path);
    const auto response = client.read_response();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 500);
    EXPECT_NE(response->body.find(R"({"error":{"message":")"), std::string::npos) << response->body;
  }
  client.get("/half");  // a stream that was begun must not look complete
  const auto response = client.read_response();
  EXPECT_TRUE(!response || !response->complete);
}

TEST(HttpServer, IgnoresCallsOutOfOrder) {
  RunningServer server([](const HttpRequest&, const std::shared_ptr<HttpExchange>& exchange) {
    exchange->write("too early");
    exchange->finish();
    exchange->start({.body = "a"});
    exchange->start({.body = "b"});
    exchange->respond({.body = "c"});
    exchange->finish();
    exchange->finish();
    exchange->write("too late");
    exchange->respond({.body = "d"});
  });
  RawHttpClient client = server.client();
  for (int round = 0; round < 2; ++round) {
    client.get("/");
    EXPECT_EQ(client.read_response()->body, "a");
  }
}

TEST(HttpServer, KeepsAnswersFromForgingHeaders) {
  RunningServer server([](const HttpRequest&, const std::shared_ptr<HttpExchange>& exchange) {
    exchange->respond({.headers = {{"X-Id", "a\r\nX-Forged: 1"}, {"Content-Length", "7"}}, .body = "b"});
  });
  RawHttpClient client = server.client();
  client.get("/");
  const auto response = client.read_response();
  EXPECT_EQ(response->header("x-id"), "a  X-Forged: 1");
  EXPECT_EQ(response->header("x-forged"), "");
  EXPECT_EQ(response->body, "b");
}

TEST(HttpServer, LeavesOutTheBodyWhereThereIsNone) {
  RunningServer server([](const HttpRequest&, const std::shared_ptr<HttpExchange>& exchange) {
    exchange->respond({.status = 204, .headers = {{"Allow", "GET"}}, .body = "nothing"});
  });
  RawHttpClient client = server.client();
  for (int round = 0; round < 2; ++round) {
    client.send("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n");
    const auto response = client.read_response();
    EXPECT_EQ(response->status, 204);
    EXPECT_EQ(response->header("allow"), "GET");
    EXPECT_EQ(response->header("content-length"), "");
  }
}

TEST(HttpServer, NamesHostAndPortItCannotListenOn) {
  RunningServer server(echo);
  const auto taken = HttpServer::create({.port = server->port()}, echo);
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().message.find("127.0.0.1:" + std::to_string(server->port())), std::string::npos);
  const auto name = HttpServer::create({.host = "localhost"}, echo);
  ASSERT_FALSE(name);
  EXPECT_NE(name.error().message.find("localhost"), std::string::npos);
}

TEST(HttpServer, NamesOptionsThatCannotBe) {
  for (const auto& [options, name] :
       {std::pair(HttpOptions{.port = 70000}, "port 70000"), std::pair(HttpOptions{.port = -1}, "port -1"),
        std::pair(HttpOptions{.port = 0, .max_header_bytes = 10}, "max_header_bytes = 10"),
        std::pair(HttpOptions{.port = 0, .max_connections = 0}, "max_connections = 0"),
        std::pair(HttpOptions{.port = 0, .header_timeout_seconds = 0}, "header_timeout"),
        std::pair(HttpOptions{.port = 0, .idle_timeout_seconds = -1}, "idle_timeout"),
        std::pair(HttpOptions{.port = 0, .write_timeout_seconds = 1e300}, "write_timeout"),
        std::pair(HttpOptions{.port = 0, .write_timeout_seconds = NAN}, "write_timeout")}) {
    const auto created = HttpServer::create(options, echo);
    ASSERT_FALSE(created) << name;
    EXPECT_NE(created.error().message.find(name), std::string::npos) << created.error().message;
  }
}

TEST(HttpServer, NamesThePeer) {
  std::string peer;
  RunningServer server([&](const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    peer = request.peer;
    exchange->respond({});
  });
  RawHttpClient client = server.client();
  client.get("/");
  ASSERT_TRUE(client.read_response());
  EXPECT_EQ(peer.substr(0, 10), "127.0.0.1:");
}

}  // namespace
}  // namespace onelane
