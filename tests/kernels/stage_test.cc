// Every implementation against the reference, stage by stage, and against itself under other chunks, neighbours and
// thread counts. Add an implementation to candidates() and all of this runs on it.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "kernels/comparing_kernels.h"
#include "kernels/random_model.h"

namespace onelane::testing {
namespace {

struct Candidate {
  const char* name;
  std::unique_ptr<Kernels> (*make)(int threads);
  bool as_if_exact;  // between roundings, as the reference: results agree to the bit
};
std::vector<Candidate> candidates() {
  std::vector<Candidate> all = {{"cpu", make_cpu_kernels, true}};
  if (has_gpu()) all.push_back({"cuda", [](int) { return make_gpu_kernels(); }, false});
  return all;
}

class CandidateTest : public ::testing::TestWithParam<Candidate> {
 protected:
  std::unique_ptr<Kernels> make(int threads = 2) const { return GetParam().make(threads); }
  bool as_if_exact() const { return GetParam().as_if_exact; }
};
INSTANTIATE_TEST_SUITE_P(, CandidateTest, ::testing::ValuesIn(candidates()),
                         [](const auto& test) { return std::string(test.param.name); });

// -- schedules: who runs how many rows in each step
// ----------------------------------------------------------------------

struct Chunk {
  int slot, count;
};
using Schedule = std::vector<std::vector<Chunk>>;

constexpr int kLength[RandomModel::kSlots] = {262, 140, 9};

Schedule one_sequence_at_a_time() { return {{{0, kLength[0]}}, {{1, kLength[1]}}, {{2, kLength[2]}}}; }

// Runs of 1, 7 and 200, several sequences in a step and not in the order of their slots, single rows around the edge of
// the window (127, 128, 129) and around the end of the ring (134).
Schedule mixed() {
  return {{{1, 1}},         {{1, 7}, {0, 1}},  {{2, 1}, {0, 126}, {1, 119}},
          {{0, 1}},         {{1, 1}, {0, 1}},  {{0, 1}, {2, 7}},
          {{0, 3}, {1, 5}}, {{0, 1}},          {{0, 1}, {1, 7}},
          {{0, 1}},         {{2, 1}, {0, 64}}, {{0, 6}},
          {{0, 56}}};
}

// Every sequence decodes; the others are its neighbours only while they last.
Schedule one_row_at_a_time() {
  Schedule schedule;
  for (int position = 0; position < kLength[0]; ++position) {
    schedule.emplace_back();
    for (int slot = 0; slot < RandomModel::kSlots; ++slot) {
      if (position < kLength[slot]) schedule.back().push_back({slot, 1});
    }
  }
  return schedule;
}

Schedule chunks_of(int count) {
  Schedule schedule;
  for (int slot = 0; slot < RandomModel::kSlots; ++slot) {
    for (int done = 0; done < kLength[slot]; done += count) {
      schedule.push_back({{slot, std::min(count, kLength[slot] - done)}});
    }
  }
  return schedule;
}

void run(const RandomModel& model, Kernels& kernels, const Schedule& schedule, Trace* trace, bool draft = false) {
  ModelCaches caches = model.make_caches();
  int done[RandomModel::kSlots] = {};
  for (const std::vector<Chunk>& chunks : schedule) {
    Step step(RandomModel::kSlots, RandomModel::kPagesPerSlot);
    for (const Chunk& chunk : chunks) {
      step.run(done[chunk.slot], chunk.count, chunk.slot);
      done[chunk.slot] += chunk.count;
    }
    model.run(kernels, caches, step, trace, draft);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

Trace trace_of(const RandomModel& model, Kernels& kernels, const Schedule& schedule) {
  Trace trace;
  run(model, kernels, schedule, &trace);
  return trace;
}

// -- against the reference
// -----------------------------------------------------------------------------------------------

// `to_the_bit`: values must be equal. Where the exact result lies next to a rounding boundary, last bits of the double
// sums decide: one value in 10^5 may differ.
void compare_with_reference(Kernels& candidate, const ModelOptions& options, const Schedule& schedule,
                            bool to_the_bit) {
  const RandomModel model(options);
  const std::unique_ptr<Kernels> reference = make_reference_kernels();
  ComparingKernels both(*reference, candidate);
  run(model, both, schedule, nullptr, /*draft=*/true);
  // A choice is of discrete things by nearly continuous scores: few may fall the other way.
  EXPECT_LE(both.choices.differing, both.choices.made / (to_the_bit ? 100'000 : 100))
      << "of " << both.choices.made << " choices";
  if (!to_the_bit) return;
  for (const auto& [what, tally] : both.values_of) {
    EXPECT_LE(tally.differing, tally.made / 100'000) << what << ", of " << tally.made << " values";
  }
}

TEST_P(CandidateTest, AgreesWithTheReferenceOnV41) {
  compare_with_reference(*make(), {.v41 = true}, mixed(), as_if_exact());
}

TEST_P(CandidateTest, AgreesWithTheReferenceOnV4) {
  compare_with_reference(*make(), {.v41 = false}, mixed(), as_if_exact());
}

TEST_P(CandidateTest, AgreesWithTheReferenceOnHugeAndTinyStreams) {
  const Schedule schedule = {{{0, 70}}, {{1, 5}, {0, 60}}};
  for (const float scale : {1e12f, 1e-9f}) {
    SCOPED_TRACE(scale);
    compare_with_reference(*make(), {.v41 = true, .seed = 2, .embed_scale = scale}, schedule, as_if_exact());
    compare_with_reference(*make(), {.v41 = false, .seed = 2, .embed_scale = scale}, schedule, as_if_exact());
  }
}

TEST_P(CandidateTest, AgreesWithTheReferenceOnEveryNumberOfExperts) {
  const Schedule schedule = {{{0, 3}}, {{0, 40}, {1, 5}}};
  for (const int topk : {1, 3, 5}) {
    SCOPED_TRACE(topk);
    compare_with_reference(*make(), {.v41 = true, .seed = 3, .topk = topk, .normalise = topk > 1}, schedule,
                           as_if_exact());
    compare_with_reference(*make(), {.v41 = false, .seed = 4, .topk = topk}, schedule, as_if_exact());
  }
}

// -- the indexer, exact
// ---------------------------------------------------------------------------------------------------

// Given queries and weights, scores are exact, and so are picks and candidates. Ties are frequent: keys repeat.
TEST_P(CandidateTest, PicksAreExact) {
  constexpr int kHeads = 7;
  Random random(11);
  Step step(2, 3);
  step.run(0, 1, 1).run(317, 67, 0);
  const StepRows rows = step.rows();
  const Array<bf16> queries = random.bf16s(rows.count * kHeads * kIndexDim, 3);
  const Array<bf16> head_weights = random.bf16s(rows.count * kHeads);
  const std::unique_ptr<Kernels> reference = make_reference_kernels();
  const std::unique_ptr<Kernels> candidate = make();
  for (const int ratio : {1, 2, 4}) {
    const Pages keys(RecordFormat::kIndexMxfp4, step.pages(), ratio);
    std::vector<std::vector<float>> kinds;
    for (int i = 0; i < 40; ++i) kinds.push_back(random.floats(kIndexDim, std::ldexp(1.0f, i % 9 - 4)));
    kinds[7][100] = NAN;
    for (int entry = 0; entry < 384 / ratio; ++entry) keys.set(rows, 0, entry, kinds[entry * entry % 40]);
    keys.set(rows, 1, 0, kinds[1]);
    for (const auto mode :
         {IndexArgs::Candidates::kNone, IndexArgs::Candidates::kPublish, IndexArgs::Candidates::kApply}) {
      for (const int topk : {1, 20, 96, 500}) {
        Array<int32_t> picks[2] = {Array<int32_t>(rows.count * topk), Array<int32_t>(rows.count * topk)};
        Array<uint32_t> candidates[2] = {Array<uint32_t>(rows.count * 2, 0x55adb6f7u),
                                         Array<uint32_t>(rows.count * 2, 0x55adb6f7u)};
        for (int i = 0; i < 2; ++i) {
          (i == 0 ? *reference : *candidate)
              .index(rows, {.queries = queries.data(),
                            .head_weights = head_weights.data(),
                            .heads = kHeads,
                            .ratio = ratio,
                            .hadamard = ratio == 4,
                            .rope = &table_b(),
                            .keys = keys.cache,
                            .topk = topk,
                            .picks = picks[i].data(),
                            .mode = mode,
                            .topk_blocks = 9,
                            .block_size = 8,
                            .candidates = candidates[i].data(),
                            .candidate_words = 2});
        }
        EXPECT_EQ(picks[1].vector(), picks[0].vector()) << "ratio " << ratio << " topk " << topk;
        EXPECT_EQ(candidates[1].vector(), candidates[0].vector()) << "ratio " << ratio << " topk " << topk;
      }
    }
  }
}

// -- against itself
// ------------------------------------------------------------------------------------------------------

TEST_P(CandidateTest, BitsDoNotDependOnChunksOrNeighbours) {
  for (const bool v41 : {true, false}) {
    SCOPED_TRACE(v41 ? "V4.1" : "V4");
    const RandomModel model({.v41 = v41});
    const std::unique_ptr<Kernels> kernels = make(1);  // the number of threads is another test's subject
    const Trace whole = trace_of(model, *kernels, one_sequence_at_a_time());
    EXPECT_EQ(whole.size(), static_cast<size_t>(kLength[0] + kLength[1] + kLength[2]));
    EXPECT_EQ(first_difference(whole, trace_of(model, *kernels, mixed())), "");
    EXPECT_EQ(first_difference(whole, trace_of(model, *kernels, one_row_at_a_time())), "");
    for (const int count : {3, 7, 200}) {
      EXPECT_EQ(first_difference(whole, trace_of(model, *kernels, chunks_of(count))), "") << "chunks of " << count;
    }
  }
}

TEST_P(CandidateTest, BitsDoNotDependOnThreads) {
  for (const bool v41 : {true, false}) {
    SCOPED_TRACE(v41 ? "V4.1" : "V4");
    const RandomModel model({.v41 = v41, .seed = 5});
    const Trace one = trace_of(model, *make(1), mixed());
    for (const int threads : {2, 3, 8}) {
      EXPECT_EQ(first_difference(one, trace_of(model, *make(threads), mixed())), "") << threads << " threads";
    }
  }
}

TEST_P(CandidateTest, NanStaysInItsSequence) {
  for (const bool v41 : {true, false}) {
    SCOPED_TRACE(v41 ? "V4.1" : "V4");
    const RandomModel poisoned({.v41 = v41, .seed = 6, .nan_token = 17});
    const std::unique_ptr<Kernels> kernels = make();
    Trace clean = trace_of(poisoned, *kernels, {{{0, kLength[0]}}, {{2, kLength[2]}}});
    Trace beside = trace_of(poisoned, *kernels, mixed());
    // The poisoned row itself is not a number any more; its picks and experts still are choices, or the kernels would
    // have died of them.
    const std::vector<std::byte>& logits = beside.at({1, 3}).back().bytes;
    float confidence;
    std::memcpy(&confidence, logits.data(), sizeof(confidence));
    EXPECT_TRUE(std::isnan(confidence));
    std::erase_if(beside, [](const auto& item) { return item.first.first == 1; });
    EXPECT_EQ(first_difference(clean, beside), "");
  }
}

}  // namespace
}  // namespace onelane::testing
