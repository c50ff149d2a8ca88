#include "api/chat_fields.h"

#include <utility>

#include "api/chat_prompt.h"
#include "api/grammar_fields.h"
#include "api/sampling_fields.h"
#include "base/format.h"

namespace onelane {
namespace {

constexpr size_t kMostTools = 1024;
constexpr size_t kMostMessages = 100'000;

ToolChoice read_tool_choice(JsonFields& fields) {
  using Mode = ToolChoice::Mode;
  ToolChoice choice;
  if (!fields.raw("tool_choice").is(JsonValue::Kind::kObject)) {
    const auto mode = fields.one_of("tool_choice", {"none", "auto", "required"});
    if (mode == "none") choice.mode = Mode::kNone;
    if (mode == "required") choice.mode = Mode::kRequired;
    return choice;
  }
  auto named = fields.object("tool_choice");
  if (!named) return choice;  // something before it was wrong
  named->one_of("type", {"function"});
  auto function = named->object("function");
  const auto name = function ? function->text("name") : std::nullopt;
  if (!name || name->empty()) named->fail("function.name", "must name one of the tools");
  choice.mode = Mode::kNamed;
  choice.name = name.value_or("");
  return choice;
}

void check_shapes(JsonFields& fields) {
  if (!fields.has("messages")) fields.fail("messages", "is missing: must be a non-empty array");
  fields.objects("messages", kMostMessages);
  if (auto tools = fields.objects("tools", kMostTools)) {
    for (JsonFields& tool : *tools) {
      tool.one_of("type", {"function"});
      if (auto function = tool.object("function")) {
        if (function->text("name").value_or("").empty()) function->fail("name", "must be a non-empty string");
      }
    }
  }
  fields.object("chat_template_kwargs");
  if (auto thinking = fields.object("thinking")) thinking->text("type");
  fields.refuse("functions", "is the old form of tools; send tools");
  fields.refuse("function_call", "is the old form of tool_choice; send tool_choice");
  fields.refuse("audio", "this server answers with text only");
}

}  // namespace

ApiProblem read_chat(const ApiContext& context, std::string_view body, ChatFields& out) {
  JsonValue root;
  if (auto problem = parse_body(body, root)) return problem;
  ApiProblem problem;
  JsonFields fields(root, "", problem);

  if (auto unknown = check_model(fields, context, out.answer.model)) return unknown;
  const std::string model = out.answer.model;
  out.answer = read_answer_options(fields);
  out.answer.model = model;
  check_shapes(fields);
  std::optional<GrammarSource> grammar = read_grammar(fields);
  const ToolChoice choice = read_tool_choice(fields);
  const SamplingFields sampling = read_sampling(fields, context);
  // max_completion_tokens is the newer name and counts when both are there.
  const auto old_limit = fields.integer("max_tokens", 1, 1 << 30);
  const auto new_limit = fields.integer("max_completion_tokens", 1, 1 << 30);
  out.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, context.options.max_logprobs);
  if (top && *top > 0 && !out.logprobs) fields.fail("top_logprobs", "needs logprobs to be true");
  if (problem) return problem;

  ChatPrompt prompt;
  if (auto refused = encode_chat(context, body, prompt)) return refused;
  if (auto refused = check_tool_choice(choice, prompt, "tool_choice")) return refused;
  out.top_logprobs = static_cast<int>(top.value_or(0));
  out.calls = choice.mode != ToolChoice::Mode::kNone;
  GenerationRequest base = sampling.base;
  base.chat = true;
  base.thinking = prompt.thinking;
  base.grammar = std::move(grammar);
  if (out.logprobs) base.request.logprobs = out.top_logprobs;
  if (base.request.prompt_logprobs >= 0) out.prompt = prompt.tokens;
  const auto limit = new_limit ? new_limit : old_limit;
  if (auto refused = set_prompt(context, "messages", std::move(prompt.tokens), limit, false, base.request)) {
    return refused;
  }
  for (int i = 0; i < sampling.n; ++i) {
    out.requests.push_back(choice_request(base, i));
    apply_tool_choice(context, choice, prompt, out.requests.back());
  }
  return {};
}

}  // namespace onelane
