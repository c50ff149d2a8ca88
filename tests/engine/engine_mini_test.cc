// The engine on the trained mini model: real distributions, drafts that are accepted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine_support.h"
#include "text/compressed_token_map.h"
#include "text/tokenizer.h"

namespace onelane {
namespace {

TEST(EngineMini, StreamsSpeculateWithoutChangingATokenAndSamplingAcceptsToo) {
  const std::string dir = repository_path("models/mini-v41");
  const Tokenizer tokenizer = Tokenizer::load(dir + "/tokenizer.json").value();
  auto map = compressed_token_map(tokenizer).value();
  const auto model = Model::load(dir, std::move(map.number)).value();
  const auto kernels = make_cpu_kernels(1);

  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> expected;
  for (const char* text : {"int value = read(path);\nint other = ", "The first of the two", "for (int i = 0; i < "}) {
    auto prompt = tokenizer.encode(text).value();
    prompt.insert(prompt.begin(), model->spec.tokens.bos);
    for (const float temperature : {0.0f, 0.8f}) {
      Request request = greedy(prompt, 24);
      request.sampling = {.temperature = temperature, .top_p = 0.95f, .seed = 7};
      expected.push_back(session_tokens(*model, prompt, 24, request.sampling));
      requests.push_back(request);
    }
  }
  EngineOptions options = small_options();
  options.max_sequences = 6;
  options.draft_schedule = *DraftSchedule::parse("64:5");
  TestEngine engine(*model, *kernels, options);
  const auto answers = engine.run_all(requests);
  int greedy_accepted = 0;
  int sampled_accepted = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].tokens, expected[i]) << i;
    (i % 2 == 0 ? greedy_accepted : sampled_accepted) += answers[i].stats.accepted_tokens();
  }
  EXPECT_GT(greedy_accepted, 10);
  EXPECT_GT(sampled_accepted, 5);
}

}  // namespace
}  // namespace onelane
