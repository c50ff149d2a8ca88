#include "cli/parse.h"

#include <cstdio>

#include "cli/runtime.h"
#include "cli/text_source.h"
#include "text/completion_parser.h"
#include "text/utf8.h"

namespace onelane {
namespace {

Result<AssistantMessage> parse(const ParseCommand& command) {
  ONELANE_ASSIGN(const PromptFormat* const prompt_format, choose_format(command.dir, command.format));
  ONELANE_ASSIGN(const std::string text, read_text(command.file));
  ONELANE_TRY(check_utf8(text, "the completion"));
  if (command.strict) return parse_completion(text, *prompt_format, !command.chat);
  CompletionParser parser(*prompt_format, !command.chat);
  parser.feed(text);
  parser.finish();
  return parser.message();
}

}  // namespace

int run_parse(const ParseCommand& command) {
  const auto message = parse(command);
  if (!message) return fail(message.error());
  std::printf("%s\n", message_json(*message).c_str());
  return 0;
}

}  // namespace onelane
