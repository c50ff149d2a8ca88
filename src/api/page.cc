#include "api/page.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "api/router.h"

namespace onelane {
namespace {

constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

void serve(HttpRequest request, const std::shared_ptr<ApiExchange>& exchange) {
  if (auto response = page_response(request)) return exchange->respond(*std::move(response));
  exchange->fail({.status = 404, .message = "the page has no such file", .code = "not_found"});
}

}  // namespace

std::optional<HttpResponse> page_response(const HttpRequest& request) {
  const auto files = page_files();
  const auto file =
      std::find_if(files.begin(), files.end(), [&](const EmbeddedFile& f) { return f.path == request.path; });
  if (file == files.end()) return std::nullopt;

  HttpResponse response{.content_type = std::string(file->content_type),
                        .headers = {{"etag", std::string(file->etag)},
                                    {"cache-control", "no-cache"},  // kept, but asked for again: builds change
                                    {"content-security-policy", std::string(kPolicy)},
                                    {"x-content-type-options", "nosniff"},
                                    {"referrer-policy", "no-referrer"}}};
  // If-None-Match is a list and may mark tags as weak; a tag's quotes keep it from being found inside another.
  if (request.header("if-none-match").find(file->etag) != std::string_view::npos) {
    response.status = 304;
  } else {
    response.body = file->bytes;
  }
  return response;
}

void add_page_routes(Router& router) {
  for (const char* method : {"GET", "HEAD"}) {
    for (const char* path : {"/", "/ui/*"}) router.add(method, path, Protocol::kOpenAi, Router::Access::kOpen, serve);
  }
}

}  // namespace onelane
