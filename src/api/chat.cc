// POST /v1/chat/completions.
#include <utility>

#include <nlohmann/json.hpp>

#include "api/chat_fields.h"
#include "api/openai_answer.h"
#include "api/routes.h"
#include "api/structured_output.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;
using Kind = CompletionEvent::Kind;

// Clients disagree about the name of this field, so both are there.
void put_reasoning(Json& message, const std::string& text) {
  message["reasoning_content"] = text;
  message["reasoning"] = text;
}

class ChatAnswer final : public OpenAiAnswer {
 public:
  ChatAnswer(Services& services, std::shared_ptr<ApiExchange> exchange, ChatFields fields)
      : OpenAiAnswer(services, std::move(exchange), fields.answer),
        logprobs_(fields.logprobs),
        top_(static_cast<size_t>(fields.top_logprobs)),
        calls_(fields.calls),
        prompt_(std::move(fields.prompt)),
        call_ids_(fields.requests.size()),
        greeted_(fields.requests.size()) {}

 private:
  const char* object_name(bool chunk) const override { return chunk ? "chat.completion.chunk" : "chat.completion"; }

  // An id must be the same wherever a call is spoken of.
  const std::string& call_id(size_t index, int call) {
    auto& ids = call_ids_[index];
    while (ids.size() <= static_cast<size_t>(call)) ids.push_back(random_id("call_").substr(0, 29));
    return ids[static_cast<size_t>(call)];
  }

  Json token_json(int32_t token, double logprob) {
    const std::string_view bytes = services().tokenizer.bytes(token);
    return {{"token", token_text(services().tokenizer, token)},
            {"logprob", logprob},
            {"bytes", std::vector<uint8_t>(bytes.begin(), bytes.end())}};
  }

  Json logprobs_json(const std::vector<int32_t>& tokens, const std::vector<TokenLogprobs>& logprobs) {
    if (!logprobs_) return nullptr;
    Json content = Json::array();
    for (size_t i = 0; i < tokens.size() && i < logprobs.size(); ++i) {
      Json entry = token_json(tokens[i], logprobs[i].logprob);
      entry["top_logprobs"] = Json::array();
      for (size_t k = 0; k < logprobs[i].top.size() && k < top_; ++k) {
        entry["top_logprobs"].push_back(token_json(logprobs[i].top[k].first, logprobs[i].top[k].second));
      }
      content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }

  // With tool_choice none, a call that the model spelled out all the same is nobody's.
  bool has_calls(const Choice& choice) const { return calls_ && !choice.generation->message().tool_calls.empty(); }

  // A call that a stop string cut off is no reason to run a tool.
  const char* reason(const Choice& choice) const {
    const bool whole = has_calls(choice) && choice.generation->message().tool_calls.back().complete;
    return openai_finish_reason(choice.finish, whole);
  }

  // The delta that says `event`; nothing for an event that clients need not hear of.
  Json delta_of(size_t index, const CompletionEvent& event) {
    Json delta = Json::object();
    Json call = {{"index", event.call}};
    if (event.call >= 0 && !calls_) return delta;
    switch (event.kind) {
      case Kind::kReasoning:
        put_reasoning(delta, event.text);
        break;
      case Kind::kContent:
        delta["content"] = event.text;
        break;
      case Kind::kCallBegin:
        call["id"] = call_id(index, event.call);
        call["type"] = "function";
        call["function"] = {{"name", event.text}, {"arguments", ""}};
        delta["tool_calls"] = Json::array({std::move(call)});
        break;
      case Kind::kCallArguments:
        call["function"] = {{"arguments", event.text}};
        delta["tool_calls"] = Json::array({std::move(call)});
        break;
      case Kind::kCallEnd:
        break;
    }
    return delta;
  }

  void send(size_t index, Json delta, Json logprobs, const char* finish_reason) {
    Json choice = {{"index", index}, {"delta", std::move(delta)}, {"logprobs", std::move(logprobs)}};
    choice["finish_reason"] = finish_reason == nullptr ? Json() : Json(finish_reason);
    send_choice(std::move(choice));
  }

  void send_delta(size_t index, const GenerationDelta& delta) override {
    if (!std::exchange(greeted_[index], 1)) send(index, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
    // The step's logprobs go with its first chunk; its text may have to wait, they need not.
    Json logprobs = delta.logprobs.empty() ? Json() : logprobs_json(delta.tokens, delta.logprobs);
    bool sent = false;
    for (size_t i = 0; i < delta.events.size();) {
      CompletionEvent event = delta.events[i++];
      while (i < delta.events.size() && delta.events[i].kind == event.kind && delta.events[i].call == event.call &&
             event.kind != Kind::kCallBegin) {
        event.text += delta.events[i++].text;
      }
      Json out = delta_of(index, event);
      if (out.empty()) continue;
      send(index, std::move(out), std::exchange(logprobs, nullptr), nullptr);
      sent = true;
    }
    const bool counted = continuous_usage() && !delta.tokens.empty() && delta.finish == FinishReason::kNone;
    if (!sent && (!logprobs.is_null() || counted)) send(index, {{"content", ""}}, std::move(logprobs), nullptr);
    if (delta.finish == FinishReason::kNone) return;
    send(index, Json::object(), nullptr, reason(choices()[index]));
  }

  Json complete_choices() override {
    Json out = Json::array();
    for (size_t i = 0; i < choices().size(); ++i) {
      const Choice& choice = choices()[i];
      const AssistantMessage& said = choice.generation->message();
      Json message = {{"role", "assistant"}, {"content", said.content}, {"refusal", nullptr}};
      if (said.content.empty() && has_calls(choice)) message["content"] = nullptr;
      if (!said.reasoning.empty()) put_reasoning(message, said.reasoning);
      for (size_t k = 0; has_calls(choice) && k < said.tool_calls.size(); ++k) {
        message["tool_calls"].push_back(
            {{"id", call_id(i, static_cast<int>(k))},
             {"type", "function"},
             {"function", {{"name", said.tool_calls[k].name}, {"arguments", said.tool_calls[k].arguments}}}});
      }
      out.push_back({{"index", i},
                     {"message", std::move(message)},
                     {"logprobs", logprobs_json(choice.tokens, choice.logprobs)},
                     {"finish_reason", reason(choice)}});
    }
    return out;
  }

  void add_members(Json& body) override {
    if (prompt_.empty()) return;
    body["prompt_logprobs"] = prompt_logprobs_json(services().tokenizer, prompt_, choices().front().prompt_logprobs);
  }

  const bool logprobs_;
  const size_t top_;
  const bool calls_;
  const std::vector<int32_t> prompt_;
  std::vector<std::vector<std::string>> call_ids_;
  std::vector<char> greeted_;
};

}  // namespace

void add_chat_routes(Router& router, Services& services) {
  router.add("POST", "/v1/chat/completions", Protocol::kOpenAi, Router::Access::kKey,
             [&services](const HttpRequest& request, const std::shared_ptr<ApiExchange>& exchange) {
               ChatFields fields;
               if (const auto problem = read_chat(services, request.body, fields)) return exchange->fail(*problem);
               fields.answer.id = random_id("chatcmpl-");
               auto requests = std::move(fields.requests);
               fields.requests.resize(requests.size());
               auto answer = std::make_shared<ChatAnswer>(services, exchange, std::move(fields));
               with_grammar(services, exchange, std::move(requests),
                            [answer](std::vector<GenerationRequest> ready) { answer->start(std::move(ready)); });
             });
}

}  // namespace onelane
