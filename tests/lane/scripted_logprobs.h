// /tokenize and /v1/completions for the mock server: a model whose distribution follows from the last two tokens, with
// logprobs as Onelane gives them, drafts that are counted and a cache that is said to be hit.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "lane/capture_support.h"

namespace onelane {

struct ScriptedLogprobs {
  static constexpr int kVocab = 80;
  using Json = nlohmann::ordered_json;
  // Damage to the logits behind a context; `generated`: of a token that is being written.
  std::function<void(const nlohmann::json& request, size_t position, bool generated, std::vector<double>& logits)>
      damage = {};

  std::vector<double> probabilities(const nlohmann::json& request, const std::vector<int32_t>& context,
                                    bool generated) const {
    std::mt19937 random(static_cast<uint32_t>(context.back() * 131 + (context.size() > 1 ? context.end()[-2] : 0)));
    std::vector<double> logits(kVocab);
    for (double& logit : logits) logit = static_cast<double>(random() % 1000) / 150;
    if (damage) damage(request, context.size(), generated, logits);
    return softmax(logits);
  }

  static std::string name(int32_t token) { return format("token_id:{}", token); }

  nlohmann::json operator()(const std::string& path, const nlohmann::json& request) const {
    if (path == "/tokenize") {
      std::vector<int32_t> tokens = {0};
      for (const char byte : request["messages"].dump().substr(0, 60)) {
        tokens.push_back(static_cast<unsigned char>(byte) % kVocab);
      }
      return {{"tokens", tokens}, {"count", tokens.size()}};
    }
    if (path != "/v1/completions") return nullptr;
    const std::vector<int32_t> prompt = request["prompt"];
    const bool plain = request.value("draft_depth", 16) == 0;
    const int64_t count = request["max_tokens"];
    Json choices = Json::array();
    for (int64_t n = 0; n < request.value("n", 1); ++n) {
      std::mt19937_64 random(request.value("seed", uint64_t{1}) * 1009 + static_cast<uint64_t>(n));
      std::vector<int32_t> context = prompt;
      Json choice = {{"index", n}}, tokens = Json::array(), tops = Json::array(), of_prompt = Json::array({nullptr});
      for (size_t i = 1; request.contains("prompt_logprobs") && i < prompt.size(); ++i) {
        const auto at = position_of(
            probabilities(request, {prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(i)}, false), prompt[i]);
        Json entry = Json::object();
        for (size_t rank = 0; rank < at.top.size(); ++rank) {
          entry[std::to_string(at.top[rank].first)] = {{"logprob", at.top[rank].second}, {"rank", rank + 1}};
        }
        entry[std::to_string(prompt[i])] = {{"logprob", at.logprob}, {"rank", at.rank}};
        of_prompt.push_back(entry);
      }
      if (of_prompt.size() > 1) choice["prompt_logprobs"] = of_prompt;
      for (int64_t i = 0; i < count; ++i) {
        const auto p = probabilities(request, context, true);
        const auto best = static_cast<int32_t>(std::max_element(p.begin(), p.end()) - p.begin());
        std::discrete_distribution<int32_t> any(p.begin(), p.end());
        const int32_t token = request["temperature"] == 0 ? best : any(random);
        const auto at = position_of(p, token);
        Json top = Json::object();
        for (int64_t k = 0; k < request.value("logprobs", int64_t{0}); ++k) {
          top[name(at.top[static_cast<size_t>(k)].first)] = at.top[static_cast<size_t>(k)].second;
        }
        top[name(token)] = at.logprob;
        tokens.push_back(name(token));
        tops.push_back(top);
        context.push_back(token);
      }
      if (request.contains("logprobs")) choice["logprobs"] = {{"tokens", tokens}, {"top_logprobs", tops}};
      choices.push_back(choice);
    }
    return {{"choices", choices},
            {"usage",
             {{"completion_tokens", count * static_cast<int64_t>(choices.size())},
              {"prompt_tokens_details", {{"cached_tokens", 32}}},
              {"speculation", {{"drafted_tokens", plain ? 0 : count - 1}}}}}};
  }
};

}  // namespace onelane
