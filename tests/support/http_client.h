// A blocking HTTP/1.1 client for tests: raw sockets, so that a test decides on every byte and on when to hang up.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace onelane {

struct ClientResponse {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  std::vector<std::string> chunks;  // of a chunked body
  bool complete = false;            // the body ended as its framing promised

  std::string header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

class RawHttpClient {
 public:
  // Waits at most `patience` for anything, then gives up as if the server had closed.
  explicit RawHttpClient(int port, std::chrono::seconds patience = std::chrono::seconds(20), int receive_buffer = 0)
      : patience_(patience) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    const int on = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~RawHttpClient() { close(); }
  RawHttpClient(RawHttpClient&& other) noexcept
      : patience_(other.patience_),
        socket_(std::exchange(other.socket_, -1)),
        connected_(other.connected_),
        input_(std::move(other.input_)) {}
  RawHttpClient& operator=(RawHttpClient&&) = delete;

  bool connected() const { return connected_; }
  int socket() const { return socket_; }

  // False if the server has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  void get(const std::string& target, const std::string& headers = "") {
    send("GET " + target + " HTTP/1.1\r\nHost: test\r\n" + headers + "\r\n");
  }
  void post(const std::string& target, std::string_view body, const std::string& headers = "") {
    send("POST " + target + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + headers + "\r\n" + std::string(body));
  }

  // The next response; nullopt if the connection ends before its headers do. `head`: it answers a HEAD request.
  std::optional<ClientResponse> read_response(bool head = false) {
    auto response = read_head();
    if (!response) return std::nullopt;
    const bool bodiless = head || response->status < 200 || response->status == 204 || response->status == 304;
    if (bodiless) {
      response->complete = true;
    } else if (response->header("transfer-encoding") == "chunked") {
      while (auto chunk = read_chunk()) {
        if (chunk->empty()) {
          response->complete = true;
          break;
        }
        response->body += *chunk;
        response->chunks.push_back(std::move(*chunk));
      }
    } else if (const std::string length = response->header("content-length"); !length.empty()) {
      const size_t size = std::strtoul(length.c_str(), nullptr, 10);
      while (input_.size() < size && fill()) {
      }
      response->complete = input_.size() >= size;
      response->body = take(std::min(size, input_.size()));
    } else {
      while (fill()) {
      }
      response->complete = !reset_;
      response->body = std::exchange(input_, {});
    }
    return response;
  }

  // Status line and headers only; what follows is read with read_chunk().
  std::optional<ClientResponse> read_head() {
    size_t end;
    while ((end = input_.find("\r\n\r\n")) == std::string::npos) {
      if (!fill()) return std::nullopt;
    }
    const std::string text = take(end + 4);
    ClientResponse response;
    response.status = text.size() > 12 ? std::atoi(text.c_str() + 9) : 0;
    for (size_t line = text.find("\r\n") + 2; line + 2 < text.size();) {
      const size_t line_end = text.find("\r\n", line);
      const size_t colon = text.find(':', line);
      std::string name = text.substr(line, colon - line);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      response.headers.emplace_back(name, text.substr(colon + 2, line_end - colon - 2));
      line = line_end + 2;
    }
    return response;
  }

  // "" is the last chunk; nullopt: the connection ended.
  std::optional<std::string> read_chunk() {
    size_t end;
    while ((end = input_.find("\r\n")) == std::string::npos) {
      if (!fill()) return std::nullopt;
    }
    const size_t size = std::strtoul(input_.c_str(), nullptr, 16);
    while (input_.size() < end + 2 + size + 2) {
      if (!fill()) return std::nullopt;
    }
    std::string chunk = input_.substr(end + 2, size);
    input_.erase(0, end + 2 + size + 2);
    return chunk;
  }

  // All until the server closes.
  std::string read_all() {
    while (fill()) {
    }
    return std::exchange(input_, {});
  }

  // The server has closed, orderly or not, and nothing more came.
  bool closed_by_server() { return input_.empty() && !fill() && !timed_out_; }
  bool was_reset() const { return reset_; }

  void shut_down_sending() { ::shutdown(socket_, SHUT_WR); }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  // Hangs up with a reset.
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close();
  }

 private:
  std::string take(size_t count) {
    std::string taken = input_.substr(0, count);
    input_.erase(0, count);
    return taken;
  }

  bool fill() {
    pollfd ready{.fd = socket_, .events = POLLIN, .revents = 0};
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(patience_).count();
    if (::poll(&ready, 1, static_cast<int>(ms)) <= 0) {
      timed_out_ = true;
      return false;
    }
    char buffer[65536];
    const ssize_t n = ::recv(socket_, buffer, sizeof(buffer), 0);
    if (n < 0) reset_ = true;
    if (n <= 0) return false;
    input_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  std::chrono::seconds patience_;
  int socket_ = -1;
  bool connected_ = false;
  bool timed_out_ = false;
  bool reset_ = false;
  std::string input_;
};

}  // namespace onelane
