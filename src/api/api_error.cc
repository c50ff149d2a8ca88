#include "api/api_error.h"

#include <nlohmann/json.hpp>

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

// Messages can quote bytes of a broken request: what is not UTF-8 is replaced.
HttpResponse json_response(int status, const Json& body) {
  return {.status = status, .body = body.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

const char* anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

ApiError to_api_error(const Error& error, std::string param) {
  ApiError out{.message = error.message, .param = std::move(param)};
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
      break;
    case ErrorCode::kResourceExhausted:
      out.status = 503;
      out.type = "server_error";
      out.code = "overloaded";
      break;
    default:
      out.status = 500;
      out.type = "server_error";
  }
  return out;
}

std::string leading_path(std::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == std::string_view::npos) return {};
  const std::string_view path = message.substr(0, colon);
  return path.find_first_of(" \"'") == std::string_view::npos ? std::string(path) : std::string();
}

HttpResponse openai_error(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return json_response(error.status, {{"error",
                                       {{"message", error.message},
                                        {"type", error.type},
                                        {"param", or_null(error.param)},
                                        {"code", or_null(error.code)}}}});
}

HttpResponse anthropic_error(const ApiError& error) {
  return json_response(error.status, {{"type", "error"},
                                      {"error", {{"type", anthropic_type(error.status)}, {"message", error.message}}}});
}

}  // namespace onelane
