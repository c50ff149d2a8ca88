// The page at "/": files of ui/ and uPlot, embedded at build time (cmake/embed.cmake).
//
// They are served to everyone, without a key: they hold nothing but themselves. The headers forbid them, and whatever a
// model may smuggle into them, to load or send anything elsewhere.
#pragma once

#include <optional>
#include <span>

#include "base/embedded_file.h"
#include "http/server.h"

namespace onelane {

class Router;

// Their paths are what a browser asks for: "/", "/ui/main.js".
std::span<const EmbeddedFile> page_files();

// The answer to a GET or HEAD: 200, or 304 when the client has these bytes; nothing when the page has no such file.
// Paths are compared as a whole, so there is no way out of the table.
std::optional<HttpResponse> page_response(const HttpRequest& request);

// "/" and everything under "/ui/".
void add_page_routes(Router& router);

}  // namespace onelane
