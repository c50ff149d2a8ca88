#include "http/target.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/format.h"

namespace onelane {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Result<std::string> percent_decode(std::string_view text, bool plus_is_space) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '+' && plus_is_space) c = ' ';
    if (c == '%') {
      const int high = i + 1 < text.size() ? hex_digit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
      if (high < 0 || low < 0) {
        return Error{ErrorCode::kInvalidArgument, "request target: '%' must be followed by two hexadecimal digits"};
      }
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return Error{ErrorCode::kInvalidArgument, "request target: a NUL character is not allowed"};
    decoded += c;
  }
  return decoded;
}

// "http://host/path" -> "/path"; nullopt if there is no scheme that we serve.
std::optional<std::string_view> without_authority(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t slash = target.find_first_of("/?");
    if (target.empty() || slash == 0) return std::nullopt;  // no host
    return slash == std::string_view::npos ? std::string_view() : target.substr(slash);
  }
  return std::nullopt;
}

}  // namespace

Result<RequestTarget> parse_target(std::string_view target) {
  RequestTarget parsed;
  if (target == "*") {
    parsed.path.push_back('*');
    return parsed;
  }
  std::string_view rest = target;
  if (!target.starts_with('/')) {
    const auto origin = without_authority(target);
    if (!origin) return Error{ErrorCode::kInvalidArgument, "request target: a path that begins with '/' was expected"};
    rest = *origin;
  }
  if (rest.find('#') != std::string_view::npos) {
    return Error{ErrorCode::kInvalidArgument, "request target: a fragment ('#') is not sent to a server"};
  }
  const size_t mark = rest.find('?');
  ONELANE_ASSIGN(parsed.path, percent_decode(rest.substr(0, mark), false));
  if (parsed.path.empty()) parsed.path.push_back('/');
  for (const char c : parsed.path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return Error{ErrorCode::kInvalidArgument, "request target: control characters in the path are not allowed"};
    }
  }
  if (mark == std::string_view::npos) return parsed;

  for (std::string_view query = rest.substr(mark + 1); !query.empty();) {
    const size_t end = query.find('&');
    const std::string_view field = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    if (field.empty()) continue;
    const size_t equals = field.find('=');
    ONELANE_ASSIGN(std::string key, percent_decode(field.substr(0, equals), true));
    std::string value;
    if (equals != std::string_view::npos) {
      ONELANE_ASSIGN(value, percent_decode(field.substr(equals + 1), true));
    }
    parsed.query.emplace_back(std::move(key), std::move(value));
  }
  return parsed;
}

std::string HttpUrl::authority() const {
  return host.find(':') == std::string::npos ? format("{}:{}", host, port) : format("[{}]:{}", host, port);
}

Result<HttpUrl> parse_http_url(std::string_view url) {
  const auto refuse = [&](std::string_view why) {
    return Error{
        ErrorCode::kInvalidArgument,
        format("URL \"{}\": {}; expected http://HOST[:PORT][/PREFIX], for instance http://127.0.0.1:8000", url, why)};
  };
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with("https://")) return refuse("https is not supported");
  if (!url.starts_with(kScheme)) return refuse("it does not begin with http://");
  for (const char c : url) {
    if (c <= ' ' || c == '\x7f') return refuse("a space or control character");
  }
  if (url.find_first_of("?#") != std::string_view::npos) return refuse("a query or fragment has no place here");

  std::string_view rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash);
  HttpUrl parsed;
  parsed.prefix = rest.substr(slash);
  while (parsed.prefix.ends_with('/')) parsed.prefix.pop_back();

  if (authority.find('@') != std::string_view::npos) return refuse("user names are not supported");
  if (authority.starts_with('[')) {
    const size_t bracket = authority.find(']');
    if (bracket == std::string_view::npos) return refuse("'[' without ']'");
    parsed.host = authority.substr(1, bracket - 1);
    if (parsed.host.find(':') == std::string::npos) return refuse("brackets are for IPv6 addresses");
    authority.remove_prefix(bracket + 1);
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    parsed.host = authority.substr(0, colon);
    authority.remove_prefix(colon);
  }
  if (parsed.host.empty()) return refuse("the host is missing");
  if (authority.empty()) return parsed;
  if (authority[0] != ':') return refuse("']' must be followed by a port or a path");
  authority.remove_prefix(1);
  const auto [end, error] = std::from_chars(authority.data(), authority.data() + authority.size(), parsed.port);
  const bool number = error == std::errc() && end == authority.data() + authority.size();
  if (!number || parsed.port < 1 || parsed.port > 65535) return refuse("the port is not a number from 1 to 65535");
  return parsed;
}

}  // namespace onelane
