// The engine on the trained mini model: real distributions, drafts that are accepted.
#include <array>
#include <cmath>
#include <cstdio>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"
#include "device/buffer.h"
#include "engine_support.h"
#include "support/forwarding_kernels.h"
#include "support/gpu.h"
#include "text/compressed_token_map.h"
#include "text/prompt_encoder.h"
#include "text/tokenizer.h"

namespace onelane {
namespace {

const std::string kMini = repository_path("models/mini-v41");

std::unique_ptr<Model> load_mini(const Tokenizer& tokenizer, const std::string& dir = kMini,
                                 Kernels* kernels = testing::model_kernels()) {
  return Model::load(dir, std::move(compressed_token_map(tokenizer).value().number), kernels).value();
}

TEST(EngineMini, StreamsSpeculateWithoutChangingATokenAndSamplingAcceptsToo) {
  const Tokenizer tokenizer = Tokenizer::load(kMini + "/tokenizer.json").value();
  const auto model = load_mini(tokenizer);
  const auto kernels = testing::make_test_kernels(1);

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

// Long answers, drafts accepted and not, on kernels that work beside the host: most steps are asked for ahead of what
// they follow from. What an answer leaves in the prefix cache, a page of it, is then continued: to
// the bit as without a cache.
TEST(EngineMini, StepsAheadFollowWhatTheDeviceAccepts) {
  constexpr int kTokens = 128, kMore = 6;
  for (const char* name : {"mini-v41", "mini-v4"}) {
    const std::string dir = repository_path(std::string("models/") + name);
    const Tokenizer tokenizer = Tokenizer::load(dir + "/tokenizer.json").value();
    const auto model = load_mini(tokenizer, dir);
    const auto kernels = testing::make_kernels_beside_host(0);
    const auto kernels_of_cold = testing::make_test_kernels(0);
    std::vector<Request> requests;
    std::vector<std::vector<int32_t>> expected;
    for (const char* text :
         {"int value = read(path);\nint other = ", "int value = read(path);", "for (int i = 0; i < "}) {
      auto prompt = tokenizer.encode(text).value();
      prompt.insert(prompt.begin(), model->spec.tokens.bos);
      requests.push_back(greedy(prompt, kTokens));
      expected.push_back(session_tokens(*model, prompt, kTokens + kMore));
    }
    for (const int depth : {0, 5}) {
      EngineOptions options = small_options();
      options.draft_schedule = *DraftSchedule::parse(format("64:{}", depth));
      TestEngine engine(*model, *kernels, options);
      options.prefix_cache = false;
      TestEngine cold(*model, *kernels_of_cold, options);
      std::vector<Answer> answers;
      for (const Request& request : requests) answers.push_back(engine.run(request));
      engine->reset_prefix_cache();
      for (const Answer& answer : engine.run_all(requests)) answers.push_back(answer);
      int accepted = 0;
      for (size_t i = 0; i < answers.size(); ++i) {
        const size_t question = i % requests.size();
        const auto end = expected[question].begin() + kTokens;
        EXPECT_EQ(answers[i].tokens, std::vector<int32_t>(expected[question].begin(), end))
            << name << ", " << depth << " drafts, answer " << i;
        accepted += answers[i].stats.accepted_tokens();
        Request more = greedy(requests[question].prompt, kMore);
        more.prompt.insert(more.prompt.end(), answers[i].tokens.begin(), answers[i].tokens.end());
        more.logprobs = 0;
        const Answer continued = engine.run(more);
        const Answer anew = cold.run(more);
        EXPECT_EQ(continued.tokens, std::vector<int32_t>(end, expected[question].end())) << name << ", answer " << i;
        EXPECT_EQ(continued.stats.cached_tokens, kPageTokens);
        for (size_t n = 0; n < kMore; ++n) EXPECT_EQ(continued.logprobs[n].logprob, anew.logprobs[n].logprob);
      }
      EXPECT_EQ(accepted > kTokens / 2, depth > 0) << accepted;
      const EngineStats stats = engine.settled();
      EXPECT_GT(2 * stats.steps_ahead, stats.steps) << name << ", " << depth << " drafts";
      std::printf("%s, %d drafts: %d of %d steps ahead, %d drafts accepted\n", name, depth,
                  static_cast<int>(stats.steps_ahead), static_cast<int>(stats.steps), accepted);
    }
  }
}

// Texts of every class that the model was trained on: this repository's prose, code, shell and JSON, chats with and
// without thinking, sums, tool calls, facts to recall. Some are longer than a page.
std::vector<std::string> texts_of_all_classes(int count) {
  const auto file = [](const char* path) { return read_file(repository_path(path)).value(); };
  const std::vector<std::string> natural = {file("docs/model.md"),
                                            file("docs/serving.md"),
                                            file("src/model/forward.cc"),
                                            file("src/kernels/kernels.h"),
                                            file("test"),
                                            file("models/mini-v41/config.json")};
  const auto chat = [](const std::string& json) { return encode_prompt(json, kPromptFormatV41).value().text; };
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    const size_t length = i % 10 == 1 ? 450 : 60 + static_cast<size_t>(i) % 50;
    const std::string& source = natural[static_cast<size_t>(i) % natural.size()];
    const std::string passage = source.substr(static_cast<size_t>(i) * 41 % (source.size() / 2), length);
    switch (i % 10) {
      case 6:
        texts.push_back(
            chat(format(R"({{"messages": [{{"role": "user", "content": "Add {} and {}."}}]}})", 100 + i, 900 - i)));
        break;
      case 7:
        texts.push_back(chat(format(
            R"({{"messages": [{{"role": "user", "content": "Check the server. city: Oslo, id: {}."}}], "thinking_mode": "chat",
                "tools": [{{"type": "function", "function": {{"name": "check_server", "description": "Use this to check the server.",
                "parameters": {{"type": "object", "properties": {{"city": {{"type": "string"}}, "id": {{"type": "integer"}}}},
                "required": ["city", "id"]}}}}}}]}})",
            1000 + i)));
        break;
      case 8:
        texts.push_back(chat(format(
            R"({{"messages": [{{"role": "user", "content": "Hello, I am number {}!"}}], "thinking_mode": "chat"}})",
            i)));
        break;
      case 9:
        texts.push_back(std::string(kBosText) + format("The code of quiet river is {}.\n", 10000 + 7 * i) + passage +
                        "\nThe code of quiet river is");
        break;
      default:
        texts.push_back(std::string(kBosText) + passage);
    }
  }
  return texts;
}

struct Way {
  int depth;
  int sequences;
  int step_rows;
  bool twice;  // the second time the cache knows the prompts
};

TEST(EngineMini, TwoHundredPromptsGiveTheSameTokensEveryWay) {
  constexpr int kTokens = 6;
  const int count = kSanitized ? 10 : fences_on() ? 40 : 200;
  const Tokenizer tokenizer = Tokenizer::load(kMini + "/tokenizer.json").value();
  const auto model = load_mini(tokenizer);
  const auto kernels = testing::make_test_kernels(0);
  std::vector<Request> requests;
  for (const std::string& text : texts_of_all_classes(count)) {
    const auto ids = tokenizer.encode(text);
    ASSERT_TRUE(ids) << ids.error().message;
    requests.push_back(greedy(*ids, kTokens));
  }
  std::vector<Answer> expected;
  for (const Way& way : {Way{0, 1, 512, false},
                         {1, 3, 37, true},
                         {2, 16, 512, false},
                         {3, 1, 64, false},
                         {4, 3, 512, false},
                         {5, 16, 97, true}}) {
    EngineOptions options = small_options();
    options.max_sequences = way.sequences;
    options.step_rows = way.step_rows;
    options.prefix_cache = way.twice;
    options.kv_bytes = int64_t{256} << 20;
    options.checkpoint_bytes = int64_t{256} << 20;
    options.draft_schedule = *DraftSchedule::parse(format("64:{}", way.depth));
    TestEngine engine(*model, *kernels, options);
    for (int round = 0; round < (way.twice ? 2 : 1); ++round) {
      auto answers = engine.run_all(requests);
      if (expected.empty()) expected = answers;
      int different = 0;
      int cached = 0;
      int drafted = 0;
      for (size_t i = 0; i < answers.size(); ++i) {
        different += answers[i].tokens != expected[i].tokens;
        cached += answers[i].stats.cached_tokens;
        drafted += answers[i].stats.drafted_tokens;
      }
      EXPECT_EQ(different, 0) << "of " << count << " with " << way.depth << " drafts, " << way.sequences
                              << " at once, steps of " << way.step_rows << " rows, round " << round;
      EXPECT_EQ(drafted > 0, way.depth > 0);
      if (round == 1) {
        EXPECT_GT(cached, 10 * count);
      }
    }
  }
}

// The CPU's greedy answer, read by the GPU: at every token it would choose the same, but where the CPU itself all but
// tied.
TEST(EngineMini, TheGpuChoosesTheTokensOfTheCpuButAtNearTies) {
  if (!testing::has_gpu()) GTEST_SKIP() << "no GPU";
  constexpr int kTokens = 32;
  constexpr int kPrompts = 200;
  // The logits of the two differ by 0.2 rms, since the GPU rounds probabilities against another maximum; so a choice
  // between two that lie so close is not either's.
  constexpr float kNearTie = 1;  // nats
  for (const char* name : {"mini-v41", "mini-v4"}) {
    const std::string dir = repository_path(std::string("models/") + name);
    const Tokenizer tokenizer = Tokenizer::load(dir + "/tokenizer.json").value();
    const auto cpu = make_cpu_kernels(0);
    const auto gpu = testing::make_device_kernels();
    const auto cpu_model = load_mini(tokenizer, dir, cpu.get());
    const auto gpu_model = load_mini(tokenizer, dir, gpu.get());
    int tokens = 0;
    int ties = 0;
    std::array<int, 3> wider{};  // of those, by more than an eighth, a half, one nat
    double squares = 0;          // of differences of logits
    for (const std::string& text : texts_of_all_classes(kPrompts)) {
      std::vector<int32_t> prompt = tokenizer.encode(text).value();
      const int capacity = static_cast<int>(prompt.size()) + kTokens;
      auto on_cpu = Session::create(*cpu_model, *cpu, {.max_tokens = capacity}).value();
      auto on_gpu = Session::create(*gpu_model, *gpu, {.max_tokens = capacity}).value();
      for (int i = 0; i < kTokens; ++i) {
        const auto expected = on_cpu->append(prompt).value();
        const auto got = on_gpu->append(prompt).value();
        const int32_t best = best_token(expected).value();
        const int32_t chosen = best_token(got).value();
        for (size_t v = 0; v < expected.size(); ++v) squares += std::pow(expected[v] - got[v], 2);
        if (chosen != best) {
          const float gap = expected[static_cast<size_t>(best)] - expected[static_cast<size_t>(chosen)];
          ++ties;
          wider[0] += gap > 0.125f;
          wider[1] += gap > 0.5f;
          wider[2] += gap > kNearTie;
        }
        ++tokens;
        prompt = {best};
      }
    }
    std::printf(
        "%s: %d of %d tokens differ, %d where the CPU's lead was above 0.125 nat, %d above 0.5, %d above 1; "
        "logits by %.4f rms\n",
        name, ties, tokens, wider[0], wider[1], wider[2], std::sqrt(squares / tokens / cpu_model->spec.vocab));
    EXPECT_LT(ties, tokens / 20) << name;
    EXPECT_LE(wider[2], tokens / 1000) << name;
  }
}

// One piece of a step runs as it is, is recorded and is repeated: the bits are the same.
TEST(EngineMini, RecordedStepsGiveTheBitsOfEagerOnes) {
  if (!testing::has_gpu()) GTEST_SKIP() << "no GPU";
  for (const char* name : {"mini-v41", "mini-v4"}) {
    const std::string dir = repository_path(std::string("models/") + name);
    const Tokenizer tokenizer = Tokenizer::load(dir + "/tokenizer.json").value();
    const auto gpu = testing::make_device_kernels();
    const auto model = load_mini(tokenizer, dir, gpu.get());
    ForwardingKernels eager(*gpu);  // which records nothing
    const std::string text = read_file(repository_path("docs/model.md")).value().substr(0, 3000);
    const std::vector<int32_t> tokens = tokenizer.encode(text).value();
    const auto run = [&](Kernels& kernels) {
      auto session = Session::create(*model, kernels, {.max_tokens = 4096, .chunk = 96}).value();
      std::vector<float> all;
      const auto keep = [&](int, std::span<const float> logits) {
        all.insert(all.end(), logits.begin(), logits.end());
      };
      const auto first = std::span(tokens).first(200);
      EXPECT_TRUE(session->append_rows(first, keep));
      for (size_t at = 200, count = 1; at + count <= 320; at += count, count = count % 6 + 1) {
        EXPECT_TRUE(session->append_rows(std::span(tokens).subspan(at, count), keep));
      }
      return all;
    };
    const std::vector<float> expected = run(eager);
    for (int round = 0; round < 3; ++round) EXPECT_EQ(run(*gpu), expected) << name << ", round " << round;
  }
}

}  // namespace
}  // namespace onelane
