// Clients that hang up, clients that do not read, and the end of the server.
#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>

#include "http/running_server.h"

namespace onelane {
namespace {

// A handler whose exchanges the test holds and answers itself.
class Held {
 public:
  HttpHandler handler() {
    return [this](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
      exchange->on_close([this] { ++closed; });
      if (request.path == "/stream") exchange->start({.content_type = "text/event-stream", .body = "begin"});
      std::lock_guard lock(mutex_);
      exchanges_.push_back(std::move(exchange));
      ++count;
    };
  }
  std::shared_ptr<HttpExchange> get(size_t index) {
    EXPECT_TRUE(eventually([&] { return count > static_cast<int>(index); }));
    std::lock_guard lock(mutex_);
    return exchanges_.at(index);
  }
  void drop() {
    std::lock_guard lock(mutex_);
    exchanges_.clear();
  }

  std::atomic<int> count{0};
  std::atomic<int> closed{0};

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> exchanges_;
};

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(HttpHangUp, IsNoticedWhileTheHandlerThinks) {
  for (const bool reset : {false, true}) {
    Held held;
    RunningServer server(held.handler());
    RawHttpClient client = server.client();
    client.get("/think");
    const auto exchange = held.get(0);
    EXPECT_EQ(held.closed, 0);
    reset ? client.reset() : client.close();
    EXPECT_TRUE(eventually([&] { return held.closed == 1; }));
    EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
    exchange->respond({.body = "to nobody"});  // does nothing
    exchange->finish();
    server.on_io_thread([] {});
    EXPECT_EQ(held.closed, 1);
    EXPECT_EQ(exchange->queued_bytes(), 0u);
  }
}

TEST(HttpHangUp, IsNoticedDuringASilentStream) {
  for (const bool reset : {false, true}) {
    Held held;
    RunningServer server(held.handler());
    RawHttpClient client = server.client();
    client.get("/stream");
    ASSERT_TRUE(client.read_head());
    EXPECT_EQ(client.read_chunk(), "begin");
    reset ? client.reset() : client.close();
    EXPECT_TRUE(eventually([&] { return held.closed == 1; }));
    for (int i = 0; i < 10; ++i) held.get(0)->write("to nobody");
    server.on_io_thread([] {});
    EXPECT_EQ(held.get(0)->queued_bytes(), 0u);
  }
}

TEST(HttpHangUp, IsNoticedBehindPipelinedRequests) {
  Held held;
  RunningServer server(held.handler());
  RawHttpClient client = server.client();
  client.get("/think");
  held.get(0);
  for (int i = 0; i < 40; ++i) client.post("/later", std::string(4000, 'x'));  // more than the server reads ahead
  client.close();
  EXPECT_TRUE(eventually([&] { return held.closed == 1; }));
  EXPECT_EQ(held.count, 1);
}

TEST(HttpHangUp, BeforeARequestIsCompleteReachesNoHandler) {
  Held held;
  RunningServer server(held.handler());
  const std::string request = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nabcd";
  for (size_t length = 0; length <= request.size(); ++length) {
    RawHttpClient client = server.client();
    client.send(request.substr(0, length));
    if (length % 2 == 0) {
      client.reset();
    } else {
      client.shut_down_sending();
      EXPECT_TRUE(client.closed_by_server()) << length;
    }
  }
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
  EXPECT_EQ(held.count, 0);
}

TEST(HttpHangUp, IsToldToWhomAsksTooLate) {
  std::shared_ptr<HttpExchange> exchange;
  std::atomic<bool> handled{false};
  RunningServer server([&](const HttpRequest&, std::shared_ptr<HttpExchange> given) {
    exchange = std::move(given);
    handled = true;
  });
  RawHttpClient client = server.client();
  client.get("/");
  ASSERT_TRUE(eventually([&] { return handled.load(); }));
  client.close();
  ASSERT_TRUE(eventually([&] { return server->connections() == 0; }));
  std::atomic<int> closed{0};
  exchange->on_close([&] { ++closed; });
  EXPECT_TRUE(eventually([&] { return closed == 1; }));
}

TEST(HttpHangUp, IsNotCalledForCompleteAnswers) {
  Held held;
  RunningServer server(held.handler());
  RawHttpClient client = server.client();
  client.get("/stream");
  held.get(0)->finish();
  EXPECT_TRUE(client.read_response()->complete);
  client.close();
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
  server.on_io_thread([] {});
  EXPECT_EQ(held.closed, 0);
}

TEST(HttpBackPressure, CountsWhatTheClientHasNotTaken) {
  Held held;
  RunningServer server(held.handler(), {.max_queued_bytes = size_t{64} << 20});
  RawHttpClient client = server.client(4096);
  client.get("/stream");
  const auto exchange = held.get(0);
  constexpr size_t kPieces = 200;
  const std::string piece(100000, 'x');
  for (size_t i = 0; i < kPieces; ++i) exchange->write(piece);
  EXPECT_GT(exchange->queued_bytes(), size_t{1} << 20);
  exchange->finish();
  const auto response = client.read_response();
  ASSERT_TRUE(response);
  EXPECT_TRUE(response->complete);
  EXPECT_EQ(response->body.size(), 5 + kPieces * piece.size());
  EXPECT_TRUE(eventually([&] { return exchange->queued_bytes() == 0; }));
}

TEST(HttpBackPressure, SmallPiecesArriveAsTheyWereWritten) {
  Held held;
  RunningServer server(held.handler(), {.max_queued_bytes = size_t{64} << 20});
  RawHttpClient client = server.client(4096);
  client.get("/stream");
  const auto exchange = held.get(0);
  std::string expected = "begin";
  for (int i = 0; i < 300000; ++i) {
    const std::string piece = std::to_string(i) + (i % 1000 == 0 ? std::string(30000, ' ') : " ");
    expected += piece;
    exchange->write(piece);
  }
  exchange->finish();
  EXPECT_TRUE(client.read_response()->body == expected);
}

TEST(HttpBackPressure, DropsAReaderThatFallsTooFarBehind) {
  Held held;
  RunningServer server(held.handler(), {.max_queued_bytes = 100000});
  RawHttpClient slow = server.client(4096);
  RawHttpClient other = server.client();
  slow.get("/stream");
  const auto exchange = held.get(0);
  other.get("/stream");
  const auto kept = held.get(1);
  for (int i = 0; i < 1000 && held.closed == 0; ++i) {
    exchange->write(std::string(50000, 'x'));
    server.on_io_thread([] {});
  }
  EXPECT_TRUE(eventually([&] { return held.closed == 1; }));
  const auto response = slow.read_response();
  EXPECT_TRUE(!response || !response->complete);
  kept->finish();
  EXPECT_EQ(other.read_response()->body, "begin");
}

TEST(HttpBackPressure, DropsAReaderThatTakesNothingForTooLong) {
  for (const bool stream : {true, false}) {
    Held held;
    RunningServer server(held.handler(), {.max_queued_bytes = size_t{64} << 20, .write_timeout_seconds = 0.2});
    RawHttpClient client = server.client(4096);
    client.get(stream ? "/stream" : "/whole");
    const auto exchange = held.get(0);
    const std::string body(size_t{16} << 20, 'x');
    stream ? exchange->write(body) : exchange->respond({.body = body});
    EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
    EXPECT_EQ(held.closed, stream ? 1 : 0);
  }
}

TEST(HttpStreams, TwoHundredAtOnceAndNoDescriptorLost) {
  const size_t before = open_descriptors();
  {
    Held held;
    RunningServer server(held.handler());
    std::vector<RawHttpClient> clients;
    for (int i = 0; i < 200; ++i) {
      clients.push_back(server.client());
      clients.back().get("/stream");
    }
    ASSERT_TRUE(eventually([&] { return held.count == 200; }));
    for (size_t i = 0; i < 200; i += 10) clients[i].close();
    for (int token = 0; token < 50; ++token) {
      for (size_t i = 0; i < 200; ++i) held.get(i)->write("token " + std::to_string(token) + "\n");
    }
    for (size_t i = 0; i < 200; ++i) held.get(i)->finish();
    for (size_t i = 0; i < 200; ++i) {
      if (i % 10 == 0) continue;
      const auto response = clients[i].read_response();
      ASSERT_TRUE(response) << i;
      EXPECT_TRUE(response->complete) << i;
      EXPECT_EQ(response->chunks.size(), 51u) << i;
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(HttpDrain, LetsStreamsFinishAndTakesNothingNew) {
  Held held;
  RunningServer server(held.handler());
  RawHttpClient idle = server.client();
  idle.get("/stream");
  held.get(0)->finish();
  ASSERT_TRUE(idle.read_response());
  RawHttpClient stream = server.client();
  stream.get("/stream");
  ASSERT_TRUE(stream.read_head());
  RawHttpClient waiting = server.client();
  waiting.get("/think");
  held.get(2);
  RawHttpClient halfway = server.client();
  halfway.send("GET /stream HT");
  ASSERT_TRUE(eventually([&] { return server->connections() == 4; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the half request is read, most likely

  server->close_listener();
  EXPECT_TRUE(idle.closed_by_server());
  server.on_io_thread([] {});
  EXPECT_FALSE(server.client().connected());

  held.get(1)->write("more");
  held.get(1)->finish();
  EXPECT_EQ(stream.read_chunk(), "begin");
  EXPECT_EQ(stream.read_chunk(), "more");
  EXPECT_EQ(stream.read_chunk(), "");
  EXPECT_TRUE(stream.closed_by_server());
  held.get(2)->respond({.body = "thought"});
  const auto response = waiting.read_response();
  EXPECT_EQ(response->body, "thought");
  EXPECT_EQ(response->header("connection"), "close");
  halfway.send("TP/1.1\r\nHost: t\r\n\r\n");
  held.get(3)->finish();
  EXPECT_TRUE(halfway.read_response()->complete);
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
  EXPECT_EQ(held.closed, 0);
  server->stop();
  server.join();
}

TEST(HttpDrain, StopClosesEverythingAndTellsTheHandlers) {
  Held held;
  auto server = std::make_unique<RunningServer>(held.handler());
  RawHttpClient stream = server->client();
  stream.get("/stream");
  RawHttpClient idle = server->client();
  const auto exchange = held.get(0);
  (*server)->stop();
  server->join();
  EXPECT_EQ(held.closed, 1);
  const auto response = stream.read_response();
  EXPECT_TRUE(!response || !response->complete);
  EXPECT_TRUE(idle.closed_by_server());
  server.reset();
  exchange->write("after the end");  // exchanges may outlive the server
  exchange->finish();
  exchange->on_close([] {});
  EXPECT_EQ(exchange->queued_bytes(), 0u);
}

TEST(HttpDrain, ServersThatNeverRanGoQuietly) {
  auto created = HttpServer::create({.port = 0}, [](const HttpRequest&, const std::shared_ptr<HttpExchange>&) {});
  ASSERT_TRUE(created);
  RawHttpClient client((*created)->port());
  client.get("/");
  (*created)->post([] { FAIL(); });
  (*created)->post_after(0, [] { FAIL(); });
  created->reset();
  EXPECT_TRUE(client.closed_by_server());
}

TEST(HttpDrain, StopBeforeRunEndsIt) {
  auto created = HttpServer::create({.port = 0}, [](const HttpRequest&, const std::shared_ptr<HttpExchange>&) {});
  ASSERT_TRUE(created);
  (*created)->stop();
  (*created)->run();
}

TEST(HttpTasks, RunOnTheIoThreadInOrder) {
  Held held;
  RunningServer server(held.handler());
  std::thread::id io_thread;
  server.on_io_thread([&] { io_thread = std::this_thread::get_id(); });
  EXPECT_NE(io_thread, std::this_thread::get_id());
  std::vector<int> order;  // of the I/O thread
  std::atomic<bool> done{false};
  server->post_after(0.05, [&] {
    EXPECT_EQ(std::this_thread::get_id(), io_thread);
    order.push_back(3);
    done = true;
  });
  server->post([&] { order.push_back(1); });
  server->post([&] { order.push_back(2); });
  server->post([] { throw std::runtime_error("a task's mistake"); });
  ASSERT_TRUE(eventually([&] { return done.load(); }));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(HttpTasks, SignalsAreHandledEachTime) {
  Held held;
  RunningServer server(held.handler());
  std::atomic<int> signals{0};
  server->on_signal({SIGUSR1, SIGUSR2}, [&](int signal) { signals += signal == SIGUSR1 ? 1 : 100; });
  ::raise(SIGUSR1);
  EXPECT_TRUE(eventually([&] { return signals == 1; }));
  ::raise(SIGUSR2);
  EXPECT_TRUE(eventually([&] { return signals == 101; }));
  ::raise(SIGUSR1);
  EXPECT_TRUE(eventually([&] { return signals == 102; }));
}

}  // namespace
}  // namespace onelane
