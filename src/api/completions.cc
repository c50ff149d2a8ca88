// POST /v1/completions.
#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "api/completion_fields.h"
#include "api/openai_answer.h"
#include "api/routes.h"
#include "api/structured_output.h"
#include "base/format.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

// Characters, as Python counts them in text_offset.
size_t code_points(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

class CompletionAnswer final : public OpenAiAnswer {
 public:
  CompletionAnswer(Services& services, std::shared_ptr<ApiExchange> exchange, CompletionFields fields)
      : OpenAiAnswer(services, std::move(exchange), fields.answer),
        prompts_(std::move(fields.prompts)),
        n_(static_cast<size_t>(fields.n)),
        echo_(fields.echo),
        logprobs_(fields.logprobs),
        token_ids_(fields.token_ids),
        prompt_logprobs_(fields.prompt_logprobs),
        offsets_(prompts_.size() * n_),
        greeted_(prompts_.size() * n_) {}

 private:
  const char* object_name(bool) const override { return "text_completion"; }

  int prompt_tokens() const override {
    int sum = 0;
    for (size_t i = 0; i < choices().size(); i += n_) sum += choices()[i].stats.prompt_tokens;
    return sum;
  }

  // The old shape: parallel arrays. `offset` is where the first token begins and moves on.
  class Logprobs {
   public:
    Logprobs(const Tokenizer& tokenizer, bool ids, int best, size_t& offset)
        : tokenizer_(tokenizer), ids_(ids), best_(static_cast<size_t>(best)), offset_(offset) {}

    void add(int32_t token, const TokenLogprobs* at) {
      const std::string text = token_text(tokenizer_, token);
      const std::string own = name_of(token);
      tokens_.push_back(own);
      offsets_.push_back(offset_);
      offset_ += code_points(text);
      logprobs_.push_back(at == nullptr ? Json() : Json(at->logprob));
      if (at == nullptr || best_ == 0) {
        top_.push_back(nullptr);
        return;
      }
      Json top = Json::object();
      // Two tokens can have one text; the better one came first.
      for (size_t i = 0; i < at->top.size() && i < best_; ++i) {
        const std::string name = name_of(at->top[i].first);
        if (!top.contains(name)) top[name] = at->top[i].second;
      }
      if (!top.contains(own)) top[own] = at->logprob;
      top_.push_back(std::move(top));
    }
    Json json() && {
      return {{"text_offset", std::move(offsets_)},
              {"token_logprobs", std::move(logprobs_)},
              {"tokens", std::move(tokens_)},
              {"top_logprobs", std::move(top_)}};
    }

   private:
    std::string name_of(int32_t token) const {
      return ids_ ? format("token_id:{}", token) : token_text(tokenizer_, token);
    }
    const Tokenizer& tokenizer_;
    const bool ids_;
    const size_t best_;
    size_t& offset_;
    Json tokens_ = Json::array(), offsets_ = Json::array(), logprobs_ = Json::array(), top_ = Json::array();
  };

  // `prompt`: with the prompt's logprobs in front.
  Json logprobs_json(size_t index, bool prompt, const std::vector<TokenLogprobs>& of_prompt,
                     const std::vector<int32_t>& tokens, const std::vector<TokenLogprobs>& of_tokens) {
    if (logprobs_ < 0) return nullptr;
    Logprobs out(services().tokenizer, token_ids_, logprobs_, offsets_[index]);
    const auto& ids = prompts_[index / n_].tokens;
    for (size_t i = 0; prompt && i < ids.size(); ++i) {
      out.add(ids[i], i > 0 && i <= of_prompt.size() ? &of_prompt[i - 1] : nullptr);
    }
    for (size_t i = 0; i < tokens.size() && i < of_tokens.size(); ++i) out.add(tokens[i], &of_tokens[i]);
    return std::move(out).json();
  }

  Json choice_json(size_t index, std::string text, Json logprobs, FinishReason reason) {
    Json choice = {{"index", index}, {"text", std::move(text)}, {"logprobs", std::move(logprobs)}};
    choice["finish_reason"] = reason == FinishReason::kNone ? Json() : Json(openai_finish_reason(reason, false));
    return choice;
  }

  void send_delta(size_t index, const GenerationDelta& delta) override {
    const bool first = !std::exchange(greeted_[index], 1);
    std::string text = first && echo_ ? prompts_[index / n_].text : "";
    for (const CompletionEvent& event : delta.events) text += event.text;
    if (text.empty() && delta.tokens.empty() && delta.finish == FinishReason::kNone) return;
    // Text that is held back comes later, and logprobs with it would be nobody's: they go out at once.
    if (text.empty() && logprobs_ < 0 && !continuous_usage() && delta.finish == FinishReason::kNone) return;
    Json logprobs =
        logprobs_json(index, first && echo_, choices()[index].prompt_logprobs, delta.tokens, delta.logprobs);
    send_choice(choice_json(index, std::move(text), std::move(logprobs), delta.finish));
  }

  Json complete_choices() override {
    Json out = Json::array();
    for (size_t i = 0; i < choices().size(); ++i) {
      const Choice& choice = choices()[i];
      std::string text = (echo_ ? prompts_[i / n_].text : "") + choice.generation->message().content;
      Json logprobs = logprobs_json(i, echo_, choice.prompt_logprobs, choice.tokens, choice.logprobs);
      out.push_back(choice_json(i, std::move(text), std::move(logprobs), choice.finish));
      if (prompt_logprobs_) {
        out.back()["prompt_logprobs"] =
            prompt_logprobs_json(services().tokenizer, prompts_[i / n_].tokens, choice.prompt_logprobs);
      }
    }
    return out;
  }

  const std::vector<CompletionPrompt> prompts_;
  const size_t n_;
  const bool echo_;
  const int logprobs_;
  const bool token_ids_;
  const bool prompt_logprobs_;
  std::vector<size_t> offsets_;  // text_offset of each choice's next token
  std::vector<char> greeted_;
};

}  // namespace

void add_completion_routes(Router& router, Services& services) {
  router.add("POST", "/v1/completions", Protocol::kOpenAi, Router::Access::kKey,
             [&services](const HttpRequest& request, const std::shared_ptr<ApiExchange>& exchange) {
               CompletionFields fields;
               if (const auto problem = read_completion(services, request.body, fields))
                 return exchange->fail(*problem);
               fields.answer.id = random_id("cmpl-");
               auto requests = std::move(fields.requests);
               auto answer = std::make_shared<CompletionAnswer>(services, exchange, std::move(fields));
               with_grammar(services, exchange, std::move(requests),
                            [answer](std::vector<GenerationRequest> ready) { answer->start(std::move(ready)); });
             });
}

}  // namespace onelane
