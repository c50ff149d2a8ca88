// PrefixCache: what earlier prompts left behind, by token prefix.
//
// A tree over pages of 128 tokens. A page can be shared by any sequence that begins with the same tokens. Window rings
// and compressor rows cannot be rebuilt from pages, so a sequence can go on from a page boundary only if a *checkpoint*
// of them was taken there: a hit is the longest matching prefix that ends in a checkpoint. Results after a hit are
// bit-identical to a cold run.
//
// Three tiers. Pages and checkpoints live in the pool and beside it; under pressure the least recently used go to host
// memory (up to host_bytes) and, with a directory, to disk, where they survive a restart. Every blob on disk carries a
// checksum and the model's identity; one that does not fit is dropped with a warning and never trusted.
//
// One caller at a time (the engine's thread). A second thread writes to disk. Nothing here fails once the cache exists:
// a tier that errs costs hits, a warning and a count. docs/cache.md has the idea, the policy and the file format.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cache/page_pool.h"
#include "model/kv_store.h"

namespace onelane {

struct PrefixCacheOptions {
  int64_t checkpoint_bytes = 0;  // checkpoints kept in fast memory
  int64_t host_bytes = 0;
  std::string disk_dir;  // empty: no disk tier
  int64_t disk_bytes = 0;
  std::string model_id;      // identity of weights and cache formats: a blob of another one is not used
  int checkpoint_every = 8;  // pages between checkpoints inside a long prompt
  int64_t disk_queue_bytes = int64_t{64} << 20;  // copies in memory that wait to be written
};

struct PrefixHit {
  int tokens = 0;          // a multiple of kPageTokens
  std::vector<int> pages;  // one reference each is the caller's
};

struct PrefixCacheStats {
  int pages = 0;        // of the pool
  int checkpoints = 0;  // in fast memory
  int64_t host_bytes = 0;
  int64_t disk_bytes = 0;
  uint64_t evicted_pages = 0;
  uint64_t restored_pages = 0;  // from host memory or disk
  uint64_t dropped_blobs = 0;   // damaged or foreign files
  uint64_t dropped_writes = 0;  // blobs that the disk was too slow for or would not take
  int known_pages = 0;          // in whatever tier
};

class PrefixCache {
 public:
  // `store` and `pool`, which numbers its pages, must outlive the cache. Errors: the directory cannot be created or
  // read, is used by another process, or comes without disk_bytes or model_id; each names it.
  static Result<std::unique_ptr<PrefixCache>> create(KvStore& store, PagePool& pool, PrefixCacheOptions options);
  // Gives the tree's pages back and writes what is queued for the disk.
  ~PrefixCache();

  // The longest usable prefix of `tokens`, at most tokens.size() - 1 long (somebody must compute the last logits).
  // Pages that left the pool come back if it has room (free pages, and those no sequence uses), and the checkpoint is
  // copied into `slot`. Without a hit the slot's contents are unspecified.
  PrefixHit attach(std::span<const int32_t> tokens, int slot);

  // The next position after `from` (a page boundary before tokens.size(), so that an identical prompt can use it) at
  // which a checkpoint is worth its memory while a prompt of `tokens` is computed: its last boundary, where it leaves a
  // known path, every checkpoint_every pages. 0: none. A prefill chunk should end there.
  int next_checkpoint(std::span<const int32_t> tokens, int from) const;

  // A sequence has computed `tokens`, kept in `pages`: full pages become part of the tree, which takes references of
  // its own. A page whose tokens are there already is left to the caller.
  void insert(std::span<const int32_t> tokens, std::span<const int> pages);
  // Takes a checkpoint at the boundary tokens.size() (a multiple of kPageTokens, inserted before) from `slot`, and
  // queues what is new on its path for the disk. The rings may already hold positions behind the boundary, up to one
  // draft block.
  void checkpoint(std::span<const int32_t> tokens, int slot);

  // Frees up to `pages` pages that no sequence uses, least recently used first; returns how many were freed.
  int reclaim(int pages);
  // Forgets everything, in all tiers. Pages that sequences use stay theirs.
  void clear();
  // Waits until the disk tier has written what it was given. For shutdown and tests.
  void flush();
  PrefixCacheStats stats() const;

 private:
  class Tiers;
  explicit PrefixCache(std::unique_ptr<Tiers> tiers);
  std::unique_ptr<Tiers> tiers_;
};

}  // namespace onelane
