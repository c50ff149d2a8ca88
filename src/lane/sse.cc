#include "lane/sse.h"

#include "base/format.h"

namespace onelane {

Result<void> SseReader::feed(std::string_view bytes, const std::function<void(std::string_view)>& on_data) {
  const std::string_view field = options_.literal_space ? "data: " : "data:";
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + part.size() > options_.max_line_bytes) {
      return Error{ErrorCode::kCorrupt, format("event stream: a line of more than {} bytes", options_.max_line_bytes)};
    }
    if (end == std::string_view::npos) {
      line_ += part;
      break;
    }
    bytes.remove_prefix(end + 1);
    std::string_view line = line_.empty() ? part : std::string_view(line_ += part);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with(field)) {
      line.remove_prefix(field.size());
      if (!options_.literal_space && line.starts_with(' ')) line.remove_prefix(1);
      on_data(line);
    }
    line_.clear();
  }
  return {};
}

}  // namespace onelane
