// Structured output through the routes: every protocol's fields, reasoning before it, tools beside it, choices,
// streams, refusals.
#include <gmock/gmock.h>

#include "api/answer_filters.h"
#include "api/api_fixture.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using StructuredOutput = ApiFixture;

Json user(const std::string& text) { return Json::array({{{"role", "user"}, {"content", text}}}); }

Json person_schema() {
  return Json::parse(R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 10},
      "age": {"type": "integer", "minimum": 0, "maximum": 150}, "mood": {"enum": ["good", "bad"]}},
      "required": ["name", "age", "mood"], "additionalProperties": false})");
}

void expect_person(const std::string& text) {
  const Json person = Json::parse(text, nullptr, false);
  ASSERT_FALSE(person.is_discarded()) << text;
  EXPECT_EQ(person.size(), 3u) << text;
  EXPECT_TRUE(person["name"].is_string()) << text;
  EXPECT_TRUE(person["age"].is_number_unsigned() && person["age"].get<int>() <= 150) << text;
  EXPECT_TRUE(person["mood"] == "good" || person["mood"] == "bad") << text;
}

Json person_format() {
  return {{"type", "json_schema"},
          {"json_schema", {{"name", "person"}, {"strict", true}, {"schema", person_schema()}}}};
}

Json weather_tool() {
  return Json::parse(R"({"type": "function", "function": {"name": "weather", "parameters":
      {"type": "object", "properties": {"city": {"type": "string"}}}}})");
}

TEST_F(StructuredOutput, EveryFieldOfChatAndCompletions) {
  const std::string schema = person_schema().dump();
  const struct {
    Json fields;
    std::function<void(const std::string&)> check;
  } cases[] = {
      {{{"response_format", person_format()}}, expect_person},
      {{{"guided_json", person_schema()}}, expect_person},
      {{{"guided_json", schema}}, expect_person},
      {{{"structured_outputs", {{"json", schema}}}}, expect_person},
      {{{"guided_regex", "[A-F]{3}-[0-9]{2}"}}, [](const std::string& text) { EXPECT_EQ(text.size(), 6u) << text; }},
      {{{"structured_outputs", {{"choice", {"alpha", "beta"}}}}},
       [](const std::string& text) { EXPECT_TRUE(text == "alpha" || text == "beta") << text; }},
      {{{"guided_choice", {"only this"}}}, [](const std::string& text) { EXPECT_EQ(text, "only this"); }},
      {{{"guided_grammar", "root ::= \"<\" [a-z]{4} \">\""}},
       [](const std::string& text) { EXPECT_TRUE(text.size() == 6 && text.front() == '<') << text; }},
      {{{"structured_outputs", {{"structural_tag", Json::parse(R"({"type": "structural_tag", "format":
          {"type": "const_string", "value": "as it is"}})")}}}},
       [](const std::string& text) { EXPECT_EQ(text, "as it is"); }},
      {{{"response_format", {{"type", "text"}}}, {"guided_choice", {"a"}}},
       [](const std::string& text) { EXPECT_EQ(text, "a"); }},
  };
  for (const auto& c : cases) {
    if (kSanitized && &c > &cases[0] && &c < &cases[4]) continue;  // the same answer, word for word
    Json request = {
        {"messages", user("Hi")}, {"prompt", "Hi"}, {"max_tokens", 300}, {"seed", 3}, {"reasoning_effort", "none"}};
    request.update(c.fields);
    const Json chat = ask("/v1/chat/completions", request)->json();
    ASSERT_TRUE(chat.contains("choices")) << chat.dump();
    EXPECT_EQ(chat["choices"][0]["finish_reason"], "stop") << chat.dump();
    c.check(chat["choices"][0]["message"]["content"]);
    const Json text = ask("/v1/completions", request)->json();
    ASSERT_TRUE(text.contains("choices")) << text.dump();
    EXPECT_EQ(text["choices"][0]["finish_reason"], "stop");
    c.check(text["choices"][0]["text"]);
  }
  const Json object = ask("/v1/chat/completions", {{"messages", user("Hi")},
                                                   {"response_format", {{"type", "json_object"}}},
                                                   {"max_tokens", 20},
                                                   {"reasoning_effort", "none"}})
                          ->json();
  EXPECT_THAT(object["choices"][0]["message"]["content"].get<std::string>(), StartsWith("{"));
}

// 38: JSON doubled, or cut, where the reasoning ends and the grammar begins; drafts are on.
TEST_F(StructuredOutput, Complaint38TheGrammarBeginsWhereTheReasoningEnds) {
  if (kSanitized) GTEST_SKIP() << "long answers of a sanitised model; the same code runs in the other tests";
  for (int seed = 0; seed < 6; ++seed) {
    for (const bool stream : {false, true}) {
      const auto exchange = ask("/v1/chat/completions", {{"messages", user("Add 345 and 678.")},
                                                         {"response_format", person_format()},
                                                         {"max_tokens", 1000},
                                                         {"seed", seed},
                                                         {"temperature", seed == 0 ? 0.0 : 0.8},
                                                         {"stream", stream}});
      std::string content, reasoning, finish;
      if (!stream) {
        const Json choice = exchange->json()["choices"][0];
        content = choice["message"]["content"];
        reasoning = choice["message"].value("reasoning_content", "");
        finish = choice["finish_reason"];
      } else {
        for (const std::string& event : exchange->events()) {
          if (event == "[DONE]") continue;
          const Json choice = Json::parse(event)["choices"][0];
          content += choice["delta"].value("content", "");
          reasoning += choice["delta"].value("reasoning_content", "");
          if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
        }
      }
      EXPECT_NE(reasoning, "");
      if (finish == "length") {  // all of it reasoning
        EXPECT_EQ(content, "");
        continue;
      }
      EXPECT_EQ(finish, "stop");
      expect_person(content);
    }
  }
}

TEST_F(StructuredOutput, EveryChoiceOfEveryPromptHasAGrammarOfItsOwn) {
  const Json made =
      ask("/v1/completions",
          {{"prompt", {"One", "Two"}}, {"n", 3}, {"guided_json", person_schema()}, {"max_tokens", 300}, {"seed", 5}})
          ->json();
  ASSERT_EQ(made["choices"].size(), 6u);
  for (const Json& choice : made["choices"]) expect_person(choice["text"]);
}

TEST_F(StructuredOutput, ResponsesAndMessages) {
  const Json response =
      ask("/v1/responses",
          {{"input", "Hi"},
           {"reasoning", {{"effort", "none"}}},
           {"max_output_tokens", 300},
           {"text",
            {{"format",
              {{"type", "json_schema"}, {"name", "person"}, {"strict", true}, {"schema", person_schema()}}}}}})
          ->json();
  ASSERT_TRUE(response.contains("output")) << response.dump();
  expect_person(response["output"].back()["content"][0]["text"]);
  const Json message =
      ask("/v1/messages", {{"messages", user("Hi")},
                           {"max_tokens", 300},
                           {"output_config", {{"format", {{"type", "json_schema"}, {"schema", person_schema()}}}}}})
          ->json();
  ASSERT_TRUE(message.contains("content")) << message.dump();
  expect_person(message["content"].back()["text"]);
  const Json refused =
      ask("/v1/messages", {{"messages", user("Hi")},
                           {"max_tokens", 30},
                           {"output_config", {{"format", {{"type", "json_schema"}, {"schema", {{"type", "thing"}}}}}}}})
          ->json();
  EXPECT_EQ(refused["error"]["type"], "invalid_request_error");
  EXPECT_THAT(refused["error"]["message"].get<std::string>(), StartsWith("output_config.format.schema: "));
}

TEST_F(StructuredOutput, WhatDoesNotCompileIsRefusedBeforeAnythingIsSent) {
  const struct {
    Json fields;
    const char* param;
    const char* says;
  } cases[] = {
      {{{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", {{"type", "thing"}}}}}}}},
       "response_format.json_schema.schema",
       "thing"},
      {{{"guided_json", {{"type", "array"}, {"uniqueItems", true}}}}, "guided_json", "uniqueItems"},
      {{{"guided_regex", "(a"}}, "guided_regex", "parenthesis"},
      {{{"structured_outputs", {{"grammar", "root ::= nothing"}}}}, "structured_outputs.grammar", "nothing"},
      {{{"guided_choice", {std::string(300'000, 'x')}}}, "guided_choice", "bytes"},
  };
  for (const auto& c : cases) {
    for (const bool stream : {false, true}) {
      Json request = {{"messages", user("Hi")}, {"max_tokens", 5}, {"stream", stream}};
      request.update(c.fields);
      const auto exchange = ask("/v1/chat/completions", request);
      EXPECT_EQ(exchange->status(), 400) << exchange->body;
      EXPECT_EQ(exchange->json()["error"]["param"], c.param);
      EXPECT_THAT(exchange->json()["error"]["message"].get<std::string>(), HasSubstr(c.says));
    }
  }
  EXPECT_TRUE(engine_->idle());
}

TEST_F(StructuredOutput, AClientThatLeavesWhileItsGrammarIsCompiledCostsNothing) {
  const auto exchange =
      send("POST", "/v1/chat/completions", Json({{"messages", user("Hi")}, {"guided_json", person_schema()}}).dump());
  exchange->hang_up();
  ask("/v1/chat/completions", {{"messages", user("Hi")}, {"guided_choice", {"yes"}}, {"max_tokens", 400}});
  EXPECT_EQ(exchange->status(), 0);
  wait_idle();
  EXPECT_EQ(engine_->stats().finished[static_cast<size_t>(FinishReason::kCancelled)], 0u);
}

TEST_F(StructuredOutput, AToolIsCalledInsteadAndAForcedOneGoesFirst) {
  Json request = {{"messages", user("Call the weather tool for Oslo.")},
                  {"tools", Json::array({weather_tool()})},
                  {"response_format", person_format()},
                  {"reasoning_effort", "none"},
                  {"max_tokens", 300},
                  {"temperature", 0}};
  for (const char* choice : {"auto", "none"}) {
    request["tool_choice"] = choice;
    const Json made = ask("/v1/chat/completions", request)->json()["choices"][0];
    if (made["finish_reason"] == "stop") expect_person(made["message"]["content"]);
    EXPECT_TRUE(made["finish_reason"] == "stop" || std::string(choice) == "auto") << made.dump();
  }
  request["tool_choice"] = "required";
  const Json forced = ask("/v1/chat/completions", request)->json()["choices"][0];
  EXPECT_EQ(forced["message"]["tool_calls"][0]["function"]["name"], "weather") << forced.dump();
}

// Allows one token.
class Only final : public TokenFilter {
 public:
  explicit Only(int32_t token) : token_(token) {}
  void apply(std::span<float> logits) override {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (static_cast<int32_t>(i) != token_) logits[i] = -INFINITY;
    }
  }
  void accept(int32_t token) override { taken.push_back(token); }
  std::vector<int32_t> taken;

 private:
  int32_t token_;
};

TEST_F(StructuredOutput, EitherTextOrFilter) {
  const int32_t brace = tokenizer_.token_to_id("{").value();
  const auto allowed = [&](TokenFilter& filter) {
    std::vector<float> logits(static_cast<size_t>(model_->spec.vocab), 1.0f);
    filter.apply(logits);
    std::vector<std::string> out;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > -INFINITY) out.emplace_back(tokenizer_.bytes(static_cast<int32_t>(i)));
    }
    return out;
  };
  const auto only = std::make_shared<Only>(brace);
  const auto to_filter = either_text(tokenizer_, "ab", only);
  EXPECT_THAT(allowed(*to_filter), ::testing::UnorderedElementsAre("{", "a", "ab"));
  to_filter->accept(brace);
  EXPECT_THAT(allowed(*to_filter), ::testing::ElementsAre("{"));
  EXPECT_THAT(only->taken, ::testing::ElementsAre(brace));
  const auto to_text = either_text(tokenizer_, "ab", std::make_shared<Only>(brace));
  allowed(*to_text);
  to_text->accept(tokenizer_.token_to_id("a").value());
  EXPECT_THAT(allowed(*to_text), ::testing::ElementsAre("b"));
  to_text->accept(tokenizer_.token_to_id("b").value());
  EXPECT_EQ(allowed(*to_text).size(), static_cast<size_t>(model_->spec.vocab)) << "free behind the text";
  const auto waits = after_token(7, model_->spec.tokens.eos, std::make_shared<Only>(brace));
  EXPECT_EQ(allowed(*waits).size(), static_cast<size_t>(model_->spec.vocab) - 1) << "all but the end";
  waits->accept(7);
  EXPECT_THAT(allowed(*waits), ::testing::ElementsAre("{"));
}

}  // namespace
}  // namespace onelane
