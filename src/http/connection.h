// Connection: HTTP/1.1 on one socket, as a state machine without an event loop. Whoever owns it says when the socket
// can be read or written and what time it is; it says what it waits for.
//
// The I/O thread's alone. Handlers are called from here; everything else of the user's is run through call_soon().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "http/exchange.h"
#include "http/out_queue.h"
#include "http/request_parser.h"
#include "http/server.h"

namespace onelane {

// What the connections of one server share.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;

  virtual const HttpOptions& options() const = 0;
  virtual bool draining() const = 0;          // finish what is under way, begin nothing
  virtual std::span<char> read_buffer() = 0;  // scratch of one on_readable()
  virtual void handle(HttpRequest request, std::shared_ptr<Answer> answer) = 0;
  virtual void call_soon(std::function<void()> call) = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(ConnectionHost& host, int socket, std::string peer);
  virtual ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Answers 503 without reading a request, then closes.
  void refuse(std::string_view message);

  void on_readable();
  void on_writable();
  void on_tick(Clock::time_point now);
  // Carries out a command for this connection's answer. settle() must follow.
  void apply(Command command);
  // Sends what is queued and, when an answer is through, turns to the next request.
  void settle();
  // Closes the connection if it is between requests.
  void close_if_idle();
  void close_now();

  bool wants_read() const;
  bool is_open() const { return phase_ != Phase::kClosed; }

  bool touched = false;  // the owner's: commands were applied and settle() is due

 protected:
  // Call on_readable() whenever there are bytes or an end, as long as wants_read().
  virtual void watch_read() = 0;
  // Call on_writable() once, when the socket takes bytes again.
  virtual void watch_write() = 0;
  // `reset`: the client must see that the answer is cut short, and nothing is left to the kernel to deliver.
  virtual void close_socket(bool reset) = 0;

 private:
  // kClosing: the last answer is on its way. kLingering: it is sent; what the client still sends is thrown away, since
  // closing over unread bytes would reset the connection and might destroy the answer on its way.
  enum class Phase { kOpen, kClosing, kLingering, kClosed };

  void take_bytes(std::string_view bytes);
  void parse(std::string_view bytes);
  void dispatch();
  void fail(int status, std::string_view message);
  void on_end_of_input();
  void close_unless_answered();
  void flush();
  void next_request();
  void begin_close();
  void close(bool reset);

  void respond(HttpResponse response);
  void start(HttpResponse head);
  void write(std::string piece);
  void finish();
  void complete();
  void abandon();
  bool answering() const;  // an answer is owed
  bool keeps_alive() const;

  ConnectionHost& host_;
  const int socket_;
  const std::string peer_;

  Phase phase_ = Phase::kOpen;
  std::unique_ptr<RequestParser> parser_;  // from a request's first byte to its last
  std::string input_;                      // bytes read and not parsed
  std::shared_ptr<Answer> answer_;         // from a request's last byte to its answer's last
  OutQueue out_;

  // Of the request in hand.
  bool keep_alive_ = true;
  bool http10_ = false;
  bool head_only_ = false;
  bool chunked_ = false;
  bool continued_ = false;  // "100 Continue" is sent

  bool end_of_input_ = false;
  bool unread_input_ = false;  // the client is probably still sending a request that is refused
  bool write_watched_ = false;
  Clock::time_point read_deadline_;
  Clock::time_point write_deadline_ = Clock::time_point::max();
};

}  // namespace onelane
