// A request's tokens do not depend on what runs beside it, on drafts, chunks, cache hits or being put aside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine_support.h"
#include "support/gpu.h"

namespace onelane {
namespace {

constexpr int kTokens = 12;

// Requests and the tokens that plain decoding, alone, gives for them. Half are sampled.
struct Questions {
  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> expected;
};

class SameTokens : public ::testing::TestWithParam<const char*> {
 protected:
  struct World {
    std::unique_ptr<Model> model;
    std::unique_ptr<Kernels> kernels = testing::make_test_kernels(1);
    Questions questions;
  };
  static World& world(const std::string& generation) {
    // Kept to the end of the process: after main() the device is gone, and nothing there can be freed.
    static auto& worlds = *new std::map<std::string, World>;
    World& world = worlds[generation];
    if (world.model) return world;
    world.model = load_tiny_model(generation);
    const std::vector<int> lengths = {3, 121, 127, 129, 1, 128, 140, 257};
    for (size_t i = 0; i < lengths.size(); ++i) {
      const auto prompt = random_prompt(lengths[i], static_cast<unsigned>(i));
      world.questions.requests.push_back(i % 2 == 0 ? greedy(prompt, kTokens) : sampled(prompt, kTokens, i));
      const SamplingParams& sampling = world.questions.requests.back().sampling;
      world.questions.expected.push_back(session_tokens(*world.model, prompt, kTokens, sampling));
    }
    return world;
  }
  World& world() { return world(GetParam()); }

  EngineOptions options(int sequences, int step_rows) {
    EngineOptions options = small_options();
    options.max_sequences = sequences;
    options.step_rows = std::max(step_rows, sequences);
    options.max_model_len = 512;
    options.draft_schedule = *DraftSchedule::parse("64:5");
    return options;
  }

  // The first `count` requests at once, request i with (depth + i) % 6 drafts, or `depth` for all.
  std::vector<Answer> ask(TestEngine& engine, int depth, bool mixed = true, size_t count = 8) {
    std::vector<Request> requests = world().questions.requests;
    requests.resize(count);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].draft_depth = mixed ? (depth + static_cast<int>(i)) % 6 : depth;
    }
    auto answers = engine.run_all(std::move(requests));
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, world().questions.expected[i]) << "request " << i << " of depth " << depth;
      EXPECT_EQ(answers[i].finish, FinishReason::kLength) << answers[i].error;
      EXPECT_EQ(answers[i].last_events, 1);
    }
    return answers;
  }
};

TEST_P(SameTokens, AtEveryDepthAlone) {
  EngineOptions alone = options(1, 48);
  alone.prefix_cache = false;
  TestEngine engine(*world().model, *world().kernels, alone);
  for (int depth = 0; depth <= 5; ++depth) ask(engine, depth, false, 4);
}

TEST_P(SameTokens, InCompanyAndInChunksOfAnySize) {
  for (const auto& [sequences, rows] : {std::pair{3, 7}, {16, 50}}) {
    EngineOptions plain = options(sequences, rows);
    plain.prefix_cache = false;
    TestEngine engine(*world().model, *world().kernels, plain);
    ask(engine, sequences + rows);
    EXPECT_EQ(engine.settled().pages_used, 0);
  }
}

TEST_P(SameTokens, AfterCacheHits) {
  const KvStore probe(world().model->spec, 1, 0);
  for (const int sequences : {1, 16}) {
    EngineOptions roomy = options(sequences, 48);
    roomy.kv_bytes = static_cast<int64_t>(probe.page_bytes()) * 48;
    TestEngine engine(*world().model, *world().kernels, roomy);
    ask(engine, 0);
    const auto again = ask(engine, 3);
    for (size_t i = 0; i < again.size(); ++i) {
      const int prompt = static_cast<int>(world().questions.requests[i].prompt.size());
      EXPECT_EQ(again[i].stats.cached_tokens, (prompt - 1) / kPageTokens * kPageTokens) << prompt;
    }
    engine->reset_prefix_cache();
    for (const Answer& answer : ask(engine, 5, true, 4)) EXPECT_EQ(answer.stats.cached_tokens, 0);
  }
}

TEST_P(SameTokens, WhenPutAsideAndBroughtBack) {
  // Five that begin below a page boundary and cross it together, in a pool of five pages.
  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> expected;
  for (unsigned i = 0; i < 5; ++i) {
    requests.push_back(greedy(random_prompt(118 + static_cast<int>(i), 50 + i), 20));
    expected.push_back(session_tokens(*world().model, requests.back().prompt, 20));
  }
  const KvStore probe(world().model->spec, 1, 0);
  for (const bool cache : {false, true}) {
    EngineOptions tight = options(6, 48);
    tight.prefix_cache = cache;
    tight.kv_bytes = static_cast<int64_t>(probe.page_bytes()) * 5;
    TestEngine engine(*world().model, *world().kernels, tight);
    const auto answers = engine.run_all(requests);
    int preemptions = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, expected[i]) << i;
      preemptions += answers[i].stats.preemptions;
    }
    EXPECT_GT(preemptions, 0);
    const EngineStats stats = engine.settled();
    EXPECT_EQ(stats.preemptions, static_cast<uint64_t>(preemptions));
    EXPECT_EQ(stats.pages_used, 0);
    EXPECT_EQ(stats.host_kv_bytes, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Generations, SameTokens, ::testing::Values("v4", "v41"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace onelane
