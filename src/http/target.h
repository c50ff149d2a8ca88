// The target of a request line, taken apart: "/v1/models?limit=2" -> path and query.
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

}  // namespace onelane
