// A file that was made part of the program at build time (cmake/embed.cmake), so that it needs no folder beside it.
#pragma once

#include <string_view>

namespace onelane {

struct EmbeddedFile {
  std::string_view path;  // as the build named it: "/ui/main.js", "prose.json"
  std::string_view content_type;
  std::string_view etag;  // of the bytes, quotes included
  std::string_view bytes;
};

}  // namespace onelane
