// Requests: any bytes either give a prompt or an error with words, in both generations.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/prompt_encoder.h"
#include "text/python_json.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto value = onelane::parse_json(text)) {
    const std::string printed = onelane::dump_json(*value);
    const auto again = onelane::parse_json(printed);
    ONELANE_CHECK(again && onelane::dump_json(*again) == printed, "printed JSON reads back as itself");
  }
  for (const auto* format : {&onelane::kPromptFormatV4, &onelane::kPromptFormatV41}) {
    const auto prompt = onelane::encode_prompt(text, *format);
    if (prompt) {
      ONELANE_CHECK(prompt->text.starts_with(onelane::kBosText), "a prompt begins with BOS");
      ONELANE_CHECK(!onelane::first_invalid_utf8(prompt->text), "a prompt is UTF-8");
    } else {
      ONELANE_CHECK(!prompt.error().message.empty(), "an error says something");
    }
  }
  return 0;
}
