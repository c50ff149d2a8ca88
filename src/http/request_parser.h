// RequestParser: the bytes of one request -> an HttpRequest, or the status that refuses it. No sockets.
//
// Strict where leniency lets two parties read different requests: one Content-Length of digits only, never together
// with Transfer-Encoding; no transfer coding but chunked; one Host. Trailers after a chunked body are checked and
// dropped.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "http/server.h"

namespace onelane {

struct RequestFailure {
  int status = 400;
  std::string message;
};

class RequestParser {
 public:
  enum class State { kHeader, kBody, kDone, kFailed };

  RequestParser(size_t max_header_bytes, size_t max_body_bytes);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Takes bytes and returns how many it is done with. The others must be given again, with more behind them. What
  // stays is never longer than the header limit. Stops behind the request's last byte.
  size_t feed(std::string_view bytes);
  State state() const;

  // In state kBody: the client waits for "100 Continue" before it sends the body.
  bool expects_continue() const;
  // In state kDone. take() leaves `peer` empty; it may be called once.
  HttpRequest take();
  bool keep_alive() const;
  // From the request line on; false before.
  bool is_http10() const;
  const RequestFailure& failure() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onelane
