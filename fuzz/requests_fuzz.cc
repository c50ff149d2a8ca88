// Requests in the words of other protocols: any JSON becomes a chat request or an error with words, and a chat request
// that came out of a converter has the shape that the prompt reader takes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "api/messages_input.h"
#include "api/responses_input.h"
#include "base/check.h"
#include "text/prompt_encoder.h"
#include "text/utf8.h"

namespace onelane {
namespace {

// Errors begin with the field that is at fault.
void check_error(const std::string& message) {
  const std::string path = leading_path(message);
  ONELANE_CHECK(!path.empty() && path.size() < message.size(), "an error names a field and says something");
}

void check_chat(const ChatRequest& chat) {
  const auto& messages = chat.json["messages"].items;
  ONELANE_CHECK(!messages.empty() && messages.size() == chat.origins.size(), "every message has an origin");
  const std::string text = dump_json(chat.json);
  for (const auto* format : {&kPromptFormatV4, &kPromptFormatV41}) {
    const auto prompt = encode_prompt(text, *format);
    if (prompt) {
      ONELANE_CHECK(!first_invalid_utf8(prompt->text), "a prompt is UTF-8");
      continue;
    }
    const std::string message = chat.in_client_words(prompt.error().message);
    check_error(message);
    // Shapes are the converters' business; what is left is what only the prompt knows.
    for (const char* shape : {"must be a string or an array", "must be an array", ".function", ".role"}) {
      ONELANE_CHECK(message.find(shape) == std::string::npos, "a converter let a wrong shape through");
    }
  }
}

}  // namespace
}  // namespace onelane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto body = onelane::parse_json({reinterpret_cast<const char*>(data), size});
  if (!body) return 0;
  const auto responses = onelane::read_responses_input(*body);
  responses ? onelane::check_chat(responses->chat) : onelane::check_error(responses.error().message);
  const auto messages = onelane::read_messages_input(*body);
  messages ? onelane::check_chat(messages->chat) : onelane::check_error(messages.error().message);
  return 0;
}
