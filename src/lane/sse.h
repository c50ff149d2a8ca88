// SseReader: the bytes of an event stream -> the payloads of its `data:` lines, wherever the bytes are cut.
//
// Line ends are LF or CRLF. Comments (": keep-alive"), other fields and empty lines are passed over. OpenAI's streams
// have one data line an event, so each line is an event here.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace onelane {

struct SseOptions {
  // llm-inference-bench's literal rule: a line counts only if it begins with "data: ", space included. Otherwise the
  // space may be missing, as the standard has it.
  bool literal_space = false;
  size_t max_line_bytes = size_t{16} << 20;
};

class SseReader {
 public:
  explicit SseReader(SseOptions options = {}) : options_(options) {}

  // Calls `on_data` with each payload that these bytes complete. The view lives as long as the call. An error
  // (kCorrupt): a line longer than the limit; the reader is of no use then.
  Result<void> feed(std::string_view bytes, const std::function<void(std::string_view data)>& on_data);
  // Bytes of a line whose end has not come.
  size_t pending_bytes() const { return line_.size(); }

 private:
  SseOptions options_;
  std::string line_;
};

}  // namespace onelane
