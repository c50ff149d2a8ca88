#include "api/chat_prompt.h"

#include <algorithm>
#include <utility>

#include "api/answer_filters.h"
#include "base/format.h"
#include "text/conversation.h"
#include "text/prompt_encoder.h"

namespace onelane {
namespace {

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

// Takes out every line that begins with the header, and the blank lines that follow it.
std::string without_billing_lines(const std::string& text) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    size_t next = text.find('\n', at);
    next = next == std::string::npos ? text.size() : next + 1;
    const std::string_view line = std::string_view(text).substr(at, next - at);
    at = next;
    if (line.starts_with(kBillingHeader)) {
      while (at < text.size() && text[at] == '\n') ++at;
    } else {
      out += line;
    }
  }
  return out;
}

}  // namespace

ApiProblem encode_chat(const ApiContext& context, std::string_view conversation, ChatPrompt& out) {
  const auto refuse = [](const Error& error) { return to_api_error(error, leading_path(error.message)); };
  auto parsed = parse_conversation(conversation, context.format);
  if (!parsed) return refuse(parsed.error());
  if (parsed->images > 0) {
    return ApiError{.message = format("messages: {} images, but this server reads text only", parsed->images),
                    .param = "messages"};
  }
  for (Message& message : parsed->messages) {
    if (message.role == Role::kSystem || message.role == Role::kDeveloper) {
      for (ContentPart& part : message.parts) part.text = without_billing_lines(part.text);
    }
    for (const std::string& schema : message.tools) {
      if (const auto tool = parse_json(schema); tool && (*tool)["name"].is(JsonValue::Kind::kString)) {
        out.tools.push_back((*tool)["name"].text);
      }
    }
  }
  const auto prompt = encode_prompt(*parsed, context.format);
  if (!prompt) return refuse(prompt.error());
  auto tokens = context.tokenizer.encode(prompt->text);
  if (!tokens) return refuse(tokens.error());
  out.tokens = *std::move(tokens);
  out.thinking = prompt->starts_in_thinking;
  return {};
}

ApiProblem check_tool_choice(const ToolChoice& choice, const ChatPrompt& prompt, const std::string& param) {
  using Mode = ToolChoice::Mode;
  if (choice.mode == Mode::kRequired && prompt.tools.empty()) {
    return ApiError{.message = format("{}: a tool is required, but the request defines none", param), .param = param};
  }
  if (choice.mode == Mode::kNamed &&
      std::find(prompt.tools.begin(), prompt.tools.end(), choice.name) == prompt.tools.end()) {
    return ApiError{.message = format("{}: the request defines no tool '{}'", param, choice.name), .param = param};
  }
  return {};
}

void apply_tool_choice(const ApiContext& context, const ToolChoice& choice, const ChatPrompt& prompt,
                       GenerationRequest& request) {
  using Mode = ToolChoice::Mode;
  const Tokenizer& tokenizer = context.tokenizer;
  const PromptFormat& form = context.format;
  const auto call_text = [&](std::string_view name, std::string_view behind) {
    return format("\n\n<{0}{1}>\n<{0}{2} name=\"{3}{4}", kDsmlText, form.calls_tag, form.invoke_tag, name, behind);
  };
  if (prompt.tools.empty()) return;  // nothing has to be kept from happening
  if (choice.mode == Mode::kAuto) {
    if (request.grammar) request.or_text = call_text("", "");
    return;
  }
  if (choice.mode == Mode::kNone) {
    if (const auto marker = tokenizer.token_to_id(kDsmlText)) request.request.filter = forbidden_token(*marker);
    return;
  }
  request.grammar.reset();
  std::vector<std::string> texts;
  for (const std::string& name : prompt.tools) {
    if (choice.mode == Mode::kRequired || name == choice.name) texts.push_back(call_text(name, "\">\n"));
  }
  request.request.filter =
      behind_reasoning(tokenizer, prompt.thinking, context.spec.tokens.eos, forced_text(tokenizer, std::move(texts)));
}

}  // namespace onelane
