// Answers do not depend on how they are computed: in one piece, in chunks, one token at a time, with neighbours, with
// more threads, after rejected drafts. Bit for bit. And deliberate faults must show.
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/generate.h"
#include "engine/session.h"
#include "model/forward.h"
#include "support/data.h"
#include "support/forwarding_kernels.h"
#include "support/tiny_model.h"

namespace onelane {
namespace {

// Past the window, several groups of 128, and selection (index_topk is 16).
constexpr int kLength = kSanitized ? 160 : 300;

std::vector<int32_t> random_tokens(int count, int vocab, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(4 + generator() % static_cast<unsigned>(vocab - 4)));
  return tokens;
}

// Logits of every position, the text appended in pieces of the given sizes (repeated).
std::vector<float> run(const Model& model, Kernels& kernels, std::span<const int32_t> tokens, std::vector<int> pieces,
                       int chunk = 512) {
  auto session = Session::create(model, kernels, {.max_tokens = 512, .chunk = chunk});
  EXPECT_TRUE(session);
  std::vector<float> logits;
  size_t done = 0;
  for (size_t i = 0; done < tokens.size(); ++i) {
    const size_t count = std::min(tokens.size() - done, static_cast<size_t>(pieces[i % pieces.size()]));
    EXPECT_TRUE((*session)->append_rows(tokens.subspan(done, count), [&](int, std::span<const float> row) {
      logits.insert(logits.end(), row.begin(), row.end());
    }));
    done += count;
  }
  return logits;
}

class Invariance : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    model_ = load_tiny_model(GetParam());
    ASSERT_NE(model_, nullptr);
    kernels_ = testing::make_test_kernels(2);
    tokens_ = random_tokens(kLength, model_->spec.vocab, 7);
  }
  std::unique_ptr<Model> model_;
  std::unique_ptr<Kernels> kernels_;
  std::vector<int32_t> tokens_;
};

TEST_P(Invariance, DecodeEqualsPrefillAtEveryPosition) {
  const auto whole = run(*model_, *kernels_, tokens_, {kLength});
  EXPECT_EQ(run(*model_, *kernels_, tokens_, {1}), whole);
}

TEST_P(Invariance, OddChunksEqualOneShot) {
  const auto whole = run(*model_, *kernels_, tokens_, {kLength});
  for (const auto& pieces : {std::vector{7}, {127, 1, 3}, {129}, {2, 5, 64, 31}, {130, 170}}) {
    EXPECT_EQ(run(*model_, *kernels_, tokens_, pieces), whole) << ::testing::PrintToString(pieces);
  }
  EXPECT_EQ(run(*model_, *kernels_, tokens_, {kLength}, /*chunk=*/37), whole);
}

TEST_P(Invariance, ThreadsChangeNothing) {
  const auto whole = run(*model_, *kernels_, tokens_, {kLength});
  for (const int threads : {1, 3}) {
    const auto other = testing::make_test_kernels(threads);
    EXPECT_EQ(run(*model_, *other, tokens_, {64}), whole) << threads;
  }
}

TEST_P(Invariance, ReferenceDecodeEqualsItsPrefill) {
  if (testing::model_kernels() != nullptr) GTEST_SKIP() << "the weights are on a device";
  const auto reference = make_reference_kernels();
  const auto tokens = std::span<const int32_t>(tokens_).first(140);
  EXPECT_EQ(run(*model_, *reference, tokens, {1}), run(*model_, *reference, tokens, {140}));
}

TEST_P(Invariance, NeighboursChangeNothing) {
  const auto alone = run(*model_, *kernels_, tokens_, {kLength});
  const auto vocab = static_cast<size_t>(model_->spec.vocab);
  constexpr int kSlots = 3;
  constexpr int kPages = 4;
  const auto other = random_tokens(2 * kLength, model_->spec.vocab, 8);
  KvStore store(model_->spec, kSlots, kSlots * kPages, kernels_->memory());
  ForwardPass forward(*model_, *kernels_, store, 256);
  // Pages of the three sequences interleaved.
  std::vector<int32_t> pages;
  for (int slot = 0; slot < kSlots; ++slot) {
    for (int page = 0; page < kPages; ++page) pages.push_back(page * kSlots + (kSlots - 1 - slot));
  }
  std::mt19937 generator(9);
  std::array<size_t, kSlots> done{};
  std::vector<float> logits;
  const auto text = [&](int slot) {
    return slot == 1 ? std::span<const int32_t>(tokens_) : std::span(other).subspan(slot == 0 ? 0 : kLength, kLength);
  };
  while (done[1] < kLength) {
    Step step;
    step.set_pages(pages.data(), kPages);
    std::vector<int32_t> rows;
    for (const int slot : {2, 1, 0}) {
      const size_t count = std::min<size_t>(generator() % 40, kLength - done[slot]);
      const size_t history = std::min<size_t>(done[slot], 3);
      if (slot == 1) {
        for (size_t i = 0; i < count; ++i) rows.push_back(step.count() + static_cast<int32_t>(i));
      }
      step.add(slot, static_cast<int>(done[slot]), text(slot).subspan(done[slot], count),
               text(slot).subspan(done[slot] - history, history));
      done[slot] += count;
    }
    if (step.count() == 0) continue;
    std::vector<float> part(rows.size() * vocab);
    forward.target(step, rows, part.data());
    logits.insert(logits.end(), part.begin(), part.end());
  }
  EXPECT_EQ(logits, alone);
}

TEST_P(Invariance, RejectedDraftsLeaveNoTrace) {
  const auto whole = run(*model_, *kernels_, tokens_, {kLength});
  const auto vocab = static_cast<size_t>(model_->spec.vocab);
  auto session = Session::create(*model_, *kernels_, {.max_tokens = 512});
  ASSERT_TRUE(session);
  const auto junk = random_tokens(5, model_->spec.vocab, 10);
  std::vector<float> logits;
  const auto keep = [&](int row, std::span<const float> values) {
    if (row == 0) logits.insert(logits.end(), values.begin(), values.end());
  };
  // Every step appends the right token and five wrong ones behind it, then takes the wrong ones back.
  for (int i = 0; i < kLength; ++i) {
    std::vector<int32_t> rows = {tokens_[static_cast<size_t>(i)]};
    rows.insert(rows.end(), junk.begin(), junk.end());
    ASSERT_TRUE((*session)->append_rows(rows, keep));
    (*session)->truncate(i + 1);
  }
  EXPECT_EQ(logits.size(), kLength * vocab);
  EXPECT_EQ(logits, whole);
}

TEST_P(Invariance, SpeculationEqualsPlainGreedyDecodingAtEveryDepth) {
  std::vector<int32_t> plain;
  for (int depth = 0; depth <= 5; ++depth) {
    auto session = Session::create(*model_, *kernels_, {.max_tokens = 512});
    ASSERT_TRUE(session);
    GenerateOptions options{.max_tokens = 60, .sampling = {.temperature = 0}, .ignore_eos = true, .draft_depth = depth};
    const auto result = generate(**session, std::span(tokens_).first(90), options, model_->spec.tokens.eos);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->tokens.size(), 60u);
    EXPECT_EQ((*session)->tokens().size(), 90u + 59u) << depth;
    if (depth == 0) plain = result->tokens;
    EXPECT_EQ(result->tokens, plain) << depth;
    EXPECT_EQ(result->stats.draft_blocks > 0, depth > 0);
  }
}

TEST_P(Invariance, FaultsChangeLogits) {
  if (testing::model_kernels() != nullptr) GTEST_SKIP() << "faults are made on the host";
  const auto right = run(*model_, *kernels_, tokens_, {kLength});
  std::vector<Fault> faults = {Fault::kTransposedComb, Fault::kNoInverseRope, Fault::kRopeTableA};
  if (model_->spec.generation == Generation::kV41) {
    faults.insert(faults.end(), {Fault::kOwnPre, Fault::kNormEps, Fault::kNoEngram});
  }
  for (const Fault fault : faults) {
    FaultyKernels faulty(*kernels_, fault, &model_->rope_window);
    const auto wrong = run(*model_, faulty, tokens_, {kLength});
    const double change = rms_difference(wrong, right) / rms_difference(right, std::vector<float>(right.size()));
    RecordProperty("fault_" + std::to_string(static_cast<int>(fault)), std::to_string(change));
    std::printf("fault %d changes logits by %.3f of their rms\n", static_cast<int>(fault), change);
    EXPECT_GT(change, fault == Fault::kNormEps ? 1e-3 : 5e-2) << static_cast<int>(fault);
  }
}

INSTANTIATE_TEST_SUITE_P(Generations, Invariance, ::testing::Values("v4", "v41"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace onelane
