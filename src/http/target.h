// Addresses taken apart: the target of a request line ("/v1/models?limit=2" -> path and query) and a server's base URL.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace onelane {

struct RequestTarget {
  std::string path;                                        // percent-decoded; "/..." or "*"
  std::vector<std::pair<std::string, std::string>> query;  // percent-decoded, '+' is a space, in the client's order
};

// RFC 9112 3.2: the forms "/path?query", "http://host/path?query" and "*". Dot segments are left as they are. An escape
// that is not two hex digits, a control character in the path and a NUL anywhere are errors.
Result<RequestTarget> parse_target(std::string_view target);

struct HttpUrl {
  std::string host;  // a name or an address, IPv6 without brackets
  int port = 80;
  std::string prefix;  // in front of every path: "" or "/gateway", never with a slash at its end

  std::string authority() const;  // "[::1]:8000"
};

// "http://HOST[:PORT][/PREFIX]". Errors name the URL and what would be right; https, user names, queries and fragments
// are refused.
Result<HttpUrl> parse_http_url(std::string_view url);

}  // namespace onelane
