#include "http/connection.h"

#include <cerrno>

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/log.h"
#include "http/response_text.h"

namespace onelane {
namespace {

constexpr size_t kReadAheadBytes = size_t{64} << 10;  // of pipelined requests, while an answer is under way
constexpr std::chrono::seconds kLinger{2};
constexpr auto kNever = Connection::Clock::time_point::max();

Connection::Clock::duration seconds(double count) {
  return std::chrono::duration_cast<Connection::Clock::duration>(std::chrono::duration<double>(count));
}

// Bytes that the kernel holds for us.
bool has_unread_bytes(int socket) {
  int bytes = 0;
  return ::ioctl(socket, FIONREAD, &bytes) == 0 && bytes > 0;
}

}  // namespace

Connection::Connection(ConnectionHost& host, int socket, std::string peer)
    : host_(host),
      socket_(socket),
      peer_(std::move(peer)),
      read_deadline_(Clock::now() + seconds(host.options().header_timeout_seconds)) {}

bool Connection::answering() const {
  return answer_ != nullptr &&
         (answer_->state == Answer::State::kWaiting || answer_->state == Answer::State::kStreaming);
}

bool Connection::keeps_alive() const { return keep_alive_ && !host_.draining(); }

bool Connection::wants_read() const {
  if (phase_ == Phase::kClosed || end_of_input_) return false;
  return answer_ == nullptr || phase_ != Phase::kOpen || input_.size() < kReadAheadBytes;
}

// --- reading ---

void Connection::on_readable() {
  const std::span<char> buffer = host_.read_buffer();
  const ssize_t n = ::recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) close(false);
  } else if (n == 0) {
    on_end_of_input();
  } else if (phase_ == Phase::kOpen) {
    take_bytes({buffer.data(), static_cast<size_t>(n)});
  }
}

void Connection::on_end_of_input() {
  end_of_input_ = true;
  // A client that has hung up and one that has only closed its sending side look alike; both mean "do not go on".
  if (answering()) return close_unless_answered();
  // An answer that is complete is still delivered.
  if (phase_ == Phase::kLingering || (phase_ == Phase::kOpen && answer_ == nullptr)) close(false);
}

// The request came whole before the input's end, so a handler that has answered it already shall be heard: its
// commands lie in the mailbox and the event loop takes them before it makes this call.
void Connection::close_unless_answered() {
  host_.call_soon([self = weak_from_this()] {
    const auto connection = self.lock();
    if (connection != nullptr && connection->answering()) connection->close(false);
  });
}

void Connection::take_bytes(std::string_view bytes) {
  if (answer_ != nullptr) {  // one request at a time
    input_ += bytes;
  } else if (input_.empty()) {
    parse(bytes);
  } else {
    std::string joined = std::move(input_);
    input_.clear();
    joined += bytes;
    parse(joined);
  }
}

// `bytes` is all that is read and not parsed; what is left of it goes to input_.
void Connection::parse(std::string_view bytes) {
  if (parser_ == nullptr) {
    while (bytes.starts_with('\r') || bytes.starts_with('\n')) bytes.remove_prefix(1);  // RFC 9112 2.2
    if (bytes.empty()) return;
    const HttpOptions& options = host_.options();
    parser_ = std::make_unique<RequestParser>(options.max_header_bytes, options.max_body_bytes);
    read_deadline_ = Clock::now() + seconds(options.header_timeout_seconds);
    continued_ = false;
  }
  const size_t taken = parser_->feed(bytes);
  input_ = bytes.substr(taken);
  switch (parser_->state()) {
    case RequestParser::State::kHeader:
      break;
    case RequestParser::State::kBody:
      read_deadline_ = Clock::now() + seconds(host_.options().header_timeout_seconds);
      if (parser_->expects_continue() && !continued_) {
        continued_ = true;
        out_.append("HTTP/1.1 100 Continue\r\n\r\n");
        settle();
      }
      break;
    case RequestParser::State::kDone:
      dispatch();
      break;
    case RequestParser::State::kFailed: {
      const RequestFailure failure = parser_->failure();
      fail(failure.status, failure.message);
      break;
    }
  }
}

void Connection::dispatch() {
  HttpRequest request = parser_->take();
  request.peer = peer_;
  keep_alive_ = parser_->keep_alive();
  http10_ = parser_->is_http10();
  head_only_ = request.method == "HEAD";
  parser_.reset();
  read_deadline_ = kNever;
  answer_ = std::make_shared<Answer>();
  answer_->connection = this;
  host_.handle(std::move(request), answer_);
  if (end_of_input_) close_unless_answered();
}

// --- answering ---

void Connection::fail(int status, std::string_view message) {
  phase_ = Phase::kClosing;
  parser_.reset();
  input_ = {};
  read_deadline_ = kNever;
  keep_alive_ = false;
  unread_input_ = true;
  HttpResponse response = error_response(status, message);
  out_.append(response_head(response, {.keep_alive = false, .content_length = response.body.size()}) + response.body);
  settle();
}

void Connection::refuse(std::string_view message) { fail(503, message); }

void Connection::apply(Command command) {
  std::visit(
      [this](auto& what) {
        using What = std::decay_t<decltype(what)>;
        if constexpr (std::is_same_v<What, Command::Respond>) respond(std::move(what.response));
        if constexpr (std::is_same_v<What, Command::Start>) start(std::move(what.head));
        if constexpr (std::is_same_v<What, Command::Write>) write(std::move(what.piece));
        if constexpr (std::is_same_v<What, Command::Finish>) finish();
        if constexpr (std::is_same_v<What, Command::OnClose>) {
          if (answering()) answer_->on_close = std::move(what.closed);
        }
        if constexpr (std::is_same_v<What, Command::Abandon>) abandon();
      },
      command.what);
}

void Connection::respond(HttpResponse response) {
  if (!answering() || answer_->state == Answer::State::kStreaming) {
    answer_->queued_bytes -= response.body.size();
    return log_error("http: respond() after start() or after the end of an answer is ignored");
  }
  ResponseFrame frame{.http10 = http10_, .keep_alive = keeps_alive()};
  const bool has_body = status_has_body(response.status);
  if (has_body) frame.content_length = response.body.size();
  out_.append(response_head(response, frame));
  if (has_body && !head_only_) {
    out_.append_payload(std::move(response.body));
  } else {
    answer_->queued_bytes -= response.body.size();
  }
  complete();
}

void Connection::start(HttpResponse head) {
  if (answer_->state != Answer::State::kWaiting) {
    answer_->queued_bytes -= head.body.size();
    return log_error("http: a second start() of an answer is ignored");
  }
  answer_->state = Answer::State::kStreaming;
  head_only_ = head_only_ || !status_has_body(head.status);
  chunked_ = !http10_ && status_has_body(head.status);
  if (http10_) keep_alive_ = false;  // the stream ends with the connection
  out_.append(response_head(head, {.http10 = http10_, .keep_alive = keeps_alive(), .chunked = chunked_}));
  if (!head.body.empty()) write(std::move(head.body));
}

void Connection::write(std::string piece) {
  if (answer_->state != Answer::State::kStreaming || head_only_) {
    answer_->queued_bytes -= piece.size();
    if (answer_->state != Answer::State::kStreaming) log_error("http: write() outside a stream is ignored");
  } else if (chunked_) {
    out_.append_chunk(std::move(piece));
  } else {
    out_.append_payload(std::move(piece));
  }
}

void Connection::finish() {
  if (answer_->state != Answer::State::kStreaming) {
    return log_error("http: finish() outside a stream is ignored");
  }
  if (chunked_ && !head_only_) out_.append("0\r\n\r\n");
  complete();
}

void Connection::complete() {
  answer_->state = Answer::State::kComplete;
  answer_->on_close = nullptr;  // it may own the exchange
}

void Connection::abandon() {
  if (answer_->state == Answer::State::kWaiting) {
    HttpResponse response = error_response(500, "the server dropped this request without an answer");
    answer_->queued_bytes += response.body.size();
    respond(std::move(response));
  } else if (answer_->state == Answer::State::kStreaming) {
    close(true);
  }
}

// --- sending ---

void Connection::settle() {
  if (phase_ == Phase::kClosed) return;
  flush();
  if (phase_ == Phase::kClosed || phase_ == Phase::kLingering) return;
  if (!out_.empty()) {
    // Only a stream can be too much: a whole answer is as large as its handler made it.
    if (answering() && out_.bytes() > host_.options().max_queued_bytes) close(true);
    return;
  }
  if (phase_ == Phase::kClosing) return begin_close();
  if (answer_ == nullptr || answering()) return;
  answer_->connection = nullptr;
  answer_.reset();
  if (!keeps_alive()) return begin_close();
  next_request();
}

void Connection::flush() {
  if (out_.empty() || write_watched_) return;
  const OutQueue::Progress progress = out_.send(socket_);
  if (answer_ != nullptr) answer_->queued_bytes -= progress.payload;
  switch (progress.sent) {
    case OutQueue::Sent::kAll:
      write_deadline_ = kNever;
      break;
    case OutQueue::Sent::kFailed:
      close(false);
      break;
    case OutQueue::Sent::kBlocked:
      if (progress.bytes > 0 || write_deadline_ == kNever) {
        write_deadline_ = Clock::now() + seconds(host_.options().write_timeout_seconds);
      }
      write_watched_ = true;
      watch_write();
      break;
  }
}

void Connection::on_writable() {
  write_watched_ = false;
  settle();
}

void Connection::next_request() {
  read_deadline_ = Clock::now() + seconds(host_.options().idle_timeout_seconds);
  const std::string waiting = std::move(input_);
  input_.clear();
  if (!waiting.empty()) parse(waiting);
  if (phase_ != Phase::kOpen) return;
  if (end_of_input_ && answer_ == nullptr) return close(false);  // the rest of a request will not come
  if (wants_read()) watch_read();
}

// --- ending ---

void Connection::begin_close() {
  if (end_of_input_ || (!unread_input_ && input_.empty() && !has_unread_bytes(socket_))) return close(false);
  phase_ = Phase::kLingering;
  input_ = {};
  ::shutdown(socket_, SHUT_WR);
  read_deadline_ = Clock::now() + kLinger;
  watch_read();
}

void Connection::close_if_idle() {
  const bool idle = phase_ == Phase::kOpen && answer_ == nullptr && parser_ == nullptr && out_.empty();
  if (idle && !has_unread_bytes(socket_)) close(false);
}

void Connection::close_now() { close(answering() || !out_.empty()); }

void Connection::close(bool reset) {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  if (answer_ != nullptr) {
    if (answering()) {
      answer_->state = Answer::State::kGone;
      answer_->gone = true;
      if (answer_->on_close) host_.call_soon(std::move(answer_->on_close));
      answer_->on_close = nullptr;
    }
    answer_->connection = nullptr;
    answer_.reset();
  }
  out_.clear();
  parser_.reset();
  input_ = {};
  close_socket(reset);  // last: the owner may let go of this connection
}

void Connection::on_tick(Clock::time_point now) {
  if (phase_ == Phase::kClosed) return;
  if (now >= write_deadline_) return close(true);
  if (now >= read_deadline_) {
    if (phase_ == Phase::kOpen && parser_ != nullptr) {
      const bool header = parser_->state() == RequestParser::State::kHeader;
      return fail(408, header ? "the request's header did not arrive in time" : "the request's body stopped arriving");
    }
    return close(false);
  }
  if (!end_of_input_ && !wants_read()) {
    // The client has sent so far ahead that its end is out of our sight; the kernel can still tell.
    pollfd end{.fd = socket_, .events = POLLRDHUP, .revents = 0};
    if (::poll(&end, 1, 0) > 0 && answering()) close(false);
  }
}

}  // namespace onelane
