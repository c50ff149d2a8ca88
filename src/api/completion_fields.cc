#include "api/completion_fields.h"

#include <utility>

#include "api/grammar_fields.h"
#include "api/sampling_fields.h"
#include "base/format.h"

namespace onelane {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMostPrompts = 1024;
constexpr size_t kMostTokens = 2'000'000;

// A prompt that is a string, or an array of token ids.
ApiProblem add_prompt(const ApiContext& context, JsonFields& fields, const std::string& field, const JsonValue& value,
                      bool bos, CompletionFields& out) {
  CompletionPrompt prompt;
  if (value.is(Kind::kString)) {
    prompt.text = value.text;
    if (auto problem = encode_text(context, value.text, field, bos, prompt.tokens)) return problem;
  } else {
    for (const JsonValue& item : value.items) {
      const auto token = whole_number(item);
      if (!token || *token < 0 || *token >= context.spec.vocab) {
        return ApiError{.message = format("{}: must hold token ids below {}", field, context.spec.vocab),
                        .param = field};
      }
      prompt.tokens.push_back(static_cast<int32_t>(*token));
    }
    prompt.text = context.tokenizer.decode(prompt.tokens);
  }
  if (prompt.tokens.empty()) return ApiError{.message = format("{}: must not be empty", field), .param = field};
  if (!fields.ok()) return {};
  out.prompts.push_back(std::move(prompt));
  return {};
}

ApiProblem read_prompts(const ApiContext& context, JsonFields& fields, bool bos, CompletionFields& out) {
  const JsonValue& prompt = fields.raw("prompt");
  const auto wrong = [&] {
    return ApiError{.message = "prompt: must be a string, an array of token ids, or an array of either",
                    .param = "prompt"};
  };
  if (prompt.is(Kind::kString)) return add_prompt(context, fields, "prompt", prompt, bos, out);
  if (!prompt.is(Kind::kArray) || prompt.items.empty()) return wrong();
  if (prompt.items.front().is(Kind::kNumber)) {
    if (prompt.items.size() > kMostTokens) return wrong();
    return add_prompt(context, fields, "prompt", prompt, bos, out);
  }
  if (prompt.items.size() > kMostPrompts) {
    return ApiError{.message = format("prompt: has {} entries, the limit is {}", prompt.items.size(), kMostPrompts),
                    .param = "prompt"};
  }
  for (size_t i = 0; i < prompt.items.size(); ++i) {
    const JsonValue& item = prompt.items[i];
    if (!item.is(Kind::kString) && !item.is(Kind::kArray)) return wrong();
    if (auto problem = add_prompt(context, fields, format("prompt[{}]", i), item, bos, out)) return problem;
  }
  return {};
}

}  // namespace

ApiProblem encode_text(const ApiContext& context, std::string_view text, std::string_view field, bool bos,
                       std::vector<int32_t>& tokens) {
  auto encoded = context.tokenizer.encode(text);
  if (!encoded) return to_api_error(std::move(encoded).error().in(std::string(field)), std::string(field));
  tokens = *std::move(encoded);
  const int32_t bos_id = context.spec.tokens.bos;
  if (bos && bos_id >= 0 && (tokens.empty() || tokens.front() != bos_id)) tokens.insert(tokens.begin(), bos_id);
  return {};
}

ApiProblem read_completion(const ApiContext& context, std::string_view body, CompletionFields& out) {
  JsonValue root;
  if (auto problem = parse_body(body, root)) return problem;
  ApiProblem problem;
  JsonFields fields(root, "", problem);

  std::string model;
  if (auto unknown = check_model(fields, context, model)) return unknown;
  out.answer = read_answer_options(fields);
  out.answer.model = model;
  std::optional<GrammarSource> grammar = read_grammar(fields);
  if (!fields.raw("suffix").text.empty()) fields.refuse("suffix", "is not supported; write the hole tokens yourself");
  const SamplingFields sampling = read_sampling(fields, context);
  out.n = sampling.n;
  if (const auto best = fields.integer("best_of", 1, context.options.max_choices); best && *best != out.n) {
    fields.fail("best_of", "must equal n");
  }
  out.echo = fields.boolean("echo").value_or(false);
  if (const auto count = fields.integer("logprobs", 0, context.options.max_logprobs)) {
    out.logprobs = static_cast<int>(*count);
  }
  out.token_ids = fields.boolean("return_tokens_as_token_ids").value_or(false);
  auto max_tokens = fields.integer("max_tokens", 0, 1 << 30);
  if (!max_tokens) max_tokens = 16;  // the API's default for completions
  const bool bos = fields.boolean("add_special_tokens").value_or(true);
  if (problem) return problem;
  if (auto refused = read_prompts(context, fields, bos, out)) return refused;
  if (out.prompts.size() * static_cast<size_t>(out.n) > kMostPrompts) {
    return ApiError{.message = format("n: {} prompts with {} choices each are more than {}", out.prompts.size(), out.n,
                                      kMostPrompts),
                    .param = "n"};
  }

  GenerationRequest base = sampling.base;
  base.grammar = std::move(grammar);
  out.prompt_logprobs = base.request.prompt_logprobs >= 0;
  base.request.logprobs = out.logprobs;
  if (out.echo) base.request.prompt_logprobs = std::max(base.request.prompt_logprobs, out.logprobs);
  for (size_t i = 0; i < out.prompts.size(); ++i) {
    CompletionPrompt& prompt = out.prompts[i];
    const std::string field = out.prompts.size() == 1 ? "prompt" : format("prompt[{}]", i);
    GenerationRequest request = base;
    if (auto refused = set_prompt(context, field, prompt.tokens, max_tokens, false, request.request)) return refused;
    if (base.request.prompt_logprobs < 0) prompt.tokens = {};
    if (!out.echo) prompt.text = {};
    for (int k = 0; k < out.n; ++k) out.requests.push_back(choice_request(request, k));
  }
  return {};
}

}  // namespace onelane
