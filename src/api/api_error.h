// ApiError: a refusal with an HTTP status, in the shape that the client's protocol wants.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "http/server.h"

namespace onelane {

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // the field at fault, as a path: "messages[2].content"; empty: none
  std::string code;   // OpenAI's machine-readable code, for instance "model_not_found"; empty: none
};

// kInvalidArgument and kUnsupported are the client's fault (400), kResourceExhausted is 503, the rest 500.
ApiError to_api_error(const Error& error, std::string param = "");

// The field that a message begins with ("tools[2].function: must be an object"), for param; empty: it names none.
std::string leading_path(std::string_view message);

// {"error": {"message", "type", "param", "code"}}
HttpResponse openai_error(const ApiError& error);
// {"type": "error", "error": {"type", "message"}}, types by status: authentication_error, not_found_error, ...
HttpResponse anthropic_error(const ApiError& error);

}  // namespace onelane
