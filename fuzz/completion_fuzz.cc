// Completions: any text, cut anywhere, gives one message; what the strict parser accepts means the same to both.
//
// Byte 0: generation, thinking, truncation. Byte 1: seed of the cuts. Byte '\1' in the text stands for the DSML marker
// and
// '\2' for a whole call, so that mutation finds deep states.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "text/completion_parser.h"
#include "text/python_json.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace onelane;
  if (size < 2) return 0;
  const PromptFormat& format = data[0] & 1 ? kPromptFormatV41 : kPromptFormatV4;
  const bool thinking = data[0] & 2;
  const bool truncated = data[0] & 4;
  const auto tag = [&](std::string_view name) { return std::string(kDsmlText).append(name); };
  std::string call("\n\n<");
  call.append(tag(format.calls_tag)).append(">\n<").append(tag(format.invoke_tag)).append(" name=\"f\">\n<");
  call.append(tag(format.parameter_tag)).append(" name=\"k\" string=\"false\">1</").append(tag(format.parameter_tag));
  call.append(">\n</").append(tag(format.invoke_tag)).append(">\n</").append(tag(format.calls_tag)).append(">");
  std::string text;
  for (size_t i = 2; i < size; ++i) {
    if (data[i] == 1) {
      text += kDsmlText;
    } else if (data[i] == 2) {
      text += call;
    } else {
      text += static_cast<char>(data[i]);
    }
  }

  Utf8Stream utf8;  // as the detokeniser does: the parser's text is UTF-8
  text = utf8.push(text);
  text += utf8.flush();

  CompletionParser whole(format, thinking);
  whole.feed(text);
  whole.finish(truncated);
  const AssistantMessage& message = whole.message();
  ONELANE_CHECK(message.content.find("｜DSML｜") == std::string::npos, "no marker in the content");
  ONELANE_CHECK(message.content.find("|DSML|") == std::string::npos, "no ASCII marker in the content");
  for (const ToolCall& made : message.tool_calls) {
    ONELANE_CHECK(!made.complete || is_json(made.arguments), "complete arguments are JSON");
  }

  CompletionParser pieces(format, thinking);
  uint32_t state = data[1] + 1u;
  for (size_t at = 0; at < text.size();) {
    state = state * 1664525u + 1013904223u;
    const size_t length = 1 + (state >> 24) % 9;
    pieces.feed(std::string_view(text).substr(at, length));
    at += length;
  }
  pieces.finish(truncated);
  ONELANE_CHECK(pieces.message() == message, "cuts do not matter");

  const auto strict = parse_completion(text, format, thinking);
  if (strict && !truncated && text.find('|') == std::string::npos) {
    AssistantMessage expected = *strict;
    // The beginning of a tag at the very end is dropped.
    const size_t cut = expected.content.size() - std::min(message.content.size(), expected.content.size());
    if (cut > 0 && cut < kDsmlText.size() + 2) expected.content.resize(message.content.size());
    ONELANE_CHECK(expected == message, "the strict parser agrees");
  }
  return 0;
}
