#include "lane/completion_answer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>

#include <nlohmann/json.hpp>

#include "base/format.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kIdPrefix = "token_id:";
constexpr float kLeastLogprob = -1e4f;  // servers write -9999 and the like for what cannot come

Error wrong(std::string_view field, std::string_view what) {
  return {ErrorCode::kCorrupt, format("{}: {}", field, what)};
}

// -1: `text` is no such name.
int32_t token_id(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return -1;
  text.remove_prefix(prefix.size());
  int32_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0) return -1;
  return id;
}

const Json& member(const Json& object, const char* key) {
  static const Json none;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : none;
}

std::optional<int64_t> count(const Json& value) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0) return std::nullopt;
  return value.get<int64_t>();
}

// Tokens of {"ID": logprob} or {"ID": {"logprob": ...}}; nothing: a name or a value is none.
std::optional<std::vector<std::pair<int32_t, float>>> read_top(const Json& object, std::string_view prefix) {
  if (!object.is_object() || object.empty()) return std::nullopt;
  std::vector<std::pair<int32_t, float>> out;
  for (const auto& [name, value] : object.items()) {
    const int32_t id = token_id(name, prefix);
    const Json& logprob = value.is_object() ? member(value, "logprob") : value;
    if (id < 0 || !logprob.is_number()) return std::nullopt;
    out.emplace_back(id, std::clamp(logprob.get<float>(), kLeastLogprob, 0.f));
  }
  return out;
}

Result<void> read_prompt(const Json& list, std::span<const int32_t> prompt, CompletionChoice& out) {
  if (!list.is_array() || list.size() != prompt.size()) {
    return wrong("prompt_logprobs", format("is no array of {} entries, one a token", prompt.size()));
  }
  for (size_t i = 1; i < prompt.size(); ++i) {
    auto top = read_top(list[i], "");
    const std::string field = format("prompt_logprobs[{}]", i);
    if (!top) return wrong(field, "is no object of token ids with logprobs");
    const auto own = std::find_if(top->begin(), top->end(), [&](const auto& at) { return at.first == prompt[i]; });
    if (own == top->end()) return wrong(field, format("is without the prompt's token {}", prompt[i]));
    const float logprob = own->second;
    const auto rank = count(member(member(list[i], std::to_string(prompt[i]).c_str()), "rank"));
    // Between equal ones the server's rank decides, as in its choice of the best.
    std::sort(top->begin(), top->end(), [&](const auto& a, const auto& b) {
      const auto key = [&](const auto& at) {
        const auto rank_of = count(member(member(list[i], std::to_string(at.first).c_str()), "rank"));
        return std::tuple(-at.second, rank_of.value_or(0), at.first);
      };
      return key(a) < key(b);
    });
    CapturePosition position = make_position(*std::move(top), prompt[i]);
    position.logprob = logprob;
    if (rank && *rank > 0 && *rank <= std::numeric_limits<int32_t>::max()) {
      position.rank = static_cast<uint32_t>(*rank);
    }
    out.prompt.push_back(std::move(position));
  }
  return {};
}

Result<void> read_generated(const Json& logprobs, CompletionChoice& out) {
  const Json &tokens = member(logprobs, "tokens"), &tops = member(logprobs, "top_logprobs");
  if (!tokens.is_array() || !tops.is_array() || tokens.size() != tops.size()) {
    return wrong("logprobs", "tokens and top_logprobs are no arrays of one length");
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t id = tokens[i].is_string() ? token_id(tokens[i].get_ref<const std::string&>(), kIdPrefix) : -1;
    auto top = read_top(tops[i], kIdPrefix);
    if (id < 0 || !top) {
      return wrong(format("logprobs.top_logprobs[{}]", i),
                   "does not name tokens as token_id:NUMBER, which return_tokens_as_token_ids asks for");
    }
    out.tokens.push_back(id);
    out.positions.push_back(make_position(*std::move(top), id));
  }
  return {};
}

}  // namespace

CapturePosition make_position(std::vector<std::pair<int32_t, float>> top, int32_t token) {
  // Equal ones stay in their order. (Not std::stable_sort: clang 19 calls what it does in GCC 12's library deprecated.)
  std::vector<size_t> order(top.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return std::tuple(-top[a].second, a) < std::tuple(-top[b].second, b); });
  std::vector<std::pair<int32_t, float>> sorted;
  for (const size_t i : order) sorted.push_back(top[i]);
  top = std::move(sorted);
  CapturePosition out;
  const auto own = std::find_if(top.begin(), top.end(), [&](const auto& at) { return at.first == token; });
  out.rank = static_cast<uint32_t>(own - top.begin() + 1);
  std::optional<float> logprob;
  if (own != top.end()) logprob = own->second;
  if (top.size() > kCaptureTop) top.resize(kCaptureTop);
  out.tail = tail_mass(top);
  out.logprob = logprob.value_or(std::min(top.back().second, std::max(std::log(out.tail), kLeastLogprob)));
  out.top = std::move(top);
  return out;
}

Result<CompletionAnswer> parse_completion(std::string_view json, std::span<const int32_t> prompt) {
  const Json body = Json::parse(json, nullptr, false);
  const Json& choices = member(body, "choices");
  if (!choices.is_array() || choices.empty()) return wrong("choices", "is no array with an entry");
  CompletionAnswer out;
  for (const Json& choice : choices) {
    CompletionChoice& into = out.choices.emplace_back();
    if (const Json& list = member(choice, "prompt_logprobs"); !list.is_null()) {
      ONELANE_TRY(read_prompt(list, prompt, into));
    }
    if (const Json& logprobs = member(choice, "logprobs"); !logprobs.is_null()) {
      ONELANE_TRY(read_generated(logprobs, into));
    }
  }
  const Json& usage = member(body, "usage");
  out.cached_tokens = count(member(member(usage, "prompt_tokens_details"), "cached_tokens"));
  out.drafted_tokens = count(member(member(usage, "speculation"), "drafted_tokens"));
  return out;
}

}  // namespace onelane
