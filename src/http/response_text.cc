#include "http/response_text.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "base/format.h"

namespace onelane {
namespace {

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "";  // allowed by RFC 9112 4
  }
}

// RFC 9110 5.6.7, without a locale's names of days.
std::string http_date(std::time_t time) {
  constexpr std::array<const char*, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc{};
  gmtime_r(&time, &utc);
  return format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[static_cast<size_t>(utc.tm_wday)], utc.tm_mday,
                kMonths[static_cast<size_t>(utc.tm_mon)], utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

bool equal_ignoring_case(std::string_view a, std::string_view lower) {
  return std::equal(a.begin(), a.end(), lower.begin(), lower.end(),
                    [](char x, char y) { return (x >= 'A' && x <= 'Z' ? x - 'A' + 'a' : x) == y; });
}

bool is_servers_own(std::string_view name) {
  for (const std::string_view own : {"content-length", "transfer-encoding", "connection", "date", "content-type"}) {
    if (equal_ignoring_case(name, own)) return true;
  }
  return false;
}

void append_header(std::string& text, std::string_view name, std::string_view value) {
  const auto append_safe = [&](std::string_view part) {
    for (const char c : part) text += c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
  };
  append_safe(name);
  text += ": ";
  append_safe(value);
  text += "\r\n";
}

std::string json_string(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) {
      json += format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      json += c;
    }
  }
  json += '"';
  return json;
}

}  // namespace

std::string response_head(const HttpResponse& response, const ResponseFrame& frame) {
  std::string text;
  text.reserve(256);
  text += format("HTTP/1.1 {} {}\r\n", response.status, reason(response.status));
  append_header(text, "Date", http_date(std::time(nullptr)));
  if (!response.content_type.empty() && status_has_body(response.status)) {
    append_header(text, "Content-Type", response.content_type);
  }
  for (const auto& [name, value] : response.headers) {
    if (!is_servers_own(name)) append_header(text, name, value);
  }
  if (frame.chunked) text += "Transfer-Encoding: chunked\r\n";
  if (frame.content_length) text += format("Content-Length: {}\r\n", *frame.content_length);
  if (!frame.keep_alive) text += "Connection: close\r\n";
  if (frame.keep_alive && frame.http10) text += "Connection: keep-alive\r\n";
  text += "\r\n";
  return text;
}

bool status_has_body(int status) { return status >= 200 && status != 204 && status != 304; }

HttpResponse error_response(int status, std::string_view message) {
  return {.status = status,
          .body = format(R"({{"error":{{"message":{},"type":"{}","param":null,"code":null}}}})", json_string(message),
                         status < 500 ? "invalid_request_error" : "server_error")};
}

}  // namespace onelane
