#include "cli/encode.h"

#include <cstdio>

#include "cli/runtime.h"
#include "cli/text_source.h"
#include "text/prompt_encoder.h"

namespace onelane {
namespace {

Result<void> encode(const EncodeCommand& command) {
  ONELANE_ASSIGN(const PromptFormat* const prompt_format, choose_format(command.dir, command.format));
  ONELANE_ASSIGN(const std::string request, read_text(command.file));
  ONELANE_ASSIGN(Conversation conversation, parse_conversation(request, *prompt_format));
  if (command.thinking) conversation.thinking = true;
  if (command.chat) conversation.thinking = false;
  ONELANE_ASSIGN(const EncodedPrompt prompt, encode_prompt(conversation, *prompt_format));
  std::fwrite(prompt.text.data(), 1, prompt.text.size(), stdout);
  return {};
}

}  // namespace

int run_encode(const EncodeCommand& command) {
  const auto done = encode(command);
  return done ? 0 : fail(done.error());
}

}  // namespace onelane
