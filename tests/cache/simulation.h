// A cache over a store whose "model" only writes recognisable bytes: a page holds noise seeded by its whole prefix, a
// slot noise seeded by the boundary it stands at. So every hit can be checked byte by byte without a forward pass.
#pragma once

#include <cstring>

#include "cache/page_key.h"
#include "cache/slot_state.h"
#include "serving.h"

namespace onelane {

// A sequence that has run and still holds its pages.
struct Held {
  std::vector<int32_t> tokens;
  std::vector<int> pages;
  int cached = 0;
  std::vector<int> checkpoints;  // boundaries where one was taken
};

class Simulation {
 public:
  static constexpr int kSlots = 3;

  Simulation(const ModelSpec& spec, int pages) : store_(spec, kSlots, pages), pool_(pages) {}

  // Ends the present cache, if any, and starts another over the same pool.
  Result<void> open(PrefixCacheOptions options) {
    cache_ = nullptr;
    if (options.model_id.empty()) options.model_id = "simulated";
    ONELANE_ASSIGN(cache_, PrefixCache::create(store_, pool_, std::move(options)));
    return {};
  }
  void close() { cache_ = nullptr; }

  PrefixCache& cache() { return *cache_; }
  PagePool& pool() { return pool_; }
  int64_t page_bytes() const { return static_cast<int64_t>(store_.page_bytes()); }
  int64_t state_bytes() const { return static_cast<int64_t>(slot_state_bytes(store_)); }

  // Attaches and checks what came.
  Held attach(std::span<const int32_t> tokens, int slot) {
    PrefixHit hit = cache_->attach(tokens, slot);
    EXPECT_LT(hit.tokens, std::max<int>(1, static_cast<int>(tokens.size())));
    EXPECT_EQ(hit.tokens, static_cast<int>(hit.pages.size()) * kPageTokens);
    PageKey key;
    for (size_t i = 0; i < hit.pages.size(); ++i) {
      key = page_key(key, tokens.subspan(i * kPageTokens, kPageTokens));
      EXPECT_GT(pool_.references(hit.pages[i]), 1);
      EXPECT_TRUE(is_noise(store_.page(hit.pages[i]), key.low)) << "page " << i << " of a hit of " << hit.tokens;
    }
    if (hit.tokens > 0) {
      std::vector<std::byte> state(slot_state_bytes(store_));
      save_slot(store_, slot, state);
      EXPECT_TRUE(is_noise(state, key.high)) << "the slot after a hit of " << hit.tokens;
    }
    return {{tokens.begin(), tokens.end()}, std::move(hit.pages), hit.tokens, {}};
  }

  // A whole request. Nothing, with all pages given back, when the pool is too small for it.
  std::optional<Held> run(std::span<const int32_t> tokens, int slot = 0) {
    Held held = attach(tokens, slot);
    const auto full = tokens.size() / kPageTokens;
    while (held.pages.size() < full) {
      if (pool_.free() == 0) cache_->reclaim(static_cast<int>(full - held.pages.size()));
      const auto page = pool_.take();
      if (!page) return release(held), std::nullopt;
      held.pages.push_back(*page);
    }
    int boundary = cache_->next_checkpoint(tokens, held.cached);
    PageKey key;
    for (size_t i = 0; i < full; ++i) {
      key = page_key(key, tokens.subspan(i * kPageTokens, kPageTokens));
      const auto end = static_cast<int>(i + 1) * kPageTokens;
      if (end <= held.cached) continue;
      fill_noise(store_.page(held.pages[i]), key.low);
      if (end != boundary) continue;
      std::vector<std::byte> state(slot_state_bytes(store_));
      fill_noise(state, key.high);
      load_slot(store_, slot, state);
      const auto prefix = tokens.first(static_cast<size_t>(end));
      cache_->insert(prefix, held.pages);
      cache_->checkpoint(prefix, slot);
      held.checkpoints.push_back(end);
      boundary = cache_->next_checkpoint(tokens, end);
      EXPECT_TRUE(boundary == 0 || boundary > end);
    }
    cache_->insert(tokens, held.pages);
    return held;
  }
  // The same, giving everything back; returns how many tokens were cached, -1 when it did not fit.
  int run_and_release(std::span<const int32_t> tokens, int slot = 0) {
    auto held = run(tokens, slot);
    if (!held) return -1;
    release(*held);
    return held->cached;
  }

  void release(Held& held) {
    for (const int page : held.pages) pool_.release(page);
    held.pages.clear();
  }

 private:
  static uint64_t next(uint64_t& state) {
    state += 0x9e3779b97f4a7c15;
    uint64_t mixed = (state ^ (state >> 32)) * 0xd6e8feb86659fd93;
    return mixed ^ (mixed >> 32);
  }
  static void fill_noise(std::span<std::byte> bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes.size(); i += 8) {
      const uint64_t value = next(seed);
      std::memcpy(bytes.data() + i, &value, std::min<size_t>(8, bytes.size() - i));
    }
  }
  static bool is_noise(std::span<const std::byte> bytes, uint64_t seed) {
    std::vector<std::byte> expected(bytes.size());
    fill_noise(expected, seed);
    return std::ranges::equal(bytes, expected);
  }

  KvStore store_;
  PagePool pool_;
  std::unique_ptr<PrefixCache> cache_;
};

inline const ModelSpec& simulated_spec() {
  static const ModelSpec spec = [] {
    const auto model = load_tiny_model("v41");
    return model ? model->spec : ModelSpec{};
  }();
  return spec;
}

}  // namespace onelane
