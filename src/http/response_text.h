// The text of a response: status line and headers, and the JSON body of the errors that the server itself gives.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "http/server.h"

namespace onelane {

struct ResponseFrame {
  bool http10 = false;
  bool keep_alive = true;
  bool chunked = false;
  std::optional<size_t> content_length;
};

// Headers of `response` that are the server's business (Content-Length, Transfer-Encoding, Connection, Date) are left
// out. Line breaks and NULs in a value become spaces: no value can begin a header of its own.
std::string response_head(const HttpResponse& response, const ResponseFrame& frame);

// 1xx, 204 and 304 have no body, not even an empty one.
bool status_has_body(int status);

// {"error":{"message":...,"type":...,"param":null,"code":null}}
HttpResponse error_response(int status, std::string_view message);

}  // namespace onelane
