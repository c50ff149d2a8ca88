// One tiny model served the way the engine does it, one request at a time: attach, prefill in chunks that end at
// checkpoints, insert, and page bookkeeping. What the cache tests run prompts on.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "cache/prefix_cache.h"
#include "model/forward.h"
#include "support/tiny_model.h"

namespace onelane {

inline std::vector<int32_t> random_tokens(int count, unsigned seed, int vocab = 256) {
  std::mt19937 generator(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(4 + generator() % static_cast<unsigned>(vocab - 4)));
  }
  return tokens;
}

inline std::vector<int32_t> operator+(std::span<const int32_t> a, std::span<const int32_t> b) {
  std::vector<int32_t> joined(a.begin(), a.end());
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

// A fresh directory of this process, removed with the object.
class TempDir {
 public:
  explicit TempDir(const std::string& name)
      : path_(::testing::TempDir() + "/onelane_" + name + "_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Answer {
  int cached = 0;
  std::vector<float> last;    // logits after the prompt
  std::vector<float> drafts;  // logits of a draft block behind it; empty without a drafter
};

class Serving {
 public:
  static constexpr int kSlots = 3;
  static constexpr int kChunk = 200;

  Serving(const Model& model, Kernels& kernels, int pages, PrefixCacheOptions options)
      : model_(model),
        store_(model.spec, kSlots, pages, kernels.memory()),
        forward_(model, kernels, store_, kChunk),
        pool_(pages) {
    auto cache = PrefixCache::create(store_, pool_, std::move(options));
    EXPECT_TRUE(cache) << (cache ? "" : cache.error().message);
    if (cache) cache_ = *std::move(cache);
  }

  PrefixCache& cache() { return *cache_; }
  PagePool& pool() { return pool_; }
  KvStore& store() { return store_; }

  // Computes `prompt` in `slot`, from the cache as far as it reaches, and gives everything back.
  Answer run(std::span<const int32_t> prompt, int slot = 0, bool use_cache = true) {
    PrefixHit hit = use_cache ? cache_->attach(prompt, slot) : PrefixHit{};
    EXPECT_EQ(hit.tokens, static_cast<int>(hit.pages.size()) * kPageTokens);
    EXPECT_LT(hit.tokens, static_cast<int>(prompt.size()));
    std::vector<int> pages = hit.pages;
    for (const int page : take_pages(pages_for(prompt) - static_cast<int>(pages.size()))) pages.push_back(page);
    const Answer answer = compute(prompt, slot, pages, hit.tokens, use_cache);
    for (const int page : pages) pool_.release(page);
    return answer;
  }

  // Room for the prompt and a draft block.
  static int pages_for(std::span<const int32_t> prompt) {
    return (static_cast<int>(prompt.size()) + 8 + kPageTokens - 1) / kPageTokens;
  }

  std::vector<int> take_pages(int count) {
    std::vector<int> pages;
    while (static_cast<int>(pages.size()) < count) {
      if (pool_.free() == 0) cache_->reclaim(1);
      const auto page = pool_.take();
      if (!page) {
        ADD_FAILURE() << "no page left";
        break;
      }
      std::ranges::fill(store_.page(*page), std::byte{0xee});  // what an earlier owner left must not matter
      pages.push_back(*page);
    }
    return pages;
  }

  // `prompt` from position `from` on, in `pages`; with the cache told about it if so wished.
  Answer compute(std::span<const int32_t> prompt, int slot, std::span<const int> pages, int from, bool use_cache) {
    const auto per_slot = static_cast<int>(pages.size());
    table_.assign(static_cast<size_t>(kSlots * per_slot), -1);
    std::ranges::copy(pages, table_.begin() + slot * per_slot);
    Answer answer{.cached = from};
    const auto size = static_cast<int>(prompt.size());
    for (int done = from; done < size;) {
      int end = std::min(size, done + kChunk);
      const int boundary = use_cache ? cache_->next_checkpoint(prompt, done) : 0;
      EXPECT_TRUE(boundary == 0 || (boundary > done && boundary <= size && boundary % kPageTokens == 0));
      if (boundary != 0) end = std::min(end, boundary);
      step(prompt, slot, done, end, per_slot, end == size ? &answer.last : nullptr);
      done = end;
      if (!use_cache) continue;
      cache_->insert(prompt.first(static_cast<size_t>(done)), pages);
      if (done == boundary) cache_->checkpoint(prompt.first(static_cast<size_t>(done)), slot);
    }
    if (model_.has_drafter()) answer.drafts = draft(slot, size, per_slot);
    return answer;
  }

 private:
  void step(std::span<const int32_t> prompt, int slot, int begin, int end, int need, std::vector<float>* logits) {
    step_.clear();
    step_.set_pages(table_.data(), need);
    const int history = std::min(begin, 8);
    step_.add(slot, begin, prompt.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
              prompt.subspan(static_cast<size_t>(begin - history), static_cast<size_t>(history)));
    const int32_t last_row = end - begin - 1;
    if (logits != nullptr) logits->resize(static_cast<size_t>(model_.spec.vocab));
    forward_.target(step_, {&last_row, logits != nullptr ? 1u : 0u}, logits != nullptr ? logits->data() : nullptr);
    if (model_.has_drafter()) forward_.seed_drafter(step_);
  }

  std::vector<float> draft(int slot, int position, int need) {
    const DsparkSpec& dspark = model_.spec.dspark;
    std::vector<int32_t> block(static_cast<size_t>(dspark.block_size), dspark.noise_token_id);
    block[0] = 5;
    step_.clear();
    step_.set_pages(table_.data(), need);
    step_.add(slot, position, block);
    std::vector<float> logits(block.size() * static_cast<size_t>(model_.spec.vocab));
    forward_.draft(step_, logits.data());
    return logits;
  }

  const Model& model_;
  KvStore store_;
  ForwardPass forward_;
  PagePool pool_;
  std::unique_ptr<PrefixCache> cache_;
  Step step_;
  std::vector<int32_t> table_;
};

// Fixture over both generations.
class CacheTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    model_ = load_tiny_model(GetParam());
    ASSERT_NE(model_, nullptr);
    kernels_ = testing::make_test_kernels(1);
  }

  std::unique_ptr<Serving> serve(PrefixCacheOptions options, int pages = 40) {
    options.model_id = GetParam();
    return std::make_unique<Serving>(*model_, *kernels_, pages, std::move(options));
  }
  static PrefixCacheOptions roomy() { return {.checkpoint_bytes = int64_t{1} << 30}; }

  // `prompt` computed without any cache.
  Answer cold(std::span<const int32_t> prompt) { return serve({})->run(prompt, 1, /*use_cache=*/false); }
  std::vector<int32_t> text(int count, unsigned seed) const { return random_tokens(count, seed, model_->spec.vocab); }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Kernels> kernels_;
};

// Same bits, and as much from the cache as said.
inline void expect_answer(const Answer& answer, const Answer& cold, int cached) {
  EXPECT_EQ(answer.cached, cached);
  EXPECT_TRUE(answer.last == cold.last) << "logits differ from a cold run's";
  EXPECT_TRUE(answer.drafts == cold.drafts) << "drafts differ from a cold run's";
}

}  // namespace onelane
