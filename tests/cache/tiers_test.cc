// The tiers without a forward pass: every hit's bytes are checked against what its prefix must have left.
#include <map>
#include <set>

#include <rapidcheck.h>

#include "simulation.h"

namespace onelane {
namespace {

constexpr int64_t kAmple = int64_t{1} << 30;

TEST(Tiers, Complaint28_ShortPromptsHitAndSoDoThoseAround4096) {
  for (const int length : {100, 128, 129, 1000, 2000, 4095, 4096, 4097}) {
    Simulation simulation(simulated_spec(), 40);
    ASSERT_TRUE(simulation.open({.checkpoint_bytes = kAmple}));
    const auto prompt = random_tokens(length, 1);
    EXPECT_EQ(simulation.run_and_release(prompt), 0) << length;
    EXPECT_EQ(simulation.run_and_release(prompt, 1), (length - 1) / kPageTokens * kPageTokens) << length;
  }
}

TEST(Tiers, CheckpointsStandEveryFewPagesAtTheEndAndWhereAPathIsLeft) {
  Simulation simulation(simulated_spec(), 40);
  ASSERT_TRUE(simulation.open({.checkpoint_bytes = kAmple, .checkpoint_every = 4}));
  PrefixCache& cache = simulation.cache();
  const auto prompt = random_tokens(10 * 128 + 1, 1);
  std::vector<int> boundaries;
  for (int at = 0; (at = cache.next_checkpoint(prompt, at)) != 0;) boundaries.push_back(at / kPageTokens);
  EXPECT_EQ(boundaries, (std::vector{4, 8, 10}));
  EXPECT_EQ(cache.next_checkpoint({}, 0), 0);
  EXPECT_EQ(cache.next_checkpoint(std::span(prompt).first(128), 0), 0);  // a hit leaves a token to compute
  simulation.run_and_release(prompt);
  const auto other = std::span(prompt).first(7 * 128) + random_tokens(3 * 128, 2);
  EXPECT_EQ(simulation.attach(other, 0).cached, 4 * 128);
  EXPECT_EQ(cache.next_checkpoint(other, 4 * 128), 7 * 128);
}

TEST(Tiers, ASupersededCheckpointGoesBeforeTheEndOfAnOlderPrompt) {
  Simulation simulation(simulated_spec(), 40);
  ASSERT_TRUE(simulation.open({.checkpoint_bytes = 2 * simulation.state_bytes(), .checkpoint_every = 4}));
  const auto old = random_tokens(3 * 128 + 1, 1);
  const auto lengthy = random_tokens(12 * 128 + 1, 2);
  simulation.run_and_release(old);
  simulation.run_and_release(lengthy);
  EXPECT_EQ(simulation.cache().stats().checkpoints, 2);
  EXPECT_EQ(simulation.run_and_release(old), 3 * 128);
  EXPECT_EQ(simulation.run_and_release(lengthy), 12 * 128);
}

TEST(Tiers, AHitIsNeverLongerThanThePoolHasRoomFor) {
  Simulation simulation(simulated_spec(), 10);
  ASSERT_TRUE(simulation.open({.checkpoint_bytes = kAmple, .host_bytes = kAmple, .checkpoint_every = 2}));
  const auto prompt = random_tokens(8 * 128 + 1, 1);
  simulation.run_and_release(prompt);
  EXPECT_EQ(simulation.cache().reclaim(8), 8);
  std::vector<int> taken;
  for (int i = 0; i < 5; ++i) taken.push_back(*simulation.pool().take());
  Held held = simulation.attach(prompt, 0);
  EXPECT_EQ(held.cached, 4 * 128);
  simulation.release(held);
  for (const int page : taken) simulation.pool().release(page);
  held = simulation.attach(prompt, 0);
  EXPECT_EQ(held.cached, 8 * 128);
  EXPECT_EQ(simulation.cache().reclaim(8), 0);  // a sequence uses them all
  simulation.release(held);
  simulation.close();
  EXPECT_EQ(simulation.pool().free(), 10);
}

TEST(Tiers, PagesThatASequenceUsesStayWhenEverythingIsForgotten) {
  Simulation simulation(simulated_spec(), 10);
  ASSERT_TRUE(simulation.open({.checkpoint_bytes = kAmple}));
  auto held = simulation.run(random_tokens(300, 1));
  ASSERT_TRUE(held);
  simulation.cache().clear();
  EXPECT_EQ(simulation.cache().stats().pages, 0);
  EXPECT_EQ(simulation.pool().free(), 8);
  EXPECT_EQ(simulation.attach(held->tokens, 1).cached, 0);
  simulation.release(*held);
  EXPECT_EQ(simulation.pool().free(), 10);
}

TEST(SlotState, ASpilledSequenceComesBackIntoOtherPagesAndAnotherSlot) {
  for (const char* generation : {"v4", "v41"}) {
    const auto model = load_tiny_model(generation);
    KvStore store(model->spec, 3, 6);
    std::vector<std::byte> state(slot_state_bytes(store), std::byte{0xff});  // unwritten state is copied as it is
    state[0] = std::byte{1};
    state.back() = std::byte{2};
    load_slot(store, 2, state);
    std::ranges::fill(store.page(4), std::byte{3});
    std::ranges::fill(store.page(1), std::byte{4});
    const SpilledSequence spilled(store, 2, std::vector{4, 1});
    EXPECT_EQ(spilled.bytes(), state.size() + 2 * store.page_bytes());
    for (int page = 0; page < 6; ++page) std::ranges::fill(store.page(page), std::byte{9});
    load_slot(store, 2, std::vector<std::byte>(state.size()));

    spilled.restore(store, 0, std::vector{5, 0});
    std::vector<std::byte> back(state.size());
    save_slot(store, 0, back);
    EXPECT_TRUE(back == state);
    EXPECT_TRUE(std::ranges::all_of(store.page(5), [](std::byte b) { return b == std::byte{3}; }));
    EXPECT_TRUE(std::ranges::all_of(store.page(0), [](std::byte b) { return b == std::byte{4}; }));
    EXPECT_TRUE(std::ranges::all_of(store.page(4), [](std::byte b) { return b == std::byte{9}; }));
    save_slot(store, 1, back);  // the neighbour saw nothing
    EXPECT_FALSE(back == state);
  }
}

// -- random operations against a naive model

// Prompts over an alphabet of few pages, so that they share prefixes.
std::vector<int32_t> random_prompt() {
  const auto letters = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 3));
  std::vector<int32_t> prompt;
  for (size_t i = 0; i < std::min<size_t>(letters.size(), 7); ++i) {
    const auto page = random_tokens(kPageTokens, static_cast<unsigned>(letters[i]));
    prompt.insert(prompt.end(), page.begin(), page.end());
  }
  const auto tail = random_tokens(*rc::gen::inRange(1, 128), 9);
  prompt.insert(prompt.end(), tail.begin(), tail.end());
  return prompt;
}

struct Budgets {
  PrefixCacheOptions options;
  int pages = 16;
  bool nothing_is_lost = false;
};

void random_operations(const Budgets& budgets) {
  Simulation simulation(simulated_spec(), budgets.pages);
  const bool disk = !budgets.options.disk_dir.empty();
  if (disk) std::filesystem::remove_all(budgets.options.disk_dir);
  RC_ASSERT(simulation.open(budgets.options).has_value());
  std::vector<Held> held;
  std::set<std::vector<int32_t>> checkpointed;  // every prefix a checkpoint was ever taken of
  const int steps = *rc::gen::inRange(1, kSanitized ? 15 : 40);
  for (int i = 0; i < steps; ++i) {
    const int what = *rc::gen::inRange(0, 12);
    if (what < 6) {
      const auto prompt = random_prompt();
      int longest = 0;
      for (int end = 128; end < static_cast<int>(prompt.size()); end += 128) {
        if (checkpointed.contains({prompt.begin(), prompt.begin() + end})) longest = end;
      }
      if (auto sequence = simulation.run(prompt, i % Simulation::kSlots)) {
        RC_ASSERT(sequence->cached == 0 || checkpointed.contains({prompt.begin(), prompt.begin() + sequence->cached}));
        if (budgets.nothing_is_lost) RC_ASSERT(sequence->cached == longest);
        for (const int end : sequence->checkpoints) checkpointed.insert({prompt.begin(), prompt.begin() + end});
        held.push_back(*std::move(sequence));
      } else {
        RC_ASSERT(!budgets.nothing_is_lost);
      }
    } else if (what < 9 && !held.empty()) {
      const auto which = static_cast<size_t>(*rc::gen::inRange(0, static_cast<int>(held.size())));
      simulation.release(held[which]);
      held.erase(held.begin() + static_cast<int64_t>(which));
    } else if (what == 9) {
      const int freed = simulation.cache().reclaim(*rc::gen::inRange(0, 8));
      RC_ASSERT(freed <= simulation.pool().free());
    } else if (what == 10 && disk) {
      simulation.close();
      RC_ASSERT(simulation.open(budgets.options).has_value());
      RC_ASSERT(simulation.cache().stats().dropped_blobs == 0u);
    } else if (what == 11 && *rc::gen::inRange(0, 4) == 0) {
      simulation.cache().clear();
      checkpointed.clear();
    }
    // No page is lost and none counted twice; no tier is over its budget.
    const PrefixCacheStats stats = simulation.cache().stats();
    std::set<int> used;
    int references = 0;
    for (const Held& sequence : held) {
      used.insert(sequence.pages.begin(), sequence.pages.end());
      references += static_cast<int>(sequence.pages.size());
    }
    int counted = 0;
    for (int page = 0; page < budgets.pages; ++page) counted += simulation.pool().references(page);
    RC_ASSERT(counted == references + stats.pages);
    RC_ASSERT(simulation.pool().free() <= budgets.pages - std::max(stats.pages, static_cast<int>(used.size())));
    RC_ASSERT(stats.checkpoints * simulation.state_bytes() <= budgets.options.checkpoint_bytes);
    RC_ASSERT(stats.host_bytes <= budgets.options.host_bytes);
    RC_ASSERT(stats.disk_bytes <= budgets.options.disk_bytes);
  }
  for (Held& sequence : held) simulation.release(sequence);
  simulation.cache().flush();
  simulation.cache().reclaim(budgets.pages);
  RC_ASSERT(simulation.pool().free() == budgets.pages);
  // What is in no tier is not remembered either, except a page that a checkpoint behind it waits for.
  const PrefixCacheStats stats = simulation.cache().stats();
  const int64_t checkpoints = stats.checkpoints + (stats.host_bytes + stats.disk_bytes) / simulation.state_bytes();
  const int64_t pages = (stats.host_bytes + stats.disk_bytes) / simulation.page_bytes();
  RC_ASSERT(stats.known_pages <= pages + 7 * checkpoints);
}

void check_random_operations(const Budgets& budgets) {
  EXPECT_TRUE(rc::check([&] { random_operations(budgets); }));
}

TEST(TiersRandom, WithRoomEverythingIsFoundAgain) {
  Simulation sizes(simulated_spec(), 1);
  check_random_operations({.options = {.checkpoint_bytes = 3 * sizes.state_bytes(), .host_bytes = kAmple},
                           .pages = 400,
                           .nothing_is_lost = true});
}

TEST(TiersRandom, TightMemory) {
  Simulation sizes(simulated_spec(), 1);
  check_random_operations({.options = {.checkpoint_bytes = 2 * sizes.state_bytes(),
                                       .host_bytes = 2 * sizes.state_bytes() + 5 * sizes.page_bytes(),
                                       .checkpoint_every = 2}});
}

TEST(TiersRandom, TightMemoryAndDisk) {
  Simulation sizes(simulated_spec(), 1);
  const TempDir dir("tiers_random");
  check_random_operations({.options = {.checkpoint_bytes = sizes.state_bytes(),
                                       .host_bytes = sizes.state_bytes(),
                                       .disk_dir = dir.path(),
                                       .disk_bytes = 5 * sizes.state_bytes() + 12 * sizes.page_bytes(),
                                       .checkpoint_every = 2}});
}

}  // namespace
}  // namespace onelane
