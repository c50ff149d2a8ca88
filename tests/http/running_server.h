// A server on a thread of its own, for one test.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "http/server.h"
#include "support/http_client.h"

namespace onelane {

class RunningServer {
 public:
  explicit RunningServer(HttpHandler handler, HttpOptions options = {}) {
    options.port = 0;
    auto created = HttpServer::create(options, std::move(handler));
    EXPECT_TRUE(created) << created.error().message;
    server_ = std::move(*created);
    thread_ = std::thread([this] { server_->run(); });
  }
  ~RunningServer() {
    server_->stop();
    join();
  }

  void join() {
    if (thread_.joinable()) thread_.join();
  }
  HttpServer& operator*() { return *server_; }
  HttpServer* operator->() { return server_.get(); }
  RawHttpClient client(int receive_buffer = 0) {
    return RawHttpClient(server_->port(), std::chrono::seconds(20), receive_buffer);
  }

  // Runs on the I/O thread, and waits.
  void on_io_thread(std::function<void()> task) {
    std::promise<void> done;
    server_->post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }

 private:
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

// True as soon as `condition` is; false after a generous while.
inline bool eventually(const std::function<bool()>& condition,
                       std::chrono::seconds patience = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace onelane
