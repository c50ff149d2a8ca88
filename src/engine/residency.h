// Residency: who lives where. Slots, pages, the prefix cache and the way out to host memory, for the engine's loop.
//
// A resident sequence has a slot (rings and states) and the pages of its tokens. A spilled one has neither: its bytes
// wait in host memory and come back to any slot and pages, unchanged.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "cache/prefix_cache.h"
#include "engine/sequence.h"
#include "model/kv_store.h"

namespace onelane {

class Residency {
 public:
  struct Sizes {
    int slots = 0;
    int pages = 0;
    int pages_per_slot = 0;        // of the longest sequence
    bool keep_boundaries = false;  // room for one slot state per slot: what finish() checkpoints
  };
  Residency(const ModelSpec& spec, const Sizes& sizes, Memory& memory = host_memory());

  KvStore& store() { return store_; }
  PagePool& pool() { return pool_; }
  size_t bytes() const { return store_.bytes() + boundary_states_.size() + page_table_.size() * sizeof(int32_t); }
  void use(std::unique_ptr<PrefixCache> cache) { cache_ = std::move(cache); }
  PrefixCache* cache() { return cache_.get(); }

  const int32_t* page_table() const { return page_table_.data(); }
  int pages_per_slot() const { return pages_per_slot_; }

  bool has_slot() const { return !free_slots_.empty(); }
  // Pages that are free or held by the cache alone.
  int available() const { return pool_.size() - used_; }
  int used() const { return used_; }
  int cached() const { return pool_.size() - pool_.free() - used_; }

  // Gives `sequence` a slot and what the cache knows of its prompt (sets computed and stats.cached_tokens).
  void admit(Sequence& sequence);
  // Pages for `tokens` tokens. False when neither the pool nor the cache has them; what was got is kept.
  bool grow(Sequence& sequence, int tokens);
  // Tokens that the pages of `sequence` hold.
  static int room(const Sequence& sequence) { return static_cast<int>(sequence.pages.size()) * kPageTokens; }

  // Where the next chunk of the prompt should end, at most `limit` rows on.
  int chunk(const Sequence& sequence, int limit) const;
  // After `sequence.computed` grew from `before`: gives the cache what is due, puts the boundary's state by.
  void advanced(Sequence& sequence, int before);
  // Whether advanced() may do so for up to `rows` more tokens: then it wants the slot as those left it.
  bool keeps_state(const Sequence& sequence, int rows) const {
    return cache_ && (sequence.computed + rows) / kPageTokens > sequence.computed / kPageTokens;
  }
  // Ends residence. With `keep`, what was computed goes to the cache.
  void release(Sequence& sequence, bool keep);
  void spill(Sequence& sequence);
  // False when there is no slot or not enough pages, `spare` of which must stay available.
  bool restore(Sequence& sequence, int spare);

 private:
  int pages_for(int tokens) const { return (tokens + kPageTokens - 1) / kPageTokens; }
  int take_slot();
  void hold(Sequence& sequence, int page);
  void drop(Sequence& sequence);
  std::span<std::byte> boundary_state(int slot);

  KvStore store_;
  PagePool pool_;
  const int pages_per_slot_;
  std::vector<int32_t> page_table_;  // [slots, pages_per_slot]
  std::vector<int> free_slots_;
  std::vector<int> users_;  // of each page: resident sequences
  int used_ = 0;            // pages with users
  Buffer boundary_states_;
  std::unique_ptr<PrefixCache> cache_;
};

}  // namespace onelane
