#include "api/sampling_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>

#include "base/format.h"

namespace onelane {
namespace {

constexpr size_t kLongestStop = 1024;  // bytes
constexpr int kMostStopTokens = 256;
constexpr size_t kMostBiases = 4096;

void read_logit_bias(JsonFields& fields, int vocab, SamplingParams& sampling) {
  auto bias = fields.object("logit_bias");
  if (!bias) return;
  const auto& members = bias->self().members;
  if (members.size() > kMostBiases) {
    fields.fail("logit_bias", format("has {} entries, the limit is {}", members.size(), kMostBiases));
    return;
  }
  for (const JsonMember& member : members) {
    int32_t token = -1;
    const char* end = member.name.data() + member.name.size();
    const auto parsed = std::from_chars(member.name.data(), end, token);
    if (parsed.ec != std::errc{} || parsed.ptr != end || token < 0 || token >= vocab) {
      fields.fail("logit_bias",
                  format("{} is not a token id below {}", dump_json_string(member.name.substr(0, 64)), vocab));
      return;
    }
    if (const auto value = bias->number(member.name, -100, 100)) {
      sampling.logit_bias.emplace_back(token, static_cast<float>(*value));
    }
  }
}

void read_stop(JsonFields& fields, const ApiContext& context, GenerationRequest& base) {
  auto stops = fields.texts("stop", static_cast<size_t>(context.options.max_stop_strings));
  if (!stops) return;
  for (size_t i = 0; i < stops->size(); ++i) {
    const size_t size = (*stops)[i].size();
    if (size > 0 && size <= kLongestStop) continue;
    fields.fail(fields.raw("stop").is(JsonValue::Kind::kArray) ? format("stop[{}]", i) : "stop",
                size == 0 ? "must not be empty" : format("has {} bytes, the limit is {}", size, kLongestStop));
  }
  base.stop = *std::move(stops);
}

}  // namespace

SamplingFields read_sampling(JsonFields& fields, const ApiContext& context) {
  SamplingFields out;
  Request& request = out.base.request;
  SamplingParams& sampling = request.sampling;
  const int vocab = context.spec.vocab;
  const auto number = [&](std::string_view key, double low, double high, float& value) {
    if (const auto given = fields.number(key, low, high)) value = static_cast<float>(*given);
  };
  number("temperature", 0, 100, sampling.temperature);
  number("top_p", 0, 1, sampling.top_p);
  if (sampling.top_p <= 0) fields.fail("top_p", "must be greater than 0 and at most 1");
  if (const auto k = fields.integer("top_k", -1, std::numeric_limits<int32_t>::max())) {
    sampling.top_k = static_cast<int>(std::max<int64_t>(0, *k));
  }
  number("min_p", 0, 1, sampling.min_p);
  number("presence_penalty", -2, 2, sampling.presence_penalty);
  number("frequency_penalty", -2, 2, sampling.frequency_penalty);
  number("repetition_penalty", 0, 100, sampling.repetition_penalty);
  if (sampling.repetition_penalty <= 0) fields.fail("repetition_penalty", "must be greater than 0");
  read_logit_bias(fields, vocab, sampling);
  constexpr int64_t kLow = std::numeric_limits<int64_t>::min(), kHigh = std::numeric_limits<int64_t>::max();
  const auto seed = fields.integer("seed", kLow, kHigh);
  sampling.seed =
      seed ? static_cast<uint64_t>(*seed) : (uint64_t{std::random_device{}()} << 32) | std::random_device{}();

  read_stop(fields, context, out.base);
  if (auto stops = fields.integers("stop_token_ids", kMostStopTokens, 0, vocab - 1))
    request.stop_tokens = *std::move(stops);
  out.base.include_stop = fields.boolean("include_stop_str_in_output").value_or(false);
  out.base.skip_special = fields.boolean("skip_special_tokens").value_or(true);
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  request.min_tokens = static_cast<int>(fields.integer("min_tokens", 0, context.max_model_len).value_or(0));
  out.n = static_cast<int>(fields.integer("n", 1, context.options.max_choices).value_or(1));
  request.draft_depth = static_cast<int>(fields.integer("draft_depth", 0, kMaxDraftDepth).value_or(kMaxDraftDepth));
  if (const auto best = fields.integer("prompt_logprobs", 0, context.options.max_logprobs)) {
    request.prompt_logprobs = static_cast<int>(*best);
  }
  if (context.options.request_seconds > 0) {
    request.deadline = std::chrono::steady_clock::now() +
                       std::chrono::milliseconds(static_cast<int64_t>(context.options.request_seconds * 1000));
  }
  return out;
}

ApiProblem set_prompt(const ApiContext& context, std::string_view field, std::vector<int32_t> prompt,
                      std::optional<int64_t> max_tokens, bool cap, Request& request) {
  const int64_t limit = context.max_model_len;
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  const auto refuse = [&](std::string message) {
    return ApiError{.message = std::move(message), .param = std::string(field), .code = "context_length_exceeded"};
  };
  const int64_t room = limit - prompt_tokens;
  if (room < 0 || (room == 0 && max_tokens != 0)) {
    return refuse(
        format("{}: this model's context is {} tokens and the prompt has {}, which leaves no room for an answer", field,
               limit, prompt_tokens));
  }
  if (max_tokens && *max_tokens > room && !cap) {
    return refuse(format("{}: this model's context is {} tokens; the prompt has {} and {} were asked for: {} too many",
                         field, limit, prompt_tokens, *max_tokens, *max_tokens - room));
  }
  const int64_t standard = context.options.default_max_tokens > 0 ? context.options.default_max_tokens : room;
  request.prompt = std::move(prompt);
  request.max_tokens = static_cast<int>(std::min(max_tokens.value_or(standard), room));
  if (request.min_tokens > request.max_tokens) {
    return ApiError{.message = format("min_tokens: {} is more than the {} tokens there may be", request.min_tokens,
                                      request.max_tokens),
                    .param = "min_tokens"};
  }
  return {};
}

GenerationRequest choice_request(const GenerationRequest& base, int index) {
  GenerationRequest request = base;
  request.request.sampling.seed += static_cast<uint64_t>(index);
  return request;
}

ApiProblem check_model(JsonFields& fields, const ApiContext& context, std::string& model) {
  const auto& names = context.options.model_names;
  model = names.empty() ? "" : names.front();
  const auto given = fields.text("model");
  if (!given || given->empty() || std::find(names.begin(), names.end(), *given) != names.end()) {
    if (given && !given->empty()) model = *given;
    return {};
  }
  return ApiError{.status = 404,
                  .message = format("model: there is no {}; this server has {}",
                                    dump_json_string(given->substr(0, 128)), fmt::join(names, ", ")),
                  .param = "model",
                  .code = "model_not_found"};
}

}  // namespace onelane
