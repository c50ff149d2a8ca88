// Any bytes as requests on one connection: refused with a status and a message, or read, wherever they are cut.
//
// Byte 0: seed of the cuts. Byte 1: 0 gives the rest to the target parser alone, which otherwise sees few escapes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "http/request_parser.h"
#include "http/target.h"

namespace {

using onelane::RequestParser;

constexpr size_t kMaxHeaderBytes = 512;
constexpr size_t kMaxBodyBytes = 256;

// What the bytes mean, one line a request, up to the first that is refused or not complete.
std::string transcript(std::string_view bytes, uint32_t seed) {
  std::string said;
  std::string waiting;
  auto parser = std::make_unique<RequestParser>(kMaxHeaderBytes, kMaxBodyBytes);
  for (size_t at = 0; at < bytes.size();) {
    size_t length = bytes.size() - at;
    if (seed != 0) {
      seed = seed * 1664525u + 1013904223u;
      length = std::min<size_t>(length, 1 + (seed >> 24) % 17);
    }
    waiting += bytes.substr(at, length);
    at += length;
    for (bool more = true; more && !waiting.empty();) {
      const size_t taken = parser->feed(waiting);
      ONELANE_CHECK(taken <= waiting.size(), "the parser takes what it is given");
      waiting.erase(0, taken);
      more = false;
      switch (parser->state()) {
        case RequestParser::State::kFailed:
          ONELANE_CHECK(parser->failure().status >= 400 && !parser->failure().message.empty(), "refused by name");
          return said + "refused";
        case RequestParser::State::kDone: {
          const onelane::HttpRequest request = parser->take();
          ONELANE_CHECK(request.body.size() <= kMaxBodyBytes, "body limit");
          ONELANE_CHECK(request.path.starts_with('/') || request.path == "*", "a path");
          said += request.method + " " + request.path + (parser->keep_alive() ? " k " : " c ");
          for (const auto& [key, value] : request.query) said += key + "=" + value + "&";
          size_t header_bytes = 0;
          for (const auto& [key, value] : request.headers) {
            said += key + ":" + value + ";";
            header_bytes += key.size() + value.size();
          }
          ONELANE_CHECK(header_bytes <= kMaxHeaderBytes, "header limit");
          said += request.body + "\n";
          parser = std::make_unique<RequestParser>(kMaxHeaderBytes, kMaxBodyBytes);
          more = true;
          break;
        }
        default:
          ONELANE_CHECK(waiting.size() <= kMaxHeaderBytes, "little waits");
          break;
      }
    }
  }
  return said;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (data[1] == 0) {
    const auto target = onelane::parse_target(bytes);
    if (target) {
      ONELANE_CHECK(target->path.find('\0') == std::string::npos, "no NUL");
    } else {
      ONELANE_CHECK(!target.error().message.empty(), "refused by name");
    }
    return 0;
  }
  const std::string whole = transcript(bytes, 0);
  const std::string cut = transcript(bytes, data[0] + 1u);
  // Requests mean the same however they are cut, and the first refusal comes behind the same ones. Only whether a
  // hopeless beginning is refused already may depend on where the bytes ended.
  const auto requests = [](const std::string& said) { return said.substr(0, said.rfind('\n') + 1); };
  ONELANE_CHECK(requests(whole) == requests(cut), "cuts do not matter");
  return 0;
}
