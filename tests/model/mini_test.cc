// The trained minis against the oracle: 2,000 positions of real text, and drafts at 64 of them.
#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/generate.h"
#include "engine/session.h"
#include "support/data.h"
#include "support/gpu.h"
#include "text/compressed_token_map.h"
#include "text/prompt_encoder.h"
#include "text/tokenizer.h"

namespace onelane {
namespace {

struct Mini {
  Tokenizer tokenizer;
  std::unique_ptr<Model> model;
};

Mini load_mini(const std::string& name) {
  const std::string dir = repository_path("models/" + name);
  auto tokenizer = Tokenizer::load(dir + "/tokenizer.json").value();
  auto map = compressed_token_map(tokenizer).value();
  auto model = Model::load(dir, std::move(map.number), testing::model_kernels()).value();
  return {std::move(tokenizer), std::move(model)};
}

class MiniModel : public ::testing::TestWithParam<const char*> {
 protected:
  std::string name() const { return std::string("mini-") + GetParam(); }
  Vectors oracle() const {
    return Vectors(repository_path("tests/data/mini_" + std::string(GetParam()) + "_logits.safetensors"));
  }
  // Logits of the first `count` oracle positions, compared row by row as they come.
  void compare(Kernels& kernels, int count);

  Mini mini_ = load_mini(name());
};

void MiniModel::compare(Kernels& kernels, int count) {
  const Vectors golden = oracle();
  const auto tokens = golden.get<int32_t>("token_ids");
  const auto argmax = golden.get<int32_t>("argmax");
  const auto best = golden.floats("max_logit");
  const auto second = golden.floats("runner_up_logit");
  const auto top_ids = golden.get<int32_t>("top_ids");
  const auto top_logits = golden.floats("top_logits");
  const auto rms = golden.floats("logit_rms");
  const auto sampled = golden.get<int32_t>("sample_positions");
  const auto sample_logits = golden.floats("sample_logits");
  const auto vocab = static_cast<size_t>(mini_.model->spec.vocab);
  const size_t tops = top_ids.size() / argmax.size();

  int equal = 0;
  std::vector<double> errors;      // of sampled rows, relative to the row's rms
  std::vector<double> top_errors;  // of the best eight logits of every row, likewise
  double widest_miss = 0;          // gap between best and second where the choice differs, likewise
  auto session = Session::create(*mini_.model, kernels, {.max_tokens = count + 1, .draft = false});
  ASSERT_TRUE(session);
  ASSERT_TRUE((*session)->append_rows(
      std::span(tokens).first(static_cast<size_t>(count)), [&](int row, std::span<const float> logits) {
        const auto at = static_cast<size_t>(row);
        const auto choice = std::max_element(logits.begin(), logits.end()) - logits.begin();
        if (choice == argmax[at]) {
          ++equal;
        } else {
          widest_miss = std::max<double>(widest_miss, (best[at] - second[at]) / rms[at]);
        }
        double sum = 0;
        for (size_t i = 0; i < tops; ++i) {
          const double difference = logits[static_cast<size_t>(top_ids[at * tops + i])] - top_logits[at * tops + i];
          sum += difference * difference;
        }
        top_errors.push_back(std::sqrt(sum / static_cast<double>(tops)) / rms[at]);
        const auto sample = std::find(sampled.begin(), sampled.end(), row) - sampled.begin();
        if (sample < static_cast<ptrdiff_t>(sampled.size())) {
          const auto expected = std::span(sample_logits).subspan(static_cast<size_t>(sample) * vocab, vocab);
          errors.push_back(rms_difference(logits, expected) / rms[at]);
        }
      }));
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum / static_cast<double>(values.size()));
  };
  std::printf("%s on %s: argmax equal %d of %d, relative rms %.4f (%zu rows), of the top %zu %.4f, widest miss %.4f\n",
              name().c_str(), std::string(kernels.name()).c_str(), equal, count, mean(errors), errors.size(), tops,
              mean(top_errors), widest_miss);
  // A GPU rounds probabilities against another maximum, in every row of every layer (docs/step.md).
  const bool gpu = kernels.name() == "cuda";
  EXPECT_GE(equal, static_cast<int>(std::ceil((gpu ? 0.9 : 0.995) * count)));
  EXPECT_LT(mean(errors), gpu ? 8e-2 : 2e-2);
  EXPECT_LT(mean(top_errors), gpu ? 8e-2 : 2e-2);
  EXPECT_LT(widest_miss, gpu ? 0.4 : 2e-2) << "a choice may differ at near-ties only";
}

TEST_P(MiniModel, LogitsEqualTheOracles) { compare(*testing::make_test_kernels(0), kSanitized ? 300 : 2000); }

TEST_P(MiniModel, ReferenceLogitsEqualTheOracles) {
  if (testing::model_kernels() != nullptr) GTEST_SKIP() << "the weights are on a device";
  compare(*make_reference_kernels(), kSanitized ? 64 : 200);
}

TEST_P(MiniModel, DraftsAndConfidencesEqualTheOracles) {
  const Vectors golden = oracle();
  const auto tokens = golden.get<int32_t>("token_ids");
  auto sampled = golden.get<int32_t>("sample_positions");
  if (kSanitized) sampled.resize(std::min<size_t>(sampled.size(), 8));
  const auto drafts = golden.get<int32_t>("draft_ids");
  const auto confidence = golden.floats("draft_confidence");
  const auto kernels = testing::make_test_kernels(0);
  auto session = Session::create(*mini_.model, *kernels, {.max_tokens = 2100});
  ASSERT_TRUE(session);
  int equal = 0;
  double squares = 0;
  int compared = 0;
  size_t done = 0;
  for (size_t sample = 0; sample < sampled.size(); ++sample) {
    const auto end = static_cast<size_t>(sampled[sample]) + 1;
    ASSERT_TRUE((*session)->append(std::span(tokens).subspan(done, end - done)));
    done = end;
    const auto block = (*session)->draft(tokens[end], 5);
    ASSERT_TRUE(block);
    bool same = true;
    for (size_t i = 0; i < 5; ++i) {
      // Behind a draft that differs the Markov bias is another, and so is everything after it.
      if (same) {
        const double difference = (*block)[i].confidence - confidence[sample * 5 + i];
        squares += difference * difference;
        ++compared;
      }
      same = same && (*block)[i].token == drafts[sample * 5 + i];
      equal += same;
    }
  }
  const auto total = static_cast<int>(sampled.size() * 5);
  const double rms = std::sqrt(squares / compared);
  std::printf("%s: %d of %d drafts equal, confidence rms difference %.4f\n", name().c_str(), equal, total, rms);
  const bool gpu = kernels->name() == "cuda";  // as above; a drafter is less sure of itself than its model
  EXPECT_GE(equal, total * (gpu ? 60 : 97) / 100);
  EXPECT_LT(rms, gpu ? 0.2 : 5e-2);
}

TEST_P(MiniModel, SpeculationChangesNothingOnText) {
  const auto kernels = testing::make_test_kernels(0);
  for (const std::string prompt : {"def read_lines(path):\n", "The function returns", "for f in *.txt; do"}) {
    auto ids = mini_.tokenizer.encode("<｜begin▁of▁sentence｜>" + prompt);
    ASSERT_TRUE(ids);
    std::vector<int32_t> plain;
    for (const int depth : {0, 1, 3, 5}) {
      auto session = Session::create(*mini_.model, *kernels, {.max_tokens = 512});
      ASSERT_TRUE(session);
      const auto result =
          generate(**session, *ids, {.max_tokens = 80, .sampling = {.temperature = 0}, .draft_depth = depth},
                   mini_.model->spec.tokens.eos);
      ASSERT_TRUE(result);
      if (depth == 0) plain = result->tokens;
      EXPECT_EQ(result->tokens, plain) << prompt << " depth " << depth;
    }
  }
}

TEST_P(MiniModel, AddsInThinkingMode) {
  const PromptFormat& format = std::string_view(GetParam()) == "v4" ? kPromptFormatV4 : kPromptFormatV41;
  const auto kernels = testing::make_test_kernels(0);
  const auto prompt = encode_prompt(R"({"messages": [{"role": "user", "content": "Add 345 and 678."}]})", format);
  ASSERT_TRUE(prompt);
  auto ids = mini_.tokenizer.encode(prompt->text);
  ASSERT_TRUE(ids);
  auto session = Session::create(*mini_.model, *kernels, {.max_tokens = 1024});
  ASSERT_TRUE(session);
  const auto result =
      generate(**session, *ids, {.max_tokens = 300, .sampling = {.temperature = 0}}, mini_.model->spec.tokens.eos);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->reason, FinishReason::kStop);
  EXPECT_THAT(mini_.tokenizer.decode(result->tokens), ::testing::HasSubstr("1023"));
}

INSTANTIATE_TEST_SUITE_P(Minis, MiniModel, ::testing::Values("v41", "v4"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace onelane
