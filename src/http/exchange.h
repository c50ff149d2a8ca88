// How the threads of the program reach a connection: every call on an HttpExchange becomes a command in the server's
// mailbox, and the I/O thread carries the commands out in order. One lock a call, one wake-up a batch, and no call
// runs code of the connection's in the caller's stack.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "http/server.h"

namespace onelane {

class Connection;

// What an exchange and its connection know of one answer.
struct Answer {
  enum class State { kWaiting, kStreaming, kComplete, kGone };

  std::atomic<size_t> queued_bytes{0};
  std::atomic<bool> gone{false};

  // The I/O thread's alone.
  State state = State::kWaiting;
  Connection* connection = nullptr;  // until the answer is sent or the client is gone
  std::function<void()> on_close;
};

struct Command {
  struct Respond {
    HttpResponse response;
  };
  struct Start {
    HttpResponse head;
  };
  struct Write {
    std::string piece;
  };
  struct Finish {};
  struct OnClose {
    std::function<void()> closed;
  };
  struct Abandon {};  // the last reference is gone

  std::shared_ptr<Answer> answer;
  std::variant<Respond, Start, Write, Finish, OnClose, Abandon> what;
};

class Mailbox {
 public:
  // `wake` makes the I/O thread call take() soon; it is called with the first command of a batch, from any thread.
  explicit Mailbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  void send(Command command);
  std::vector<Command> take();
  // From now on commands are dropped and nobody is woken.
  void close();

 private:
  std::mutex mutex_;
  std::function<void()> wake_;
  std::vector<Command> commands_;
  bool open_ = true;
};

std::shared_ptr<HttpExchange> make_exchange(std::shared_ptr<Mailbox> mailbox, std::shared_ptr<Answer> answer);

}  // namespace onelane
