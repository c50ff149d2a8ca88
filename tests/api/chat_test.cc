// The OpenAI routes with a real engine: shapes, refusals, and what must never reach a client.
#include <random>
#include <set>

#include <gmock/gmock.h>

#include "api/api_fixture.h"
#include "api/generation.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ChatTest = ApiFixture;

Json user(const std::string& text) { return Json::array({{{"role", "user"}, {"content", text}}}); }

Json weather_tool() {
  return Json::parse(R"({"type": "function", "function": {"name": "weather", "parameters":
      {"type": "object", "properties": {"city": {"type": "string"}}}}})");
}

TEST_F(ChatTest, RefusalsNameTheField) {
  const struct {
    const char* path;
    const char* change;  // merged over a good request
    int status;
    const char* param;
    const char* says;
  } cases[] = {
      {"chat", R"({"model": "gpt-9"})", 404, "model", "mini-v41"},
      {"chat", R"({"model": 5})", 400, "model", "must be a string"},
      {"chat", R"({"messages": null})", 400, "messages", "missing"},
      {"chat", R"({"messages": []})", 400, "messages", "non-empty"},
      {"chat", R"({"messages": "hi"})", 400, "messages", "array"},
      {"chat", R"({"messages": [5]})", 400, "messages[0]", "object"},
      {"chat", R"({"messages": [{"role": "user", "content": 5}]})", 400, "messages[0].content", "string"},
      {"chat", R"({"messages": [{"role": "boss", "content": "x"}]})", 400, "messages[0].role", "boss"},
      {"chat", R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", 400, "messages", "text only"},
      {"chat", R"({"temperature": -1})", 400, "temperature", "[0, 100]"},
      {"chat", R"({"temperature": "hot"})", 400, "temperature", "number"},
      {"chat", R"({"temperature": 1e300})", 400, "temperature", "1e+300"},
      {"chat", R"({"top_p": 0})", 400, "top_p", "greater than 0"},
      {"chat", R"({"top_k": -2})", 400, "top_k", "-1"},
      {"chat", R"({"min_p": 2})", 400, "min_p", "[0, 1]"},
      {"chat", R"({"presence_penalty": 3})", 400, "presence_penalty", "[-2, 2]"},
      {"chat", R"({"repetition_penalty": 0})", 400, "repetition_penalty", "greater than 0"},
      {"chat", R"({"logit_bias": {"x": 1}})", 400, "logit_bias", "token id"},
      {"chat", R"({"logit_bias": {"99999": 1}})", 400, "logit_bias", "token id"},
      {"chat", R"({"logit_bias": {"5": 101}})", 400, "logit_bias.5", "[-100, 100]"},
      {"chat", R"({"stop": ["a", ""]})", 400, "stop[1]", "empty"},
      {"chat", R"({"stop": 5})", 400, "stop", "string"},
      {"chat", R"({"stop_token_ids": [99999]})", 400, "stop_token_ids[0]", "99999"},
      {"chat", R"({"n": 0})", 400, "n", "[1, 16]"},
      {"chat", R"({"max_tokens": 0})", 400, "max_tokens", "[1,"},
      {"chat", R"({"max_tokens": 1.5})", 400, "max_tokens", "integer"},
      {"chat", R"({"max_completion_tokens": 3000})", 400, "messages", "context is 2048 tokens"},
      {"chat", R"({"min_tokens": 9})", 400, "min_tokens", "more than"},
      {"chat", R"({"top_logprobs": 2})", 400, "top_logprobs", "logprobs"},
      {"chat", R"({"logprobs": true, "top_logprobs": 65})", 400, "top_logprobs", "[0, 64]"},
      {"chat", R"({"stream": "yes"})", 400, "stream", "true or false"},
      {"chat", R"({"stream_options": {"include_usage": 1}})", 400, "stream_options.include_usage", "true or false"},
      {"chat", R"({"response_format": {"type": "xml"}})", 400, "response_format.type", "xml"},
      {"chat", R"({"response_format": {"type": "json_schema"}})", 400, "response_format.json_schema", "missing"},
      {"chat", R"({"response_format": {"type": "json_schema", "json_schema": {}}})", 400,
       "response_format.json_schema.schema", "missing"},
      {"chat", R"({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}})", 400,
       "response_format.json_schema.strict", "true or false"},
      {"chat", R"({"guided_json": 5})", 400, "guided_json", "object"},
      {"chat", R"({"guided_json": "{"})", 400, "guided_json", "parse error"},
      {"chat", R"({"guided_regex": "a", "guided_json": {}})", 400, "guided_regex", "beside guided_json"},
      {"chat", R"({"guided_choice": []})", 400, "guided_choice", "at least one"},
      {"chat", R"({"guided_regex": "a", "min_tokens": 2})", 400, "min_tokens", "beside guided_regex"},
      {"chat", R"({"structured_outputs": {"whitespace_pattern": " "}})", 400, "structured_outputs.whitespace_pattern",
       "not supported"},
      {"", R"({"guided_grammar": 5})", 400, "guided_grammar", "string"},
      {"", R"({"structured_outputs": {"choice": [1]}})", 400, "structured_outputs.choice[0]", "string"},
      {"chat", R"({"functions": []})", 400, "functions", "tools"},
      {"chat", R"({"tools": [{"type": "function"}]})", 400, "tools[0].function", "object"},
      {"chat", R"({"tools": [{"type": "function", "function": {}}]})", 400, "tools[0].function.name", "non-empty"},
      {"chat", R"({"tool_choice": "sometimes"})", 400, "tool_choice", "none, auto, required"},
      {"chat", R"({"tool_choice": "required"})", 400, "tool_choice", "defines none"},
      {"chat", R"({"tool_choice": {"type": "function", "function": {"name": "x"}}})", 400, "tool_choice", "'x'"},
      {"chat", R"({"tool_choice": {"type": "function"}})", 400, "tool_choice.function.name", "name one"},
      {"chat", R"({"stream": 1, "tool_choice": {"type": "function"}})", 400, "stream", "true or false"},
      {"chat", R"({"reasoning_effort": 500})", 400, "reasoning_effort", "1..100"},
      {"chat", R"({"reasoning_effort": 1.5})", 400, "reasoning_effort", "integer"},
      {"chat", R"({"thinking": 1})", 400, "thinking", "object"},
      {"", R"({"prompt": null})", 400, "prompt", "must be a string"},
      {"", R"({"prompt": []})", 400, "prompt", "must be a string"},
      {"", R"({"prompt": [[], [1]]})", 400, "prompt[0]", "empty"},
      {"", R"({"prompt": [1, "a"]})", 400, "prompt", "token ids"},
      {"", R"({"prompt": [-1]})", 400, "prompt", "token ids below"},
      {"", R"({"suffix": "x"})", 400, "suffix", "not supported"},
      {"", R"({"best_of": 2})", 400, "best_of", "must equal n"},
      {"", R"({"logprobs": 65})", 400, "logprobs", "[0, 64]"},
      {"", R"({"draft_depth": -1})", 400, "draft_depth", "[0, 16]"},
      {"", R"({"max_tokens": 4000})", 400, "prompt", "context is 2048 tokens"},
  };
  for (const auto& c : cases) {
    Json request = {{"messages", user("Hello")}, {"prompt", "Hello"}, {"max_tokens", 4}};
    request.update(Json::parse(c.change));
    const auto answer =
        send("POST", std::string("/v1/") + (*c.path ? "chat/completions" : "completions"), request.dump());
    ASSERT_TRUE(answer->complete) << c.change;
    EXPECT_EQ(answer->status(), c.status) << c.change;
    const Json error = answer->json()["error"];
    EXPECT_EQ(error["param"], c.param) << c.change;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(c.says)) << c.change;
  }
  EXPECT_EQ(send("POST", "/v1/chat/completions", "{")->json()["error"]["type"], "invalid_request_error");
  const auto long_prompt =
      send("POST", "/v1/chat/completions", Json({{"messages", user(std::string(20000, 'x'))}}).dump());
  EXPECT_EQ(long_prompt->json()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(long_prompt->json()["error"]["param"], "messages");
}

// 44, 46: history without reasoning, and effort names that the model does not have. 33: billing lines.
TEST_F(ChatTest, Complaints33And43To46WhatMustBeAccepted) {
  const auto prompt_of = [&](const Json& request) {
    const auto answer = send("POST", "/tokenize", request.dump());
    EXPECT_EQ(answer->status(), 200) << answer->body;
    return tokenizer_.decode(answer->json()["tokens"].get<std::vector<int32_t>>());
  };
  for (const Json& effort :
       Json::array({"minimal", "low", "medium", "high", "xhigh", "max", "none", "turbo", 1, 100, "55"})) {
    EXPECT_NE(prompt_of({{"messages", user("Hi")}, {"reasoning_effort", effort}}), "");
  }
  EXPECT_THAT(prompt_of({{"messages", user("Hi")}, {"reasoning_effort", "none"}}), HasSubstr("</think>"));
  EXPECT_THAT(prompt_of({{"messages", user("Hi")}, {"chat_template_kwargs", {{"enable_thinking", false}}}}),
              HasSubstr("</think>"));
  EXPECT_THAT(prompt_of({{"messages", user("Hi")}, {"thinking", {{"type", "disabled"}}}}), HasSubstr("</think>"));
  EXPECT_THAT(prompt_of({{"messages", user("Hi")}}), Not(HasSubstr("</think>")));

  Json history = user("Weather?");
  history.push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array()}});
  const auto call = [](const std::string& arguments) {
    return Json::array(
        {{{"id", "c"}, {"type", "function"}, {"function", {{"name", "weather"}, {"arguments", arguments}}}}});
  };
  history.push_back({{"role", "tool"}, {"tool_call_id", "c"}, {"content", "sunny"}});
  history[1]["tool_calls"] = call(R"({"city": "Oslo"})");
  const std::string once = prompt_of({{"messages", history}, {"tools", Json::array({weather_tool()})}});
  history[1]["tool_calls"] = call(R"("{\"city\": \"Oslo\"}")");
  EXPECT_EQ(prompt_of({{"messages", history}, {"tools", Json::array({weather_tool()})}}), once);
  EXPECT_THAT(once, HasSubstr("string=\"true\">Oslo<"));

  const auto with_system = [&](const std::string& text) {
    Json messages = user("Hi");
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", text}});
    return prompt_of({{"messages", messages}});
  };
  const std::string plain = with_system("You are kind.");
  EXPECT_EQ(with_system("x-anthropic-billing-header: cc=1; cch=ab;\n\nYou are kind."), plain);
  EXPECT_EQ(with_system("x-anthropic-billing-header: cc=2; cch=ffff;\nYou are kind."), plain);
}

TEST_F(ChatTest, WholeAnswers) {
  const auto answer = ask("/v1/chat/completions", {{"messages", user("Hello!")},
                                                   {"max_tokens", 40},
                                                   {"n", 2},
                                                   {"temperature", 0},
                                                   {"logprobs", true},
                                                   {"top_logprobs", 2}});
  ASSERT_EQ(answer->status(), 200) << answer->body;
  const Json json = answer->json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "mini-v41");
  ASSERT_EQ(json["choices"].size(), 2u);
  for (const Json& choice : json["choices"]) {
    EXPECT_EQ(choice["message"]["role"], "assistant");
    EXPECT_EQ(choice["message"]["reasoning"], choice["message"]["reasoning_content"]);
    EXPECT_NE(choice["message"]["content"], "");
    EXPECT_EQ(choice["finish_reason"], "stop");
    ASSERT_GT(choice["logprobs"]["content"].size(), 5u);
    for (const Json& token : choice["logprobs"]["content"]) {
      EXPECT_LE(token["logprob"].get<double>(), 0);
      ASSERT_EQ(token["top_logprobs"].size(), 2u);
      EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]) << "greedy takes the best";
    }
  }
  const Json& usage = json["usage"];
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
  EXPECT_GT(usage["completion_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_TRUE(usage["prompt_tokens_details"].contains("cached_tokens"));
  // 65: what speculation did for this request.
  EXPECT_GT(usage["speculation"]["steps"], 0);

  // 45: reasoning that eats the whole limit is told apart from an empty answer.
  const Json cut = ask("/v1/chat/completions", {{"messages", user("Hello!")}, {"max_tokens", 4}})->json();
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(cut["choices"][0]["message"]["content"], "");
  EXPECT_NE(cut["choices"][0]["message"]["reasoning"], "");
  EXPECT_EQ(cut["usage"]["completion_tokens_details"]["reasoning_tokens"], 4);
}

TEST_F(ChatTest, StreamsSayWhatWholeAnswersSay) {
  Json request = {{"messages", user("Hello!")}, {"max_tokens", 40}, {"temperature", 0}};
  const Json whole = ask("/v1/chat/completions", request)->json();
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  const auto events = ask("/v1/chat/completions", request)->events();
  ASSERT_EQ(events.back(), "[DONE]");
  std::string content, reasoning, other_reasoning;
  const Json first = Json::parse(events[0])["choices"][0];
  EXPECT_EQ(first["delta"]["role"], "assistant");
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_TRUE(chunk["usage"].is_object());
    const Json& choice = chunk["choices"][0];
    content += choice["delta"].value("content", "");
    reasoning += choice["delta"].value("reasoning", "");
    other_reasoning += choice["delta"].value("reasoning_content", "");
    EXPECT_EQ(choice["finish_reason"].is_null(), i + 3 < events.size());
  }
  const Json last = Json::parse(events[events.size() - 2]);
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
  EXPECT_EQ(content, whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(reasoning, whole["choices"][0]["message"]["reasoning"]);
  EXPECT_EQ(reasoning, other_reasoning);
}

// Benchmarks ask for both: text goes on behind an end token, and every step is counted when it was made.
TEST_F(ChatTest, AnIgnoredEndIsNotSilence) {
  Json request = {{"messages", user("Hello!")}, {"max_tokens", 96}, {"temperature", 0}};
  const Json natural = ask("/v1/chat/completions", request)->json();
  ASSERT_EQ(natural["choices"][0]["finish_reason"], "stop");
  request["ignore_eos"] = true;
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  std::string content;
  int64_t tokens = 0;
  for (const std::string& event : ask("/v1/chat/completions", request)->events()) {
    if (event == "[DONE]") break;
    const Json chunk = Json::parse(event);
    const int64_t now = chunk["usage"]["completion_tokens"];
    EXPECT_LE(now - tokens, 1 + kMaxDraftDepth);
    tokens = now;
    if (!chunk["choices"].empty()) content += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(tokens, 96);
  const std::string ended = natural["choices"][0]["message"]["content"];
  EXPECT_TRUE(content.starts_with(ended)) << content;
  EXPECT_GT(content.size(), ended.size());
  EXPECT_EQ(content.find(kEosText), std::string::npos);
}

TEST_F(ChatTest, AHangUpEndsTheGeneration) {
  for (const bool stream : {false, true}) {
    auto exchange =
        send("POST", "/v1/completions",
             Json({{"prompt", "a"}, {"max_tokens", 2000}, {"n", 3}, {"ignore_eos", true}, {"stream", stream}}).dump());
    run_posted();
    exchange->hang_up();
    wait_idle();
    run_posted();
    EXPECT_FALSE(exchange->complete);
    EXPECT_EQ(exchange.use_count(), 1) << "nobody holds the exchange any more";
  }
}

// An error in the middle: a status where there is none yet, otherwise an event, and the stream ends.
TEST_F(ChatTest, ADeadlineEndsAnAnswerWithAnError) {
  services_.options.request_seconds = 0.001;
  Json request = {{"prompt", "a"}, {"max_tokens", 2000}, {"ignore_eos", true}};
  const auto whole = ask("/v1/completions", request);
  EXPECT_EQ(whole->status(), 504);
  EXPECT_EQ(whole->json()["error"]["code"], "deadline_exceeded");
  request["stream"] = true;
  const auto stream = ask("/v1/completions", request);
  EXPECT_EQ(stream->status(), 200);
  const auto events = stream->events();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["code"], "deadline_exceeded");
}

// A full queue refuses; what had been started for the same request ends with it.
TEST_F(ChatTest, AFullQueueRefusesTheWholeRequest) {
  const Json request = {{"prompt", "a"}, {"max_tokens", 2000}, {"n", 16}, {"ignore_eos", true}};
  const auto refused = send("POST", "/v1/completions", request.dump());
  EXPECT_EQ(refused->status(), 503) << refused->body;
  EXPECT_EQ(refused->json()["error"]["code"], "overloaded");
  wait_idle();
}

TEST_F(ChatTest, CompletionsWithEchoAndLogprobs) {
  const Json json =
      ask("/v1/completions",
          {{"prompt", "def main():"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 2}, {"temperature", 0}})
          ->json();
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "def main():");
  const Json& logprobs = choice["logprobs"];
  const size_t count = logprobs["tokens"].size();
  EXPECT_EQ(json["usage"]["prompt_tokens"], count);
  for (const char* key : {"token_logprobs", "top_logprobs", "text_offset"}) EXPECT_EQ(logprobs[key].size(), count);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  for (size_t i = 1; i < count; ++i) {
    EXPECT_EQ(logprobs["top_logprobs"][i][logprobs["tokens"][i].get<std::string>()], logprobs["token_logprobs"][i]);
  }
  // Token ids get no BOS and give the same numbers.
  const auto ids = send("POST", "/tokenize", R"({"prompt": "def main():"})")->json()["tokens"];
  const Json again = ask("/v1/completions", {{"prompt", Json::array({ids, ids})},
                                             {"max_tokens", 1},
                                             {"echo", true},
                                             {"logprobs", 2},
                                             {"temperature", 0},
                                             {"prompt_logprobs", 1}})
                         ->json();
  ASSERT_EQ(again["choices"].size(), 2u);
  EXPECT_EQ(again["usage"]["prompt_tokens"], 2 * count);
  EXPECT_EQ(again["choices"][1]["logprobs"]["tokens"].size(), count + 1);
  EXPECT_EQ(again["choices"][1]["logprobs"]["token_logprobs"][2], logprobs["token_logprobs"][2]);
  EXPECT_EQ(again["choices"][0]["prompt_logprobs"].size(), count);
  EXPECT_EQ(send("POST", "/detokenize", Json({{"tokens", ids}}).dump())->json()["prompt"],
            "<｜begin▁of▁sentence｜>def main():");
}

// What a capture asks for: 64 tokens a position by their ids, the same from the prompt and from decoding.
TEST_F(ChatTest, CompletionsNameTokensByTheirIds) {
  const Json ids = send("POST", "/tokenize", R"({"prompt": "def main():"})")->json()["tokens"];
  Json request = {{"prompt", ids},  {"max_tokens", 8},  {"temperature", 0},
                  {"logprobs", 64}, {"draft_depth", 0}, {"return_tokens_as_token_ids", true}};
  const Json plain = ask("/v1/completions", request)->json();
  const Json logprobs = plain["choices"][0]["logprobs"];
  EXPECT_EQ(plain["usage"]["speculation"]["drafted_tokens"], 0);
  ASSERT_EQ(logprobs["tokens"].size(), 8u);
  Json whole = ids;
  for (size_t i = 0; i < 8; ++i) {
    const std::string name = logprobs["tokens"][i];
    ASSERT_TRUE(name.starts_with("token_id:")) << name;
    EXPECT_EQ(logprobs["top_logprobs"][i].size(), 64u);
    EXPECT_EQ(logprobs["top_logprobs"][i][name], logprobs["token_logprobs"][i]);
    whole.push_back(std::stoi(name.substr(9)));
  }
  const Json forced = ask("/v1/completions", {{"prompt", whole}, {"max_tokens", 0}, {"prompt_logprobs", 64}})->json();
  for (size_t i = 0; i < 8; ++i) {
    const Json& at = forced["choices"][0]["prompt_logprobs"][ids.size() + i];
    EXPECT_EQ(at.size(), 64u);
    EXPECT_EQ(at[std::to_string(whole[ids.size() + i].get<int>())]["logprob"], logprobs["token_logprobs"][i]);
  }
  request.erase("draft_depth");
  const Json drafted = ask("/v1/completions", request)->json();
  EXPECT_GT(drafted["usage"]["speculation"]["drafted_tokens"], 0);
  EXPECT_EQ(drafted["choices"], plain["choices"]);
}

// Takes given tokens, whatever the model says.
class Script final : public TokenFilter {
 public:
  explicit Script(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}
  void apply(std::span<float> logits) override {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (at_ < tokens_.size() && static_cast<int32_t>(i) != tokens_[at_]) logits[i] = -INFINITY;
    }
  }
  void accept(int32_t) override { ++at_; }

 private:
  std::vector<int32_t> tokens_;
  size_t at_ = 0;
};

// 34, 35: however the text of a call is cut into tokens, no byte of it is content, and its arguments are whole. 36: the
// same inside reasoning that does not end.
TEST_F(ChatTest, Complaints34To36NoMarkupInContent) {
  const std::string call =
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"weather\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">Oslo"
      "</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"days\" string=\"false\">[1, 2]</｜DSML｜ parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  std::string ascii = call;
  for (size_t at; (at = ascii.find("｜")) != std::string::npos;) ascii.replace(at, std::string("｜").size(), "|");
  std::mt19937 random(1);
  const struct {
    const std::string& block;
    bool closed;
    size_t longest;  // piece
  } cases[] = {{call, true, 3}, {ascii, true, 9}, {call, false, 12}};
  for (const auto& [block, closed, longest] : cases) {
    const std::string said = (closed ? "I look.</think>Sure." : "I look.") + block;
    std::vector<int32_t> tokens;
    for (size_t at = 0; at < said.size();) {  // a tokenization that nobody would choose
      size_t size = 1 + random() % longest;
      while (at + size < said.size() && (said[at + size] & 0xC0) == 0x80) ++size;
      const auto piece = tokenizer_.encode(said.substr(at, size));
      ASSERT_TRUE(piece);
      tokens.insert(tokens.end(), piece->begin(), piece->end());
      at += size;
    }
    tokens.push_back(model_->spec.tokens.eos);
    GenerationRequest request{.chat = true, .thinking = true};
    request.request.prompt = {0, 5, 6};
    request.request.max_tokens = 1000;
    request.request.sampling.temperature = 0;
    request.request.draft_depth = 0;
    request.request.filter = std::make_shared<Script>(tokens);
    std::string content, arguments;
    bool over = false;
    auto generation = TextGeneration::start(services_, request, [&](const GenerationDelta& delta) {
      for (const CompletionEvent& event : delta.events) {
        if (event.kind == CompletionEvent::Kind::kContent) content += event.text;
        if (event.kind == CompletionEvent::Kind::kCallArguments) arguments += event.text;
      }
      over = delta.finish != FinishReason::kNone;
    });
    ASSERT_TRUE(generation) << generation.error().message;
    run_until([&] { return over; });
    const AssistantMessage& message = (*generation)->message();
    EXPECT_EQ(content, closed ? "Sure." : "");
    EXPECT_EQ(message.reasoning, "I look.");
    ASSERT_EQ(message.tool_calls.size(), 1u) << block;
    EXPECT_EQ(message.tool_calls[0].name, "weather");
    EXPECT_EQ(Json::parse(message.tool_calls[0].arguments), Json::parse(R"({"city": "Oslo", "days": [1, 2]})"));
    EXPECT_EQ(arguments, message.tool_calls[0].arguments);
  }
}

TEST_F(ChatTest, StopStringsCrossTokens) {
  const auto tokens = *tokenizer_.encode("one two three four five");
  for (const auto& [stop, text] : {std::pair<std::string, std::string>{"ee f", "one two thr"},
                                   {"wo", "one t"},
                                   {"five", "one two three four "},
                                   {"nothing", "one two three four five"}}) {
    GenerationRequest request{.stop = {stop}};
    request.request.prompt = {0};
    request.request.max_tokens = static_cast<int>(tokens.size());
    request.request.filter = std::make_shared<Script>(tokens);
    std::string said;
    GenerationDelta last;
    auto generation = TextGeneration::start(services_, request, [&](const GenerationDelta& delta) {
      for (const CompletionEvent& event : delta.events) said += event.text;
      last = delta;
    });
    ASSERT_TRUE(generation);
    run_until([&] { return last.finish != FinishReason::kNone; });
    EXPECT_EQ(said, text);
    const bool found = stop != "nothing";
    EXPECT_EQ(last.finish, found ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_EQ(last.stop, found ? stop : "");
    EXPECT_EQ(last.stats.tokens == static_cast<int>(tokens.size()), !found || stop == "five");
    wait_idle();
  }
}

// 40: effort and tool_choice do not make calls vanish.
TEST_F(ChatTest, Complaint40ToolChoiceIsKept) {
  for (const char* effort : {"none", "low", "max"}) {
    for (const Json& choice : {Json("required"), Json{{"type", "function"}, {"function", {{"name", "weather"}}}}}) {
      const Json json = ask("/v1/chat/completions", {{"messages", user("Say hello.")},
                                                     {"tools", Json::array({weather_tool()})},
                                                     {"tool_choice", choice},
                                                     {"reasoning_effort", effort},
                                                     {"max_tokens", 400},
                                                     {"temperature", 0}})
                            ->json();
      const Json& made = json["choices"][0];
      if (made["finish_reason"] == "length") continue;  // a small model may reason for ever
      EXPECT_EQ(made["finish_reason"], "tool_calls") << json.dump();
      EXPECT_EQ(made["message"]["tool_calls"][0]["function"]["name"], "weather");
      EXPECT_TRUE(Json::accept(made["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>()));
    }
  }
  const Json none = ask("/v1/chat/completions", {{"messages", user("Call the weather tool for Oslo.")},
                                                 {"tools", Json::array({weather_tool()})},
                                                 {"tool_choice", "none"},
                                                 {"max_tokens", 60},
                                                 {"temperature", 0}})
                        ->json();
  EXPECT_FALSE(none["choices"][0]["message"].contains("tool_calls"));
  EXPECT_THAT(none.dump(), Not(HasSubstr("DSML")));
}

}  // namespace
}  // namespace onelane
