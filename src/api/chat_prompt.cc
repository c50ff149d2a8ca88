#include "api/chat_prompt.h"

#include <algorithm>
#include <limits>

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

// Until one of the texts is complete, only tokens that go on with one of them may come.
class ForcedText final : public TokenFilter {
 public:
  // `after`: the token behind which the text starts, or -1: at once. `end`: not chosen before that.
  ForcedText(const Tokenizer& tokenizer, std::vector<std::string> texts, int32_t after, int32_t end)
      : tokenizer_(tokenizer), texts_(std::move(texts)), after_(after), end_(end) {}

  void apply(std::span<float> logits) override {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    if (done_) return;
    if (after_ >= 0) {
      if (static_cast<size_t>(end_) < logits.size()) logits[static_cast<size_t>(end_)] = kNever;
      return;
    }
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!continues(static_cast<int32_t>(i))) logits[i] = kNever;
    }
  }

  void accept(int32_t token) override {
    if (done_) return;
    if (after_ >= 0) {
      if (token == after_) after_ = -1;
      return;
    }
    text_ += tokenizer_.bytes(token);
    done_ = std::find(texts_.begin(), texts_.end(), text_) != texts_.end();
  }

 private:
  bool continues(int32_t token) const {
    const std::string_view bytes = tokenizer_.bytes(token);
    return !bytes.empty() && std::any_of(texts_.begin(), texts_.end(), [&](const std::string& text) {
      return text.starts_with(text_) && std::string_view(text).substr(text_.size()).starts_with(bytes);
    });
  }

  const Tokenizer& tokenizer_;
  std::vector<std::string> texts_;
  int32_t after_;
  int32_t end_;
  std::string text_;
  bool done_ = false;
};

class ForbiddenToken final : public TokenFilter {
 public:
  explicit ForbiddenToken(int32_t token) : token_(static_cast<size_t>(token)) {}
  void apply(std::span<float> logits) override {
    if (token_ < logits.size()) logits[token_] = -std::numeric_limits<float>::infinity();
  }
  void accept(int32_t) override {}

 private:
  size_t token_;
};

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

std::shared_ptr<TokenFilter> tool_choice_filter(const ApiContext& context, const ToolChoice& choice,
                                                const ChatPrompt& prompt) {
  using Mode = ToolChoice::Mode;
  const Tokenizer& tokenizer = context.tokenizer;
  if (choice.mode == Mode::kAuto) return nullptr;
  if (choice.mode == Mode::kNone) {
    // Without tools there is nothing that would have to be kept from happening.
    const auto marker = tokenizer.token_to_id(kDsmlText);
    if (!marker || prompt.tools.empty()) return nullptr;
    return std::make_shared<ForbiddenToken>(*marker);
  }
  std::vector<std::string> texts;
  for (const std::string& name : prompt.tools) {
    if (choice.mode == Mode::kNamed && name != choice.name) continue;
    texts.push_back(format("\n\n<{0}{1}>\n<{0}{2} name=\"{3}\">\n", kDsmlText, context.format.calls_tag,
                           context.format.invoke_tag, name));
  }
  const int32_t after = prompt.thinking ? tokenizer.token_to_id(kThinkEndText).value_or(-1) : -1;
  return std::make_shared<ForcedText>(tokenizer, std::move(texts), after, context.spec.tokens.eos);
}

}  // namespace onelane
