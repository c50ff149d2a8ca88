// ResponseParser: the bytes of one response -> status, headers and body pieces, or why they are none. No sockets.
//
// Body pieces are handed on as they come, whatever the framing: Content-Length, chunked, or up to the end of the
// connection. Informational (1xx) responses are passed over.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace onelane {

class ResponseParser {
 public:
  // `on_body` is called from within feed(), with pieces that are not empty.
  explicit ResponseParser(std::function<void(std::string_view piece)> on_body);
  ~ResponseParser();
  ResponseParser(const ResponseParser&) = delete;
  ResponseParser& operator=(const ResponseParser&) = delete;

  // Takes bytes and returns how many it is done with. The others must be given again, with more behind them. Stops
  // behind the response's last byte. Errors (kCorrupt) say what is malformed.
  Result<size_t> feed(std::string_view bytes);
  // The connection has ended. An error (kCorrupt) unless the response is then complete.
  Result<void> end();

  bool head_done() const;
  bool done() const;
  // From head_done() on.
  int status() const;
  const std::vector<std::pair<std::string, std::string>>& headers() const;  // names in lower case

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
  std::function<void(std::string_view)> on_body_;
};

}  // namespace onelane
