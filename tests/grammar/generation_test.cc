// Grammars in the engine, with mini-v41: what it says fits, and neither drafts nor company change a token of it.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "../engine/engine_support.h"
#include "base/format.h"
#include "grammar_support.h"
#include "support/gpu.h"
#include "text/compressed_token_map.h"
#include "text/prompt_encoder.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Kind = GrammarSource::Kind;

constexpr const char* kPerson =
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 16},
         "age": {"type": "integer", "minimum": 0, "maximum": 150},
         "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3}},
        "required": ["name", "age", "colours"], "additionalProperties": false})";

class GrammarGeneration : public ::testing::Test {
 protected:
  static const Model& model() {
    static const Model* const model =
        Model::load(repository_path("models/mini-v41"),
                    std::move(compressed_token_map(mini_tokenizer()).value().number), testing::model_kernels())
            .value()
            .release();  // after main() the memory that it lies in may be gone
    return *model;
  }
  static Kernels& kernels() {
    static Kernels* const kernels = testing::make_test_kernels(1).release();
    return *kernels;
  }
  static EngineOptions options(int depth) {
    EngineOptions options = small_options();
    options.max_sequences = 8;
    options.draft_schedule = *DraftSchedule::parse(format("64:{}", depth));
    return options;
  }

  static Request ask(const std::string& text, const GrammarSource& source, float temperature = 0) {
    Request request;
    request.prompt = mini_tokenizer().encode(text).value();
    request.prompt.insert(request.prompt.begin(), model().spec.tokens.bos);
    request.max_tokens = 160;
    request.sampling = {.temperature = temperature, .seed = 11};
    request.filter = (*Grammar::compile(source, mini_vocabulary()))->filter();
    return request;
  }
  // A filter serves one generation, so the requests are made anew each time.
  static std::vector<Request> requests() {
    std::vector<Request> all;
    for (const float temperature : {0.0f, 0.9f}) {
      all.push_back(ask("A person, as JSON: ", schema_of(kPerson), temperature));
      all.push_back(ask("{\"city\": \"Oslo\"}\n", source_of(Kind::kJsonObject), temperature));
      all.push_back(ask("The order number is ", source_of(Kind::kRegex, {R"([A-Z]{2}-\d{3,5} \(ok\))"}), temperature));
      all.push_back(ask("Yes or no? ", source_of(Kind::kChoice, {"yes, of course", "no, never"}), temperature));
    }
    return all;
  }
};

TEST_F(GrammarGeneration, NeitherDraftsNorCompanyChangeATokenAndEveryAnswerFits) {
  std::vector<std::vector<int32_t>> expected;
  {
    TestEngine alone(model(), kernels(), options(0));
    for (Request& request : requests()) {
      const Answer answer = alone.run(std::move(request));
      EXPECT_NE(answer.finish, FinishReason::kError) << answer.error;
      expected.push_back(answer.tokens);
      if (answer.finish != FinishReason::kStop) continue;
      EXPECT_EQ(answer.stop_token, model().spec.tokens.eos);
      const std::string text = mini_tokenizer().decode(answer.tokens);
      if (expected.size() % 4 != 1) continue;
      const Json person = Json::parse(text);
      EXPECT_EQ(person.size(), 3u) << text;
      EXPECT_TRUE(person["name"].is_string() && person["age"].is_number_integer()) << text;
      EXPECT_FALSE(person["colours"].empty()) << text;
    }
  }
  int accepted = 0;
  for (int depth = kSanitized ? 2 : 0; depth <= (kSanitized ? 2 : 5); ++depth) {
    TestEngine together(model(), kernels(), options(depth));
    const auto answers = together.run_all(requests());
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, expected[i]) << "depth " << depth << ", request " << i;
      accepted += answers[i].stats.accepted_tokens();
    }
    EXPECT_EQ(together.settled().pages_used, 0);
  }
  EXPECT_GT(accepted, 0) << "drafts were accepted, so something was tested";
}

TEST_F(GrammarGeneration, SpillingKeepsTheStateOfAGrammar) {
  const auto source = source_of(Kind::kRegex, {"(one two three four five six seven eight nine ten ){8}"});
  Request request = ask("Count: ", source);
  request.max_tokens = 400;
  TestEngine roomy(model(), kernels(), options(0));
  const Answer expected = roomy.run(request);
  ASSERT_EQ(expected.finish, FinishReason::kStop) << mini_tokenizer().decode(expected.tokens);
  EngineOptions tight = options(3);
  const KvStore probe(model().spec, 1, 0);
  tight.kv_bytes = static_cast<int64_t>(probe.page_bytes()) * 5;  // three cannot stay side by side to their ends
  tight.max_model_len = 512;
  TestEngine engine(model(), kernels(), tight);
  std::vector<Request> both;
  for (int i = 0; i < 3; ++i) {
    both.push_back(ask("Count: ", source));
    both.back().max_tokens = 400;
  }
  int preemptions = 0;
  for (const Answer& answer : engine.run_all(both)) {
    EXPECT_EQ(answer.tokens, expected.tokens);
    preemptions += answer.stats.preemptions;
  }
  EXPECT_GT(preemptions, 0);
}

TEST_F(GrammarGeneration, ALimitCutsAndACancellationFrees) {
  TestEngine engine(model(), kernels(), options(5));
  Request cut = ask("A person, as JSON: ", schema_of(kPerson));
  cut.max_tokens = 6;
  EXPECT_EQ(engine.run(cut).finish, FinishReason::kLength);
  Request longer = ask("x", source_of(Kind::kRegex, {"[a-z ]{500}"}));
  longer.max_tokens = 400;
  const std::weak_ptr<TokenFilter> filter = longer.filter;
  const RequestId id = engine.submit(std::move(longer));
  engine.wait_tokens(id, 2);
  engine->cancel(id);
  EXPECT_EQ(engine.wait(id).finish, FinishReason::kCancelled);
  EXPECT_EQ(engine.settled().pages_used, 0);
  while (!filter.expired()) std::this_thread::yield();
}

TEST_F(GrammarGeneration, AnAmbiguousGrammarCostsItsOwnRequest) {
  TestEngine engine(model(), kernels(), options(0));
  Request slow = ask("x", source_of(Kind::kChoice, {"yes"}));
  slow.filter = (*Grammar::compile(source_of(Kind::kGrammar, {"root ::= s\ns ::= s s s | [a-z] | \"a\" | \"b\" s"}),
                                   mini_vocabulary()))
                    ->filter(0);
  const auto answers = engine.run_all({slow, ask("Yes or no? ", source_of(Kind::kChoice, {"yes", "no"}))});
  EXPECT_EQ(answers[0].finish, FinishReason::kError);
  EXPECT_THAT(answers[0].error, HasSubstr("too ambiguous"));
  EXPECT_EQ(answers[1].finish, FinishReason::kStop);
}

}  // namespace
}  // namespace onelane
